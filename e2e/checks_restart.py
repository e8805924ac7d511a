"""The pool over restarts: kills of the daemon while clients read, and who keeps their memory for the next one."""
import array
import os
import signal
import socket
import sys
import threading

from checks_pool import SMALL_BYTES, GatedServer, User, mapped_memfds, memfds, need_memory, right_bytes
from checks_serve import Node, model
from harness import check, http_get, wait_for

ROOMS = ("node/pool", "node/pool_server", "node/node", "client/api")
RANGE_SHARE = 20  # a look at the source is less than this part of the object
MODEL_BYTES = 256 << 20
KILLS = 3


class Manager:
    """What systemd does for a unit with FileDescriptorStoreMax=: it keeps descriptors by name."""

    def __init__(self, path):
        self.stored, self.removed, self.lock = [], [], threading.Lock()
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(path)
        self.path = path
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            text, ancillary, _, _ = self.socket.recvmsg(4096, 4096)
            if not text:
                return
            lines = dict(line.split("=", 1) for line in text.decode().splitlines())
            fds = array.array("i")
            for _, _, data in ancillary:
                fds.frombytes(data)
            with self.lock:
                if "FDSTORE" in lines:
                    self.stored += [(lines["FDNAME"], fd) for fd in fds]
                if "FDSTOREREMOVE" in lines:
                    self.removed.append(lines["FDNAME"])
                    for entry in [entry for entry in self.stored if entry[0] == lines["FDNAME"]]:
                        self.stored.remove(entry)
                        os.close(entry[1])

    def count(self):
        with self.lock:
            return len(self.stored)

    def around(self, command):
        """The command with everything that is kept, and which descriptors it must inherit."""
        with self.lock:
            names, fds = ":".join(name for name, _ in self.stored), [fd for _, fd in self.stored]
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "with_descriptors.py")
        return [sys.executable, script, names, ",".join(map(str, fds)), *command], fds

    def end(self):
        self.socket.shutdown(socket.SHUT_RDWR)
        for _, fd in self.stored:
            os.close(fd)
        self.stored = []


class Restarts:
    """A daemon with one model in the pool, and how to start it again."""

    def __init__(self, h, size, keys="", managed=False):
        self.h, self.server, self.node = h, GatedServer(size), Node(h)
        self.server.gate.set()
        self.path = os.path.join(self.node.place, "pool.sock")
        self.manager = Manager(os.path.join(self.node.place, "notify")) if managed else None
        self.node.configure(f"pool: {{socket: {self.path}{keys}}}\n" + model("m", self.server.url) + "sink: {pool: {}}\n",
                            budget=f"{2 * size >> 20}MiB")

    def start(self):
        command, fds, env = [self.h.program, "serve", self.node.config], [], None
        if self.manager:
            command, fds = self.manager.around(command)
            env = {"NOTIFY_SOCKET": self.manager.path}
        self.node.start(command, env, pass_fds=fds)

    def kill(self, number=signal.SIGKILL):
        assert self.node.end(number) == (0 if number == signal.SIGTERM else -number)

    def await_load(self):
        self.node.await_state("m")
        wait_for("the end of the load", lambda: not self.node.model("m")["busy"])

    def metric(self, name):
        text = http_get(f"http://127.0.0.1:{self.node.port}/metrics")[1].decode()
        return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(name + " "))

    def end(self):
        assert self.node.end() == 0
        self.server.close()
        if self.manager:
            self.manager.end()


def mapped_slabs(pid):
    """The inodes of the slabs that a process has mapped; every daemon has a progress page of its own."""
    with open(f"/proc/{pid}/maps") as file:
        return {int(line.split()[4]) for line in file if "/memfd:sluice-slab" in line}


def same_memory(h, restarts, users, files):
    """Kills, while clients read: the next daemon hands out the memory that they have, and reads nothing."""
    size = len(restarts.server.data)
    sent = restarts.server.sent
    for number in [signal.SIGKILL] * KILLS + [signal.SIGTERM]:
        for user in users:
            user.tell("hash")  # under way while the daemon ends
        restarts.kill(number)
        for at, user in enumerate(users):
            assert user.hear() == restarts.server.digests[at], "wrong bytes while the daemon was killed"
        restarts.start()
        assert restarts.node.get("/readyz")[0] == 200, "not ready at once, although all is there"
        again = User(h, restarts.path, len(users))
        assert again.hear() == "attached" and again.ask("state") == "ready"
        assert again.ask("hash") == restarts.server.digests[len(users)], "wrong bytes after a restart"
        assert files(again) == files(users[0]), "the new daemon hands out other memory"
        assert again.end() == 0
        restarts.await_load()
        right_bytes(restarts, users)
    assert restarts.metric("sluice_node_loads_total") == 0, "the model was loaded again"
    assert restarts.server.sent - sent < size // RANGE_SHARE, f"{restarts.server.sent - sent} bytes were read again"
    held = sum(memfds(restarts.node.process.pid).values())
    assert held < 1.05 * size + (4 << 20), f"the daemon holds {held} bytes"
    return f"{KILLS + 1} restarts of {size >> 20} MiB, nothing loaded"


@check()
def a_service_manager_keeps_the_models_of_a_pool(h):
    """kill -9 and SIGTERM of a daemon whose manager keeps descriptors: clients read on, and the next daemon has the same
    sealed memfds, reading nothing; descriptors that are not ours, not sealed or not whole are refused and forgotten."""
    need_memory(MODEL_BYTES)
    restarts = Restarts(h, MODEL_BYTES, managed=True)
    restarts.start()
    users = [User(h, restarts.path, number) for number in range(2)]
    assert [user.hear() for user in users] == ["attached"] * 2
    right_bytes(restarts, users)
    restarts.await_load()
    wait_for("the descriptors", lambda: restarts.manager.count() >= 2)
    kept = restarts.manager.count()
    note = same_memory(h, restarts, users, lambda user: mapped_slabs(user.process.pid))
    assert restarts.manager.count() == kept and not restarts.manager.removed
    foreign(restarts)
    right_bytes(restarts, users)
    assert [user.end() for user in users] == [0, 0]
    restarts.end()
    return f"{note}, {kept} descriptors kept"


def foreign(restarts):
    """What should never be in the store: the model is taken over all the same, and they leave it."""
    manager, ours = restarts.manager, restarts.manager.count()
    unsealed = os.memfd_create("x", os.MFD_ALLOW_SEALING)
    os.ftruncate(unsealed, 4096)
    strange = [("slab.1.0123456789abcdef.0", os.open("/dev/null", os.O_RDONLY)), ("slab.2.0123456789abcdef.0", unsealed),
               ("slab.3.0123456789abcdef.7", os.memfd_create("x"))]
    with manager.lock:
        manager.stored += strange
    restarts.kill()
    restarts.start()
    assert restarts.node.get("/readyz")[0] == 200
    wait_for("an end of what is not ours", lambda: {name for name, _ in strange} <= set(manager.removed))
    assert manager.count() == ours and restarts.node.said("of the descriptor store is not used")
    held = memfds(restarts.node.process.pid)
    assert os.stat(f"/proc/self/fd/{manager.stored[0][1]}").st_ino in held
    restarts.await_load()
    assert restarts.metric("sluice_node_loads_total") == 0


def mapped_files(user, place):
    """The inodes of the files of a pool's directory that a process has mapped."""
    slabs = {os.stat(os.path.join(parent, name)).st_ino
             for parent, _, names in os.walk(place) for name in names if name.startswith("slab-")}
    with open(f"/proc/{user.process.pid}/maps") as file:
        mapped = {int(line.split()[4]) for line in file}
    assert slabs & mapped, "a client has nothing of the pool's directory"
    return slabs & mapped


@check()
def files_of_a_tmpfs_keep_the_models_of_a_pool(h):
    """The same with slabs as files of a tmpfs, without any manager; a kill in mid-load leaves nothing, and what was kept
    is served without its source."""
    need_memory(MODEL_BYTES)
    place = h.fresh("slabs")
    restarts = Restarts(h, MODEL_BYTES, f", directory: {place}")
    restarts.server.gate.clear()
    restarts.start()
    wait_for("a part of it", lambda: restarts.server.sent > MODEL_BYTES // 4)
    restarts.kill()
    assert os.listdir(place) == [".lock"], "a load that was killed left something"
    restarts.server.gate.set()
    restarts.start()
    restarts.await_load()
    users = [User(h, restarts.path, number) for number in range(2)]
    assert [user.hear() for user in users] == ["attached"] * 2
    right_bytes(restarts, users)
    note = same_memory(h, restarts, users, lambda user: mapped_files(user, place))
    assert [user.end() for user in users] == [0, 0]
    restarts.kill()
    restarts.server.close()
    restarts.start()
    assert restarts.node.get("/readyz")[0] == 200, "not ready without its source"
    assert restarts.node.end() == 0
    return note


@check()
def without_a_keeper_a_pool_loads_its_models_again(h):
    """Memfds that nobody keeps: clients of the daemon that was killed read theirs on, and the next one loads the model
    again, once."""
    restarts = Restarts(h, SMALL_BYTES)
    restarts.start()
    user = User(h, restarts.path)
    assert user.hear() == "attached"
    right_bytes(restarts, [user])
    restarts.await_load()
    restarts.kill()
    restarts.start()
    again = User(h, restarts.path)
    assert again.hear() == "attached"
    right_bytes(restarts, [user])
    right_bytes(restarts, [again])
    restarts.await_load()
    assert restarts.metric("sluice_node_loads_total") == 1
    assert not mapped_memfds(user.process.pid) & mapped_memfds(again.process.pid)
    assert [user.end(), again.end()] == [0, 0]
    restarts.end()
