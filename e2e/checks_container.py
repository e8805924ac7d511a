"""Being a good container: users, limits, signals, messages, logs; in namespaces, without an engine."""
import json
import os
import signal
import threading
import time

from containers import USER, VOLUME_GROUP, ControlGroup, Pod
from harness import SECOND, Skip, bytes_done, check, free_port, http_get, in_starts, port_open, sha256_file, wait_for

ROOMS = ("core/base", "core/observe", "core/concurrency", "load/load", "load/publish", "packaging")
LATE = True
MODEL = "model.safetensors"
MIB = 1 << 20
# nginx paces a request after its first 8 MiB, so requests must be long to be slow.
SLOW = ("--range-bytes", "64Mi")


def served(nginx, minilm):
    """The model at nginx; its path there."""
    place = os.path.join(nginx.root, MODEL)
    if not os.path.exists(place):
        with open(os.path.join(minilm.directory, MODEL), "rb") as source, open(place, "wb") as file:
            while block := source.read(1 << 20):
                file.write(block)
    return "/" + MODEL


def model_bytes(minilm):
    return os.path.getsize(os.path.join(minilm.directory, MODEL))


def new_pod(h, image, minilm, share_of_model=1.25):
    return Pod(h, image, int(model_bytes(minilm) * share_of_model))


def log_lines(run):
    """Every line on stderr as JSON."""
    return [json.loads(line) for line in run.err.splitlines()]


class Watched:
    """A load in a container that can be asked how far it is."""

    def __init__(self, pod, *arguments, groups=()):
        self.url = f"http://127.0.0.1:{free_port()}"
        self.process = pod.start(*arguments, env={"SLUICE_LISTEN": self.url.removeprefix("http://")}, groups=groups)

    def done(self):
        return bytes_done(self.url)

    def wait(self, count):
        wait_for(f"{count} bytes", lambda: self.done() >= count or self.process.poll() is not None)
        assert self.process.poll() is None, "the load was over too soon"


def published(pod, minilm):
    return sha256_file(os.path.join(pod.volume, "m", MODEL)) == minilm.sha256[MODEL]


@check("image", "nginx", "minilm")
def container_restricted(h, image, nginx, minilm):
    """Any uid, no passwd, no home, read-only root, no capabilities, blocked calls: a load, its message, its files' group."""
    pod = new_pod(h, image, minilm)
    run = pod.run("load", nginx.http + served(nginx, minilm), "--to", "/models/m", "--json").expect(0)
    assert published(pod, minilm)
    message = pod.message()
    assert message.startswith("ok: ") and "/models/m" in message and "MiB in " in message, message
    assert log_lines(run)[-1]["level"] == "info", run.err
    for name in ("m", "m/.sluice", "m/.sluice/ready", "m/" + MODEL):
        status = os.stat(os.path.join(pod.volume, name))
        assert (status.st_uid, status.st_gid) == (USER, VOLUME_GROUP), f"{name}: {status.st_uid}:{status.st_gid}"
        assert status.st_mode & 0o040, f"{name}: {status.st_mode:o}"
    assert pod.run("verify", "/models/m").code == 0
    assert pod.message() == "ok: sluice verify"
    return message


def listening(process):
    """The sockets of a process at which somebody may call."""
    with open(f"/proc/{process}/net/tcp") as v4, open(f"/proc/{process}/net/tcp6") as v6:
        rows = [line.split() for line in v4.readlines()[1:] + v6.readlines()[1:]]
    waiting = {f"socket:[{row[9]}]" for row in rows if row[3] == "0A"}
    folder = f"/proc/{process}/fd"
    return [path for path in (os.readlink(os.path.join(folder, name)) for name in os.listdir(folder)) if path in waiting]


@check("image", "nginx", "minilm")
def container_opens_no_port(h, image, nginx, minilm):
    """A load in the image as it comes listens nowhere; with --listen it does."""
    pod, url, counts = new_pod(h, image, minilm), nginx.http + "/slow" + served(nginx, minilm), []
    port = free_port()
    for more in ((), (f"--listen=127.0.0.1:{port}",)):
        pod.empty()
        process = pod.start("load", url, "--to", "/models/m", "--connections", "1", *SLOW, *more)
        wait_for("some bytes", lambda: pod.used() > MIB or process.poll() is not None)
        counts.append(len(listening(process.pid1)))
        pod.signal(process, signal.SIGTERM)
        assert pod.finish(process).code == 143
    assert counts == [0, 1], counts


@check("image", "nginx", "minilm")
def container_messages(h, image, nginx, minilm):
    """One line for every failure, the same as the log's last; no secret in it; a file that is missing or read-only is not a failure."""
    pod, url = new_pod(h, image, minilm), nginx.http + served(nginx, minilm)
    cases = [(2, "USAGE", ["load", "--no-such-flag"]), (2, "USAGE", ["load", url]),
             (4, "NOT_FOUND", ["load", url + ".not?token=secret", "--to", "/models/m"]),
             (6, "NO_SPACE", ["load", url, "--to", "/elsewhere"]),
             (7, "NET", ["load", f"http://u:secret@127.0.0.1:{free_port()}/x?sig=secret", "--to", "/models/m", "--attempts", "1", "--unreachable-seconds", "0"])]
    for code, kind, arguments in cases:
        run = pod.run(*arguments).expect(code)
        message = pod.message()
        last = log_lines(run)[-1]
        assert message.startswith(f"error {kind}: "), message
        assert (last["level"], last["kind"]) == ("error", kind), last
        assert "secret" not in message + run.err, run.err
    pod.run("load", url, "--to", "/models/m", message=False).expect(0)
    os.chmod(pod.message_file, 0o444)
    pod.run("version").expect(0)
    assert os.path.getsize(pod.message_file) == 0
    return f"{len(cases)} failures"


@check("image", "nginx", "minilm")
def container_log_lines(h, image, nginx, minilm):
    """A line of JSON with progress every 5 s, and the outcome last."""
    pod = new_pod(h, image, minilm)
    run = pod.run("load", nginx.http + "/slow" + served(nginx, minilm), "--to", "/models/m", "--connections", "1", *SLOW).expect(0)
    lines = log_lines(run)
    running = [line for line in lines if line.get("progress", {}).get("state") == "reading"]
    assert len(running) >= int(run.seconds / 5) - 1 >= 1, run.err
    for line in running:
        assert line["level"] == "info" and 0 < line["progress"]["bytes_done"] <= line["progress"]["bytes_total"], line
    assert "is in /models/m" in lines[-1]["message"], lines[-1]
    return f"{len(running)} lines in {run.seconds:.0f} s"


@check("image", "nginx", "minilm", alone=True, late=True)  # it measures time
def container_sigterm(h, image, nginx, minilm):
    """SIGTERM to PID 1 in mid-load: 143 within a second, a message that says what is kept; the next container resumes."""
    pod, url = new_pod(h, image, minilm), nginx.http + "/slow" + served(nginx, minilm)
    message = None

    def stop_load():
        nonlocal message
        pod.empty()
        load = Watched(pod, "load", url, "--to", "/models/m", *SLOW)
        load.wait(12 * MIB)
        begin = time.monotonic()
        pod.signal(load.process, signal.SIGTERM)
        run = pod.finish(load.process)
        seconds = time.monotonic() - begin
        message = pod.message()
        assert run.code == 143, (run.code, run.err)
        assert message.startswith("error CANCELED: ") and "resumes" in message, message
        assert log_lines(run)[-1]["kind"] == "CANCELED", run.err
        return seconds
    seconds = in_starts(h, SECOND, stop_load)
    again = pod.run("load", url, "--to", "/models/m", "--json").expect(0)
    assert again.json()["resumed"] > 4 * MIB, again.out
    assert published(pod, minilm)
    return f"{seconds * 1000:.0f} ms; {message}"


class Peak:
    """The most that a volume held while this was watched."""

    def __init__(self, pod):
        self.pod, self.most, self.stop = pod, 0, threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)

    def watch(self):
        while not self.stop.wait(0.002):
            self.most = max(self.most, self.pod.used())

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()


@check("image", "nginx", "minilm")
def container_killed_resumes_in_place(h, image, nginx, minilm):
    """SIGKILL, as of an OOM kill, three times: each new container goes on in the same emptyDir, which never holds two copies."""
    size, pod = model_bytes(minilm), new_pod(h, image, minilm, 1.1)
    slow, kept = nginx.http + "/slow" + served(nginx, minilm), []
    with Peak(pod) as peak:
        for part in (0.2, 0.45, 0.7):
            load = Watched(pod, "load", slow, "--to", "/models/m", "--connections", "2", *SLOW)
            load.wait(int(part * size))
            pod.signal(load.process, signal.SIGKILL)
            assert pod.finish(load.process).code != 0
            kept.append(pod.used())
        result = pod.run("load", slow, "--to", "/models/m", "--json").expect(0).json()
    assert published(pod, minilm)
    assert result["resumed"] > 0.5 * size, result
    assert peak.most <= size + 2 * MIB, f"{peak.most} bytes for a model of {size}"
    return (f"model {size / 1e6:.1f} MB, kept {', '.join(f'{held / 1e6:.1f}' for held in kept)} MB, "
            f"resumed {result['resumed'] / 1e6:.1f} MB, at most {peak.most / 1e6:.1f} MB in the volume")


@check("image", "nginx", "minilm")
def container_out_of_memory(h, image, nginx, minilm):
    """Killed by the kernel, since something else filled its limit: the next container resumes what is charged already."""
    size, pod = model_bytes(minilm), new_pod(h, image, minilm, 1.1)
    url, plenty = nginx.http + "/slow" + served(nginx, minilm), str(512 * MIB)
    with ControlGroup("memory", {1: {"memory.limit_in_bytes": plenty}, 2: {"memory.max": plenty}}) as group:
        load = Watched(pod, "load", url, "--to", "/models/m", "--connections", "2", *SLOW, groups=[group.path])
        load.wait(int(0.4 * size))
        group.write({1: {"memory.limit_in_bytes": str(group.used() + MIB)}, 2: {"memory.max": str(group.used() + MIB)}})
        assert pod.finish(load.process).code != 0
        assert group.kills() > 0, "it ended otherwise"
        group.write({1: {"memory.limit_in_bytes": plenty}, 2: {"memory.max": plenty}})
        with Peak(pod) as peak:
            result = pod.run("load", url, "--to", "/models/m", "--json", groups=[group.path]).expect(0).json()
        charged = group.used()
        assert published(pod, minilm)
        assert result["resumed"] > 0.3 * size and peak.most <= size + 2 * MIB and charged < size + 48 * MIB, (result, peak.most, charged)
        pod.empty()
    return f"resumed {result['resumed'] / 1e6:.1f} of {size / 1e6:.1f} MB, {charged / 1e6:.1f} MB charged"


@check("image", "nginx", "minilm")
def container_memory_limit(h, image, nginx, minilm):
    """A memory limit below the model: 6 before its first byte, naming the limit, not an OOM kill."""
    pod, path = new_pod(h, image, minilm), served(nginx, minilm)
    limit = str(96 * MIB)  # the model fits, its loader does not
    sent = nginx.sent_bytes(path)
    with ControlGroup("memory", {1: {"memory.limit_in_bytes": limit}, 2: {"memory.max": limit}}) as group:
        pod.run("load", nginx.http + path, "--to", "/models/m", groups=[group.path]).expect(6, "resources.limits.memory")
        message = pod.message()
        assert "96.0 MiB" in message and "needs" in message, message
        assert nginx.sent_bytes(path) - sent < MIB, "the model was fetched"
        pod.run("plan", nginx.http + path, "--to", "/models/m", groups=[group.path]).expect(6, "memory.")
    return message


def reader_threads(pod, process):
    """Threads that read, besides the first; the most that were seen while it ran."""
    most = 0
    while process.poll() is None:
        try:
            names = []
            for task in os.listdir(f"/proc/{process.pid1}/task"):
                with open(f"/proc/{process.pid1}/task/{task}/comm") as file:
                    names.append(file.read().strip())
            most = max(most, names.count("sluice-read"))
        except OSError:
            pass
        time.sleep(0.01)
    return most


@check("image", "nginx", "minilm")
def container_cpu_limit(h, image, nginx, minilm):
    """A quota of one processor: one thread reads, where there are more without it."""
    if len(os.sched_getaffinity(0)) < 2:
        raise Skip("one processor")
    pod, url, threads = new_pod(h, image, minilm), nginx.http + "/slow" + served(nginx, minilm), {}
    quota = {1: {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "100000"}, 2: {"cpu.max": "100000 100000"}}
    with ControlGroup("cpu", quota) as group:
        for name, groups in (("without", []), ("with", [group.path])):
            process = pod.start("load", url, "--to", "/models/m", "--connections", "8", "--range-bytes", "10Mi", groups=groups)
            drain = threading.Thread(target=process.communicate)
            drain.start()
            threads[name] = 1 + reader_threads(pod, process)
            drain.join()
            assert process.returncode == 0, process.returncode
            pod.empty()
    assert threads["with"] == 1 < threads["without"], threads
    return f"{threads['without']} without the quota, {threads['with']} with it"


@check("image", "nginx", "minilm", alone=True, late=True)  # it measures time
def container_sidecar(h, image, nginx, minilm):
    """--stay: /startupz 503 until published, then 200; SIGTERM: 0 within a second; a second container does without the port."""
    pod, model = new_pod(h, image, minilm), served(nginx, minilm)
    seconds = in_starts(h, SECOND, lambda: sidecar_ends(pod, nginx, minilm, model))
    return f"{seconds * 1000:.0f} ms from SIGTERM to 0"


def sidecar_ends(pod, nginx, minilm, model):
    """What container_sidecar claims, once; the seconds from SIGTERM to its end."""
    pod.empty()
    port = free_port()
    url, env = f"http://127.0.0.1:{port}", {"SLUICE_LISTEN": f":{port}"}
    process = pod.start("load", "--stay", nginx.http + "/slow" + model, "--to", "/models/m", *SLOW, env=env)
    wait_for("the port", lambda: port_open(port))
    assert http_get(url + "/healthz")[0] == 200
    assert http_get(url + "/startupz")[0] == http_get(url + "/readyz")[0] == 503
    wait_for("/startupz", lambda: http_get(url + "/startupz")[0] == 200)
    assert http_get(url + "/readyz")[0] == 200 and published(pod, minilm)
    assert pod.message().startswith("ok: ")
    other = pod.run("load", nginx.http + model, "--to", "/models/other", env=env)
    assert other.code == 6 or "loading without it" in other.err, other.err  # there is no room for two, but it got so far
    assert "loading without it" in other.err, other.err
    begin = time.monotonic()
    pod.signal(process, signal.SIGTERM)
    run = pod.finish(process)
    seconds = time.monotonic() - begin
    assert run.code == 0, (run.code, run.err)
    return seconds
