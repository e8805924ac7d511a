"""The node daemon: one load for many callers, restarts, SIGHUP, the service manager, the pool, the end."""
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import threading

from checks_resilience import OBJECT_BYTES, paced
from harness import CONNECTIONS, RANGE_BYTES, ROOT, Skip, check, free_port, http_get, readers_pinned, sha256_file, wait_for
from servers import share

ROOMS = ("node/pool", "node/pool_server", "node/node", "node/web", "packaging")
TOKEN = "a token of the checks"


class UnixConnection(http.client.HTTPConnection):
    """HTTP to a path instead of an address."""

    def __init__(self, path):
        super().__init__("localhost", timeout=60)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(self.path)


def model(name, url):
    return f"""---
apiVersion: sluice/v1alpha1
kind: Model
metadata: {{name: {name}}}
source: {{uri: "{url}"}}
{readers_pinned()}"""


class Node:
    """A daemon with its own directory; start it as often as you like."""

    def __init__(self, h):
        self.h, self.port = h, free_port()
        self.directory = h.fresh("node")
        self.place = h.directory(f"node-{h.serial}")
        self.config = os.path.join(self.place, "node.yaml")
        self.control = os.path.join(self.place, "run", "control.sock")
        self.log = f"node-{h.serial}"
        self.process = None

    def configure(self, models="", budget="1GiB"):
        with open(os.path.join(self.place, "token"), "w") as file:
            file.write(TOKEN + "\n")
        with open(self.config + ".new", "w") as file:
            file.write(f"""apiVersion: sluice/v1alpha1
kind: Node
directory: {self.directory}
budgetBytes: {budget}
listen: 127.0.0.1:{self.port}
control: {{socket: {self.control}, tokenFile: {self.place}/token}}
{models}""")
        os.replace(self.config + ".new", self.config)

    def start(self, command=None, env=None, **options):
        self.process = self.h.serve(self.log, command or [self.h.program, "serve", self.config], self.port,
                                    env=self.h.environment(env), **options)

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        return self.process.wait(180)

    def ask(self, method, path, body=None):
        connection = UnixConnection(self.control)
        connection.request(method, path, body)
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, json.loads(text)

    def get(self, path):
        status, body, _ = http_get(f"http://127.0.0.1:{self.port}{path}")
        return status, json.loads(body)

    def model(self, name):
        return self.get(f"/v1/models/{name}")[1]

    def await_state(self, name, state="ready"):
        wait_for(f"'{name}' {state}", lambda: self.model(name).get("state") == state)
        return self.model(name)

    def said(self, words):
        with open(os.path.join(self.h.logs, self.log + ".log"), errors="replace") as file:
            return words in file.read()


RANK_FILES = ["model-rank-0-part-0.safetensors", "model-rank-1-part-0.safetensors", "config.json"]


def folder_of_ranks(h):
    """Files of two ranks, and one of both."""
    source = h.fresh("source")
    os.makedirs(source)
    for name in RANK_FILES:
        header = json.dumps({name[:12]: {"dtype": "U8", "shape": [4096], "data_offsets": [0, 4096]}}).encode()
        with open(os.path.join(source, name), "wb") as file:
            file.write(b"{}" if name == "config.json" else len(header).to_bytes(8, "little") + header + os.urandom(4096))
    return source


def model_of_rank(name, origin, rank, of):
    return model(name, origin + "/").replace('/"}', f'/", rank: {{index: {rank}, of: {of}}}}}')


def check_rank(source, path, rank):
    """There are the files of this rank alone, and of no rank."""
    names = [name for name in os.listdir(path) if name[0] != "."]
    assert sorted(names) == ["config.json", RANK_FILES[rank]], names
    assert all(sha256_file(os.path.join(path, name)) == sha256_file(os.path.join(source, name)) for name in names), "wrong bytes"


@check()
def a_node_loads_the_files_of_each_rank(h):
    """Two models of one folder, each with the files of its rank and what belongs to no rank; of another number of ranks there is an error. The
    storage initializer, which knows no ranks, brings all files."""
    source, whole = folder_of_ranks(h), h.fresh()
    process, origin = share(h, source)
    node = Node(h)
    node.configure(model_of_rank("r0", origin, 0, 2) + model_of_rank("r1", origin, 1, 2))
    node.start()
    for rank in range(2):
        check_rank(source, node.await_state(f"r{rank}")["path"], rank)
    assert node.ask("POST", "/v1/loads", model_of_rank("of4", origin, 0, 4))[0] == 202
    failed = node.await_state("of4", "failed")
    assert "model-rank-2-part-0.safetensors" in json.dumps(failed), failed
    assert node.end() == 0
    h.sluice("initializer", "file://" + source, whole).expect(0)
    assert sorted(name for name in os.listdir(whole) if name[0] != ".") == sorted(RANK_FILES), os.listdir(whole)
    h.stop(process)


@check()
def eight_callers_of_a_node_make_one_load(h):
    """Eight requests for one model at once: its bytes come from the source once."""
    server, digest = paced(64 << 20)
    node = Node(h)
    node.configure()
    node.start()
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(node.ask("POST", "/v1/loads", model("m", server.url))))
               for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [status for status, _ in answers] == [202] * 8, answers
    found = node.await_state("m")
    assert sha256_file(os.path.join(found["path"], "big.bin")) == digest, "wrong bytes"
    assert sha256_file(os.path.join(node.directory, "m", "current", "big.bin")) == digest, "wrong bytes by the link"
    assert node.end() == 0
    server.close()
    share = server.sent / OBJECT_BYTES
    assert share < 1.2, f"{share:.2f} times the object"
    return f"{share:.3f} times the object's bytes"


@check(smoke=True)
def a_node_goes_on_after_kills(h):
    """kill -9 in mid-load and when all is there: the next daemon resumes, then reads nothing again."""
    server, digest = paced(16 << 20)
    node = Node(h)
    node.configure(model("m", server.url))
    node.start()
    wait_for("half of it", lambda: server.sent > OBJECT_BYTES // 2)
    assert node.end(signal.SIGKILL) == -signal.SIGKILL
    node.start()
    path = node.await_state("m")["path"]
    assert sha256_file(os.path.join(path, "big.bin")) == digest, "wrong bytes"
    again = server.sent - OBJECT_BYTES
    assert again <= 3 * CONNECTIONS * RANGE_BYTES, f"{again} bytes came again after a kill"
    assert node.end(signal.SIGKILL) == -signal.SIGKILL
    sent = server.sent
    node.start()
    assert node.get("/readyz")[0] == 200, "not ready at once, although all is there"
    wait_for("the look at the source", lambda: not node.model("m")["busy"])
    assert node.model("m")["path"] == path
    assert server.sent - sent < RANGE_BYTES, f"{server.sent - sent} bytes were read for what was there"
    server.close()
    assert node.end() == 0
    node.start()
    assert node.get("/readyz")[0] == 200, "not ready without its source"
    assert node.end() == 0
    return f"{again / 1e6:.1f} MB came again after the kill in mid-load"


@check()
def a_node_takes_a_new_config_at_sighup(h):
    """SIGHUP loads what is new, unpins what left, and leaves everything as it was if the config has a mistake."""
    server, _ = paced(256 << 20)
    node = Node(h)
    node.configure(model("a", server.url))
    node.start()
    old = node.await_state("a")
    node.configure(model("b", server.url))
    node.process.send_signal(signal.SIGHUP)
    wait_for("the new config", lambda: node.said("the config was read again: 1 model"))
    node.await_state("b")
    assert node.model("a")["origin"] == "removed" and not node.model("a")["pinned"], node.model("a")
    assert os.path.exists(os.path.join(old["path"], "big.bin")), "what left the config went at once"
    node.configure("budgetByte: 1GiB\n" + model("c", server.url))
    node.process.send_signal(signal.SIGHUP)
    wait_for("the refusal", lambda: node.said("the new config is not used"))
    assert node.said("unknown key 'budgetByte', did you mean 'budgetBytes'?"), h.log_tail(node.log)
    assert node.get("/readyz")[0] == 200 and node.get("/v1/models/c")[0] == 404
    assert node.end() == 0
    server.close()


@check()
def a_node_refuses_what_does_not_fit(h):
    """What does not fit beside what is pinned is refused before a byte of it is read, and says what is in the way."""
    server, _ = paced(256 << 20)
    node = Node(h)
    node.configure(model("a", server.url), budget="100MiB")
    node.start()
    node.await_state("a")
    sent = server.sent
    assert node.ask("POST", "/v1/loads", model("b", server.url))[0] == 202
    why = node.await_state("b", "failed")["error"]
    assert why["code"] == "budget" and "'a' 64.0 MiB (pinned by the config)" in why["message"], why
    assert server.sent - sent < RANGE_BYTES, f"{server.sent - sent} bytes of what was refused"
    assert node.ask("DELETE", "/v1/models/b")[0] == 202
    assert node.ask("POST", "/v1/models/a/evict")[0] == 409
    assert os.listdir(node.directory) != [], "the pinned model went"
    assert node.end() == 0
    server.close()


@check()
def a_node_ends_in_mid_load(h):
    """SIGTERM in mid-load: exit code 0, and the next daemon resumes."""
    server, digest = paced(8 << 20)
    node = Node(h)
    node.configure(model("m", server.url))
    node.start()
    wait_for("a part of it", lambda: server.sent > OBJECT_BYTES // 4)
    assert node.end() == 0
    node.start()
    path = node.await_state("m")["path"]
    assert sha256_file(os.path.join(path, "big.bin")) == digest, "wrong bytes"
    again = server.sent - OBJECT_BYTES
    assert again <= 3 * CONNECTIONS * RANGE_BYTES, f"{again} bytes came again"
    assert node.end() == 0
    server.close()


@check()
def a_small_model_passes_large_ones(h):
    """Two large models take both places and a third one waits: a small one behind it is ready first."""
    server, _ = paced(1 << 16)
    node = Node(h)
    small = h.directory("small-model")
    with open(os.path.join(small, "config.json"), "w") as file:
        file.write("{}")
    node.configure("".join(model(name, server.url) for name in ("a", "b", "c")) + model("small", small + "/"))
    node.start()
    node.await_state("small")
    states = sorted(node.model(name)["state"] for name in ("a", "b", "c"))
    assert states == ["loading", "loading", "queued"], states
    queue = node.get("/v1/models")[1]["queue"]
    assert [entry["reason"] for entry in queue] == ["all 2 places for loads are taken"], queue
    assert node.end() == 0
    server.close()


@check()
def what_a_node_leaves_is_removed_at_once(h):
    """A model of the config and one that was asked for: while the daemon runs `rm` refuses, afterwards nothing of it is there."""
    server, _ = paced(OBJECT_BYTES)
    node = Node(h)
    node.configure(model("m", server.url))
    node.start()
    node.ask("POST", "/v1/loads", model("n", server.url))
    node.await_state("m")
    node.await_state("n")
    h.sluice("rm", node.directory).expect(2, "a node daemon runs in")
    assert node.end() == 0
    h.sluice("rm", node.directory).expect(0, "removed 2 models")
    assert not os.path.exists(node.directory), os.listdir(node.directory)
    server.close()


@check()
def a_node_talks_with_systemd(h):
    """sd_notify: ready, reloading with its time, status, watchdog, stopping; and a socket that systemd opened."""
    node = Node(h)
    node.configure()
    told = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    told.settimeout(180)
    told.bind(os.path.join(node.place, "notify"))
    opened = socket.socket(socket.AF_UNIX)
    path = os.path.join(node.place, "activated.sock")
    opened.bind(path)
    opened.listen(16)
    number = opened.fileno()
    command = ["bash", "-c", f'LISTEN_PID=$$ exec "$0" "$@" 3<&{number}', h.program, "serve", node.config]
    node.start(command, {"NOTIFY_SOCKET": told.getsockname(), "WATCHDOG_USEC": "200000", "LISTEN_FDS": "1",
                         "LISTEN_FDNAMES": "control"}, pass_fds=[number])
    opened.close()
    seen = []

    def await_word(word):
        while not any(word in line for line in seen):
            seen.append(told.recv(4096).decode())
        seen.clear()

    await_word("READY=1")
    await_word("STATUS=0 of 0 models")
    await_word("WATCHDOG=1")
    node.control = path
    assert node.ask("GET", "/v1/models")[0] == 200, "the socket that was opened for it is not served"
    node.process.send_signal(signal.SIGHUP)
    await_word("RELOADING=1\nMONOTONIC_USEC=")
    await_word("READY=1")
    node.process.send_signal(signal.SIGTERM)
    await_word("STOPPING=1")
    assert node.process.wait(180) == 0
    assert os.path.exists(path), "a socket of systemd was taken away"
    told.close()


DROPPED = "sys_boot sys_time sys_rawio sys_pacct sys_tty_config syslog wake_alarm net_admin net_raw linux_immutable " \
          "audit_control audit_read block_suspend"


@check()
def the_unit_is_good_and_its_limits_leave_a_daemon_whole(h):
    """systemd-analyze takes the packaged unit, no option gives the daemon mounts of its own, and a daemon without the
    capabilities that the unit takes away serves a model."""
    with open(os.path.join(ROOT, "packaging", "sluice.service.in"), encoding="utf-8") as file:
        unit = file.read().replace("@CMAKE_INSTALL_FULL_BINDIR@/sluice", h.program)
    settings = [line.partition("=")[::2] for line in unit.splitlines() if "=" in line and not line.startswith("#")]
    for key, _ in settings:
        assert not key.startswith(("Protect", "Private", "ReadOnly", "ReadWrite", "Inaccessible", "Mount", "BindPaths",
                                   "TemporaryFileSystem", "RootDirectory", "DynamicUser")), key
    taken = " ".join(value[1:] for key, value in settings if key == "CapabilityBoundingSet").lower().replace("cap_", "")
    assert taken == DROPPED, taken
    if shutil.which("systemd-analyze"):
        path = os.path.join(h.directory("unit"), "sluice.service")
        with open(path, "w", encoding="utf-8") as file:
            file.write(unit)
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", path], capture_output=True, text=True)
        ours = [line for line in done.stderr.splitlines() if "sluice" in line]  # it names faults of other units, too
        assert not ours, ours
    if not shutil.which("setpriv") or os.getuid():
        raise Skip("it takes setpriv and root to take capabilities away")
    node = Node(h)
    node.configure(model("m", tensors(h, 1, 16)))
    bounds = ",".join("-" + name for name in DROPPED.split())
    node.start(["setpriv", "--no-new-privs", f"--bounding-set={bounds}", f"--inh-caps={bounds}", h.program, "serve",
                node.config])
    node.await_state("m")
    node.process.send_signal(signal.SIGHUP)
    wait_for("the config read again", lambda: node.said("the config was read again"))
    assert node.end() == 0


@check()
def a_config_with_mistakes_starts_nothing(h):
    """Every mistake of the config and of the specs it names, with file and place, and exit code 2."""
    node = Node(h)
    with open(os.path.join(node.place, "m.yaml"), "w") as file:
        file.write("apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: m}\nsource: {urii: /x}\n")
    node.configure("models: [{file: m.yaml}, {file: none}]\n")
    for more in ([], ["--check"]):
        h.sluice("serve", node.config, *more).expect(
            2, "m.yaml:4:10: unknown key 'urii'", f"{node.config}: cannot read the models of '{node.place}/none'")
    node.configure("loadsAtOnce: 1000\npoool: {}\n")
    h.sluice("serve", node.config).expect(
        2, f"{node.config}:7:14: 'loadsAtOnce': expected a number from 1 to 64", "did you mean 'pool'?")
    assert not os.path.exists(node.directory), "something was made for a config with mistakes"


@check()
def a_config_that_is_right_is_told_so(h):
    """`--check` says what it checked, warns of a budget that no machine has, and makes nothing."""
    node = Node(h)
    node.configure(model("a", "s3://b/a/") + model("b", "s3://b/b/"))
    done = h.sluice("serve", node.config, "--check").expect(0)
    assert done.out == f"ok: {node.config}: 2 models, budget 1.00 GiB\n", done.out
    node.configure(budget="900TiB")
    done = h.sluice("serve", node.config, "--check").expect(0, "budgetBytes is 900 TiB, and there are ")
    assert done.out == f"ok: {node.config}: 0 models, budget 900 TiB\n", done.out
    answer = json.loads(h.sluice("serve", node.config, "--check", "--json").expect(0).out)
    assert answer["models"] == 0 and answer["budget_bytes"] == 900 << 40, answer
    assert not os.path.exists(node.directory), "something was made by a check"


def tensors(h, count, floats):
    """A safetensors file of vectors."""
    head, at = {}, 0
    for number in range(count):
        head[f"t{number}"] = {"dtype": "F32", "shape": [floats], "data_offsets": [at, at + 4 * floats]}
        at += 4 * floats
    text = json.dumps(head).encode()
    path = os.path.join(h.directory("pooled"), "model.safetensors")
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + os.urandom(at))
    return path


@check(smoke=True)
def clients_of_a_pool_share_a_load_and_outlive_the_daemon(h):
    """Eight processes attach at once: one load, eight leases; a kill of one frees its own; kill -9 of the daemon ends
    none, and the next daemon loads again."""
    node = Node(h)
    path = os.path.join(node.place, "pool.sock")
    node.configure(f"pool: {{socket: {path}}}\n" + model("m", tensors(h, 16, 1 << 18)) + "sink: {pool: {}}\n")
    node.start()
    attach = [h.program, "pool", "attach", "m", "--socket", path, "--", "sleep", "1000"]
    clients = [h.spawn("pool-clients", attach, env=h.environment(), start_new_session=True) for _ in range(8)]
    try:
        share_a_pool(h, node, path, clients)
    finally:
        for client in clients:  # with the command that each of them runs
            os.killpg(client.pid, signal.SIGKILL)
            client.wait()


def share_a_pool(h, node, path, clients):
    def references():
        return sum(version["reference_count"] for version in node.model("m").get("versions", []))

    wait_for("eight leases", lambda: references() == 8)
    assert node.model("m")["versions"][0]["holder"] == "pool", node.model("m")
    assert node.get("/v1/loads")[1]["load_count"] == 1, "more than one load"
    clients[0].send_signal(signal.SIGKILL)
    wait_for("the end of the lease of a client that was killed", lambda: references() == 7)
    status, answer = node.ask("POST", "/v1/models/m/evict")
    assert status == 409 and answer["error"]["code"] == "busy", answer
    node.end(signal.SIGKILL)
    assert all(client.poll() is None for client in clients[1:]), "a client ended with the daemon"
    node.start()
    node.await_state("m")
    h.sluice("pool", "attach", "m", "--socket", path, "--json").expect(0, '"m"')
    assert node.end() == 0
