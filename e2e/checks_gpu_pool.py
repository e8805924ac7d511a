"""A daemon that keeps models in memory of GPUs, the fake driver's: the whole path, other namespaces, kills, what is missing."""
import json
import os
import select
import signal
import subprocess
import sys

from checks_pool import PATIENCE, library_of
from checks_python import fake_driver
from checks_restart import Manager
from checks_serve import Node
from harness import ROOT, check, http_get, wait_for

ROOMS = ("client/cuda", "device/kernels", "device/gpu", "device/fill", "node/pool", "node/pool_server", "node/node")
HOLDINGS = ("handles", "mappings", "reservations", "contexts", "streams", "events", "modules", "host_buffers", "left")


class GpuNode:
    """A daemon with one model on a GPU, from a store that has it encrypted; managed: with a service manager that keeps descriptors."""

    def __init__(self, h, sealed, env=None, device="cuda:0", managed=False):
        self.h, self.sealed, self.node = h, sealed, Node(h)
        self.report = os.path.join(self.node.place, "driver.json")
        self.env = {**fake_driver(h), **sealed.store.env(), "FAKE_CUDA_REPORT": self.report, **(env or {})}
        self.path = os.path.join(self.node.place, "pool.sock")
        self.manager = Manager(os.path.join(self.node.place, "notify")) if managed else None
        self.configure(m=device)

    def configure(self, **models):
        """The same model, each time with a name of its own, on these devices."""
        self.node.configure(f"pool: {{socket: {self.path}, uids: [{os.getuid()}]}}\n" + "".join(f"""---
apiVersion: sluice/v1alpha1
kind: Model
metadata: {{name: {name}}}
source: {{uri: "{self.sealed.uri}"}}
decrypt: {{keyFile: {self.sealed.key}}}
sink: {{pool: {{device: "{device}"}}}}
""" for name, device in models.items()))

    def start(self):
        if not self.manager:
            self.node.start(env=self.env)
            return
        command, fds = self.manager.around([self.h.program, "serve", self.node.config])
        self.node.start(command, {**self.env, "NOTIFY_SOCKET": self.manager.path}, pass_fds=fds)

    def metric(self, name):
        text = http_get(f"http://127.0.0.1:{self.node.port}/metrics")[1].decode()
        return sum(float(line.split()[1]) for line in text.splitlines() if line.startswith((name + " ", name + "{")))

    def counts(self):
        """What the daemon's process had of the driver at its end."""
        with open(self.report) as file:
            return [row for row in map(json.loads, file) if row["pid"] == self.node.process.pid][-1]

    def nothing_is_left(self):
        left = {name: count for name, count in self.counts().items() if name in HOLDINGS and count}
        assert not left, left


class GpuUser:
    """A client in a process of its own (gpu_user.py)."""

    def __init__(self, gpu, around=(), device="cuda:0"):
        env = gpu.h.environment({**gpu.env, "SLUICE_LIBRARY": library_of(gpu.h), "PYTHONPATH": os.path.join(ROOT, "python"),
                                 "PYTHONDONTWRITEBYTECODE": "1"})
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "gpu_user.py")
        self.process = subprocess.Popen([*around, sys.executable, script, gpu.path, device], env=env, bufsize=0,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        gpu.h.processes.append(self.process)

    def digests(self):
        """Its next line: what it read."""
        assert select.select([self.process.stdout], [], [], PATIENCE)[0], "a client says nothing"
        line = self.process.stdout.readline()
        assert line, "a client ended"
        return json.loads(line)

    def again(self):
        self.process.stdin.write(b"\n")
        return self.digests()

    def end(self):
        self.process.stdin.close()
        assert self.process.wait(PATIENCE) == 0
        self.process.stdout.close()


@check("sealed")
def an_encrypted_model_on_s3_ends_on_a_gpu(h, sealed):
    """Encrypted .tensors on S3 → a daemon → memory of a GPU (the fake driver's), every copy from pinned memory → decrypted there, if the build
    has kernels → two clients, one in user, PID and mount namespaces of its own, read the right bytes of one copy; the daemon leaves nothing of the driver's."""
    gpu = GpuNode(h, sealed)
    gpu.start()
    around = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount"]
    apart = subprocess.run([*around, "true"], capture_output=True).returncode == 0
    users = [GpuUser(gpu), GpuUser(gpu, around if apart else ())]
    for user in users:
        assert user.digests() == sealed.sha256
    versions = gpu.node.await_state("m")["versions"]
    assert len(versions) == 1 and versions[0]["reference_count"] == 2, versions
    for user in users:
        user.end()
    wait_for("no leases", lambda: gpu.node.model("m")["versions"][0]["reference_count"] == 0)
    assert gpu.node.end() == 0
    gpu.nothing_is_left()
    counts = gpu.counts()
    assert counts["unpinned"] == 0 and counts["copied_bytes"] >= sealed.bytes, counts
    kernels = "GPU kernels    none" not in h.sluice("version").expect(0).out
    assert (counts["launches"] > 0) == kernels, counts
    return f"{'one client in namespaces of its own' if apart else 'no namespaces here'}; decrypted on " \
           f"{'the GPU' if kernels else 'the host: no kernels in this build'}"


@check("sealed")
def clients_of_a_gpu_outlive_the_daemon(h, sealed):
    """The daemon killed with SIGKILL while a client is attached: its memory stays, and the next daemon, for which nobody kept anything, loads
    the model again."""
    gpu = GpuNode(h, sealed)
    gpu.start()
    user = GpuUser(gpu)
    assert user.digests() == sealed.sha256
    assert gpu.node.end(signal.SIGKILL) == -signal.SIGKILL
    assert user.again() == sealed.sha256
    gpu.start()
    later = GpuUser(gpu)
    assert later.digests() == sealed.sha256 and user.again() == sealed.sha256
    for each in (user, later):
        each.end()
    assert gpu.node.end() == 0


def use(gpu, *devices):
    """Clients on these GPUs read what was sealed, and go."""
    for device in devices:
        user = GpuUser(gpu, device=device)
        assert user.digests() == gpu.sealed.sha256
        user.end()


@check("sealed")
def models_on_a_gpu_outlive_the_daemon(h, sealed):
    """A service manager keeps descriptors of GPU memory (the fake driver's): daemons are killed, and end, without a client at that time; the
    next one copies nothing, and its clients read the same bytes. Without what it kept the model is loaded again."""
    gpu = GpuNode(h, sealed, managed=True)
    gpu.start()
    use(gpu, "cuda:0")
    wait_for("index and slabs in the store", lambda: gpu.manager.count() >= 2)
    kept = gpu.manager.count()
    for number in (signal.SIGKILL, signal.SIGTERM):
        assert gpu.node.end(number) == (0 if number == signal.SIGTERM else -number)
        assert gpu.manager.count() == kept
        gpu.start()
        use(gpu, "cuda:0")
        assert gpu.metric("sluice_gpu_copied_bytes_total") == 0
        assert gpu.node.said("as the daemon before left it")
    assert gpu.node.end() == 0
    gpu.nothing_is_left()
    assert gpu.counts()["copied_bytes"] == 0
    gpu.manager.end()


HOLDER = "import ctypes, sys; print(ctypes.CDLL('libcuda.so.1').cuInit(0), flush=True); sys.stdin.read()"


@check("sealed")
def a_gpu_that_forgets_between_two_daemons_costs_a_load(h, sealed):
    """Without persistence mode a GPU (the fake driver's) loses its memory when no process has it open. While some process has, the next daemon
    takes over what the service manager kept; when none has, the driver refuses that, and the model is loaded again."""
    gpu = GpuNode(h, sealed, {"FAKE_CUDA_NODE": os.path.join(h.directory("gpu-node"), "state")}, managed=True)
    holder = subprocess.Popen([sys.executable, "-c", HOLDER], env=h.environment(gpu.env), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    h.processes.append(holder)
    assert holder.stdout.readline() == b"0\n"
    gpu.start()
    use(gpu, "cuda:0")
    wait_for("index and slabs in the store", lambda: gpu.manager.count() >= 2)
    for held in (True, False):
        if not held:
            holder.communicate()
        assert gpu.node.end(signal.SIGKILL) == -signal.SIGKILL
        gpu.start()
        use(gpu, "cuda:0")
        copied = gpu.metric("sluice_gpu_copied_bytes_total")
        assert copied == 0 if held else copied >= sealed.bytes, (held, copied)
    assert gpu.node.said("the received descriptor is not memory of cuda:0")
    assert gpu.node.end() == 0
    gpu.nothing_is_left()
    gpu.manager.end()


@check("sealed")
def a_model_is_on_every_gpu(h, sealed):
    """`device: cuda:all` with two GPUs: the source is read once, both get every byte, clients attach on either; one that fails fails the load
    and is named, and the next try succeeds; the daemon killed: the service manager has kept both copies."""
    gpu = GpuNode(h, sealed, {"FAKE_CUDA_FAIL": "cuMemCreate:2:999"}, device="cuda:all", managed=True)
    gpu.start()
    wait_for("a failure", lambda: gpu.node.said("on cuda:1"))
    version = gpu.node.await_state("m")["versions"][0]
    use(gpu, "cuda:0", "cuda:1")
    assert (version["device"], version["copies"]) == ("cuda:all", 2), version
    copied, read = gpu.metric("sluice_gpu_copied_bytes_total"), gpu.metric("sluice_source_bytes_total")
    assert copied >= 2 * sealed.bytes and read < 1.5 * sealed.bytes, (copied, read, sealed.bytes)
    rows = h.sluice("pool", "ls", "--json", "--socket", gpu.path).expect(0).json()
    assert sorted(row["device"] for row in rows) == ["cuda:0", "cuda:1"], rows
    refused = h.sluice("pool", "attach", "m", "--device", "host", "--socket", gpu.path, "--", "true")
    assert refused.code != 0 and "on each GPU" in refused.err, refused.err
    wait_for("both copies in the store", lambda: gpu.manager.count() >= 4)
    assert gpu.node.end(signal.SIGKILL) == -signal.SIGKILL
    gpu.env.pop("FAKE_CUDA_FAIL")
    gpu.start()
    use(gpu, "cuda:1", "cuda:0")
    assert gpu.metric("sluice_gpu_copied_bytes_total") == 0
    assert gpu.node.end() == 0
    gpu.nothing_is_left()
    gpu.manager.end()


@check("sealed")
def a_daemon_whose_driver_hangs_ends(h, sealed):
    """The driver never returns from making a context, from a copy, from finding GPUs: SIGTERM ends the daemon all the same, says whose driver it was,
    and the next one, with a driver that works, loads the model."""
    for call, words in (("cuDevicePrimaryCtxRetain", "the driver of cuda:0 does not answer"), ("cuMemcpyHtoDAsync", "the driver of cuda:0"),
                        ("cuDeviceGetUuid", "the driver of cuda:0")):
        gpu = GpuNode(h, sealed, {"FAKE_CUDA_HANG": call})
        gpu.start()
        wait_for("a driver that hangs", lambda: gpu.node.said(f"the driver hangs in {call}"))
        assert gpu.node.model("m")["state"] != "ready"
        assert gpu.node.end() == 9
        assert gpu.node.said(words) and gpu.node.said("loaded again by the next one")
    del gpu.env["FAKE_CUDA_HANG"]
    gpu.start()
    use(gpu, "cuda:0")
    assert gpu.node.end() == 0
    gpu.nothing_is_left()


@check("sealed")
def a_lost_gpu_is_told_and_a_restart_brings_it_back(h, sealed):
    """The driver gives up one of two GPUs in mid-copy: `/readyz` is 503 with the reason, `/v1/status` and a metric name the GPU, models on the host
    and on the other GPU are loaded all the same; a daemon that is started anew has the GPU and the model on it."""
    gpu = GpuNode(h, sealed, {"FAKE_CUDA_DEVICES": "2", "FAKE_CUDA_FAIL": "cuMemcpyHtoDAsync:3:4"})
    gpu.start()
    wait_for("a lost GPU", lambda: gpu.node.said("cuda:0 is lost for this process"))
    gpu.configure(m="cuda:0", other="cuda:1", host="host")
    gpu.node.process.send_signal(signal.SIGHUP)
    for name in ("other", "host"):
        gpu.node.await_state(name)
    status, ready = gpu.node.get("/readyz")
    assert status == 503 and any(reason.startswith("cuda:0 is lost") for reason in ready["reasons"]), (status, ready)
    lost = gpu.node.get("/v1/status")[1]["lost_gpus"]
    assert [one["device"] for one in lost] == ["cuda:0"] and "CUDA_ERROR_DEINITIALIZED" in lost[0]["reason"], lost
    assert gpu.node.model("m")["state"] == "failed" and gpu.metric("sluice_gpu_lost") == 1
    assert gpu.node.get("/healthz")[0] == 200
    assert gpu.node.end() == 0
    del gpu.env["FAKE_CUDA_FAIL"]
    gpu.start()
    gpu.node.await_state("m")
    use(gpu, "cuda:0")
    wait_for("readiness", lambda: gpu.node.get("/readyz")[0] == 200)
    assert gpu.node.get("/v1/status")[1]["lost_gpus"] == [] and gpu.metric("sluice_gpu_lost") == 0
    assert gpu.node.end() == 0
    gpu.nothing_is_left()


@check("sealed")
def a_daemon_says_what_a_gpu_lacks(h, sealed):
    """No driver, an old one, no GPU, one that is too small: the model's error says what to do, and the daemon goes on. A copy that fails
    in mid-load: the same, nothing is left, and the next try succeeds by itself."""
    cases = (({"LD_LIBRARY_PATH": "/nowhere"}, "no NVIDIA driver"), ({"FAKE_CUDA_VERSION": "11020"}, "update it"),
             ({"FAKE_CUDA_DEVICES": "0"}, "CUDA_ERROR_NO_DEVICE"), ({"FAKE_CUDA_BYTES": str(32 << 20)}, "pool.gpuBudgetBytes"))
    for env, words in cases:
        gpu = GpuNode(h, sealed, env)
        gpu.start()
        wait_for(words, lambda: gpu.node.said(words))
        assert gpu.node.model("m")["state"] != "ready"
        assert gpu.node.end() == 0
    gpu = GpuNode(h, sealed, {"FAKE_CUDA_FAIL": "cuMemcpyHtoDAsync:3:999"})
    gpu.start()
    wait_for("a failure", lambda: gpu.node.said("CUDA_ERROR_UNKNOWN"))
    gpu.node.await_state("m")
    assert gpu.node.end() == 0
    gpu.nothing_is_left()
