"""The pool of a real daemon: one load and one copy for many processes, attaches in mid-load, kills, namespaces, leaks."""
import hashlib
import json
import os
import random
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

from checks_resilience import PacedServer
from checks_serve import Node, model
from harness import ROOT, Skip, check, in_starts, wait_for

ROOMS = ("node/pool", "node/pool_server", "client/api", "python")
TENSORS = 16
CLIENTS = 16
# 4096 on a machine that has the memory, twice, and the time.
MODEL_BYTES = int(os.environ.get("SLUICE_E2E_POOL_MIB", "512")) << 20
SMALL_BYTES = 16 << 20
UNPACED = 1 << 40
PATIENCE = 180
ATTACHES, ATTACH_STARTS = 300, 0.2
CONNECTS = 10000
LEAK_BYTES = 16 << 20
RANKS, RANKED_BYTES, ROW_BYTES = 8, 64 << 20, 4096


class GatedServer(PacedServer):
    """One safetensors object; what lies at half of it and after waits for the gate."""

    def __init__(self, size):
        self.gate, self.digests = threading.Event(), []
        super().__init__(self.make(size // TENSORS), UNPACED)
        self.url = self.url.replace("big.bin", "model.safetensors")

    def make(self, tensor_bytes):
        head = {f"t{number}": {"dtype": "U8", "shape": [tensor_bytes // ROW_BYTES, ROW_BYTES],
                               "data_offsets": [number * tensor_bytes, (number + 1) * tensor_bytes]}
                for number in range(TENSORS)}
        text = json.dumps(head).encode()
        data = bytearray(len(text).to_bytes(8, "little") + text)
        for number in range(TENSORS):
            tensor = random.Random(number).randbytes(1 << 20) * (tensor_bytes >> 20)
            self.digests.append(hashlib.sha256(tensor).hexdigest())
            data += tensor
        return memoryview(data)

    def stalls(self, begin):
        if begin >= len(self.data) // 2:
            self.gate.wait(PATIENCE)


def library_of(h):
    path = os.path.join(os.path.dirname(h.program), "lib", "libsluice.so.0")
    if not os.path.exists(path):
        raise Skip("no libsluice.so.0 beside the program")
    return path


class User:
    """A client of the pool in a process of its own (pool_user.py)."""

    def __init__(self, h, path, number=0, around=(), name="m"):
        env = h.environment({"SLUICE_LIBRARY": library_of(h), "PYTHONPATH": os.path.join(ROOT, "python"),
                             "PYTHONDONTWRITEBYTECODE": "1"})
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pool_user.py")
        self.h, self.said = h, b""
        with open(os.path.join(h.logs, "pool-users.log"), "ab") as log:
            self.process = subprocess.Popen([*around, sys.executable, script, path, name, str(number)], bufsize=0,
                                            env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        h.processes.append(self.process)

    def hear(self):
        """Its next line."""
        while b"\n" not in self.said:
            assert select.select([self.process.stdout], [], [], PATIENCE)[0], "a client says nothing"
            more = os.read(self.process.stdout.fileno(), 4096)
            assert more, f"a client ended: {self.h.log_tail('pool-users')}"
            self.said += more
        line, self.said = self.said.split(b"\n", 1)
        return json.loads(line)

    def tell(self, words):
        self.process.stdin.write(words.encode() + b"\n")

    def ask(self, words):
        self.tell(words)
        return self.hear()

    def end(self):
        self.process.stdin.close()
        code = self.process.wait(PATIENCE)
        self.process.stdout.close()
        return code


class Pool:
    """A daemon whose one model is in the pool, and where it comes from."""

    def __init__(self, h, size):
        self.server = GatedServer(size)
        self.node = Node(h)
        self.path = os.path.join(self.node.place, "pool.sock")
        self.node.configure(f"pool: {{socket: {self.path}, uids: [{os.getuid()}]}}\n" + model("m", self.server.url) + "sink: {pool: {}}\n",
                            budget=f"{2 * size >> 20}MiB")
        self.node.start()

    def leases(self):
        return sum(version["reference_count"] for version in self.node.model("m").get("versions", []))

    def await_leases(self, count):
        wait_for(f"{count} leases", lambda: self.leases() == count)

    def end(self):
        assert self.node.end() == 0
        self.server.gate.set()
        self.server.close()


def need_memory(size):
    """The object of the server, the slabs, and some room."""
    with open("/proc/meminfo") as file:
        free = next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable"))
    if free < 3 * size:
        raise Skip(f"{free >> 20} MiB of free memory, which is less than {3 * size >> 20}")


def memfds(pid):
    """{inode: bytes that are in memory} of the memfds that a process has open."""
    found = {}
    for number in os.listdir(f"/proc/{pid}/fd"):
        try:
            if os.readlink(f"/proc/{pid}/fd/{number}").startswith("/memfd:"):
                status = os.stat(f"/proc/{pid}/fd/{number}")
                found[status.st_ino] = status.st_blocks * 512
        except FileNotFoundError:
            continue
    return found


def mapped_memfds(pid):
    """The inodes of the memfds that a process has mapped."""
    with open(f"/proc/{pid}/maps") as file:
        return {int(line.split()[4]) for line in file if "/memfd:" in line}


def own_memory(pid):
    """Bytes that are this process's alone."""
    with open(f"/proc/{pid}/status") as file:
        return int(re.search(r"RssAnon:\s+(\d+) kB", file.read())[1]) << 10


def right_bytes(pool, users):
    for user in users:
        user.tell("hash")
    wrong = [number for number, user in enumerate(users) if user.hear() != pool.server.digests[number]]
    assert not wrong, f"wrong bytes in the tensors {wrong}"


def one_copy(pool, users):
    """The bytes of the shared memory that all of them see, which is the daemon's and nothing else."""
    held = memfds(pool.node.process.pid)
    assert sum(held.values()) < 1.05 * MODEL_BYTES + (4 << 20), f"the daemon holds {sum(held.values())} bytes"
    own = own_memory(pool.node.process.pid)
    assert own < MODEL_BYTES // 4, f"the daemon has {own} bytes beside the model's"
    for user in users:
        mapped = mapped_memfds(user.process.pid)
        assert mapped and mapped <= held.keys(), "a client has memory that is not the daemon's"
        own = own_memory(user.process.pid)
        assert own < MODEL_BYTES // 4, f"a client has {own} bytes of its own"
    return sum(held.values())


@check(alone=MODEL_BYTES > 1 << 30)  # then it takes most of the memory
def sixteen_processes_of_a_pool_make_one_load_and_one_copy(h):
    """Sixteen processes attach in mid-load and use tensors before its end; its bytes come once and are in memory once;
    kills of a client and of the daemon harm nobody else."""
    need_memory(MODEL_BYTES)
    pool = Pool(h, MODEL_BYTES)
    users = [User(h, pool.path, number) for number in range(CLIENTS)]
    assert [user.hear() for user in users] == ["attached"] * CLIENTS
    assert users[0].ask("hash") == pool.server.digests[0], "wrong bytes in mid-load"
    assert users[0].ask("state") == "loading" and pool.server.sent < 0.75 * MODEL_BYTES, "the load ended before"
    pool.server.gate.set()
    right_bytes(pool, users)
    pool.node.await_state("m")
    share = pool.server.sent / MODEL_BYTES
    assert share < 1.2 and pool.node.get("/v1/loads")[1]["load_count"] == 1, f"{share:.2f} times the object"
    held = one_copy(pool, users)
    outlive(h, pool, users)
    pool.end()
    return f"{MODEL_BYTES >> 20} MiB, {share:.3f} times from the source; {held / MODEL_BYTES:.3f} copies in memory"


@check(alone=True, late=True)  # it measures time
def an_attach_takes_less_than_two_milliseconds(h):
    """To a model that is there, beside fifteen other clients; in starts of the program."""
    pool = Pool(h, SMALL_BYTES)
    pool.server.gate.set()
    users = [User(h, pool.path, number) for number in range(CLIENTS)]
    assert [user.hear() for user in users] == ["attached"] * CLIENTS
    pool.node.await_state("m")
    median = in_starts(h, ATTACH_STARTS, lambda: users[0].ask(f"time {ATTACHES}"))
    assert [user.end() for user in users] == [0] * CLIENTS
    pool.end()
    return f"{median * 1e6:.0f} µs (median of {ATTACHES})"


def part_of(data, number, dim, rank):
    """The hash of a rank's part of a tensor."""
    size = RANKED_BYTES // TENSORS
    begin = len(data) - RANKED_BYTES + number * size
    tensor = data[begin:begin + size]
    if dim == 0:
        return hashlib.sha256(tensor[rank * size // RANKS:(rank + 1) * size // RANKS]).hexdigest()
    part = ROW_BYTES // RANKS
    rows = (tensor[at + rank * part:at + (rank + 1) * part] for at in range(0, size, ROW_BYTES))
    return hashlib.sha256(b"".join(rows)).hexdigest()


@check()
def ranks_of_a_node_take_their_parts_and_the_bytes_come_once(h):
    """Eight ranks of a node, a process each, take their rows and their columns of the same tensors at once, the first of them in
    mid-load: each has its own part, and the store sends the model once."""
    pool = Pool(h, RANKED_BYTES)
    ranks = [User(h, pool.path, number) for number in range(RANKS)]
    assert [rank.hear() for rank in ranks] == ["attached"] * RANKS
    for number, gated in ((0, True), (1, True), (TENSORS - 1, False), (TENSORS // 2, False)):
        if not gated:
            pool.server.gate.set()
        for dim in (0, 1):
            for rank, user in enumerate(ranks):
                user.tell(f"part t{number} {dim} {rank} {RANKS}")
            wrong = [rank for rank, user in enumerate(ranks) if user.hear() != part_of(pool.server.data, number, dim, rank)]
            assert not wrong, f"wrong parts of t{number} along {dim}: ranks {wrong}"
    pool.node.await_state("m")
    share = pool.server.sent / RANKED_BYTES
    assert share < 1.2 and pool.node.get("/v1/loads")[1]["load_count"] == 1, f"{share:.2f} times the object"
    assert [user.end() for user in ranks] == [0] * RANKS
    pool.end()
    return f"{RANKS} ranks, rows and columns of 4 tensors: {share:.3f} times {RANKED_BYTES >> 20} MiB from the source"


def outlive(h, pool, users):
    """A client that is killed, then the daemon."""
    pool.await_leases(CLIENTS)
    last = users.pop()
    last.process.kill()
    pool.await_leases(CLIENTS - 1)
    assert pool.node.end(signal.SIGKILL) == -signal.SIGKILL
    right_bytes(pool, users)
    assert [user.end() for user in users] == [0] * len(users), "a client failed after the daemon was killed"
    pool.node.start()
    again = User(h, pool.path)
    assert again.hear() == "attached"
    right_bytes(pool, [again])
    pool.node.await_state("m")
    assert again.end() == 0


@check()
def a_client_of_a_pool_lives_in_other_namespaces(h):
    """A client in a user, PID, mount and network namespace of its own reads the same bytes; its end ends its lease."""
    around = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount", "--net"]
    if subprocess.run([*around, "true"], capture_output=True).returncode:
        raise Skip("may not make namespaces here")
    pool = Pool(h, SMALL_BYTES)
    pool.server.gate.set()
    users = [User(h, pool.path, 0, around), User(h, pool.path, 1)]
    assert [user.hear() for user in users] == ["attached"] * 2
    right_bytes(pool, users)
    pool.await_leases(2)
    users[0].process.kill()
    pool.await_leases(1)
    assert users[1].ask("hash") == pool.server.digests[1]
    assert users[1].end() == 0
    pool.end()


def connect(path, number):
    """Of three, one goes at once, the others after a few bytes that mean nothing."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        # A wait for a full backlog; settimeout() would make that a failure at once.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", PATIENCE, 0))
        client.connect(path)
        try:
            if number % 3:
                client.send(os.urandom(16 * (number % 3)))
        except OSError:
            pass  # it was refused before


@check()
def ten_thousand_connections_leave_nothing_in_a_pool(h):
    """10,000 connections that come and go leave the daemon no descriptor and no memory, and clients that attach between them
    are served."""
    pool = Pool(h, SMALL_BYTES)
    pool.server.gate.set()
    pool.node.await_state("m")
    user = User(h, pool.path)
    user.hear()
    right_bytes(pool, [user])

    def descriptors():
        return len(os.listdir(f"/proc/{pool.node.process.pid}/fd"))

    wait_for("an end of what came before", lambda: not pool.node.model("m")["busy"])
    held, own, start = descriptors(), own_memory(pool.node.process.pid), time.monotonic()
    for number in range(CONNECTS):
        connect(pool.path, number)
        if number % 1000 == 0:
            user.ask("time 10")
    seconds = time.monotonic() - start
    wait_for(f"{held} descriptors, as before", lambda: descriptors() <= held)  # less: an idle one to the source has gone
    after, grown = descriptors(), own_memory(pool.node.process.pid) - own
    assert grown < LEAK_BYTES, f"the daemon has {grown} bytes more"
    assert user.end() == 0
    pool.end()
    return f"{CONNECTS} in {seconds:.1f} s; {held} descriptors before, {after} after, {grown >> 10} KiB more memory"
