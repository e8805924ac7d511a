"""What happens around a load while it runs: kills at random points, stalls by chance, a stopped process, a full disk."""
import hashlib
import os
import random
import re
import signal
import socket
import struct
import subprocess
import threading
import time

from harness import CONNECTIONS, RANGE_BYTES, Skip, check, pinned, sha256_file, wait_for

ROOMS = ("storage/net", "storage/http", "core/sink", "core/concurrency", "load/reader", "load/publish", "load/load")
OBJECT_BYTES = 64 << 20
PIECE_BYTES = 64 << 10
FIRST_BYTES = 64 << 10  # that a load asks for to learn what an object is
WINDOW_BYTES, UNTOLD_BYTES = 256 << 10, 1 << 20  # of a connection: read, not written; written, not told (reader/writer.c)
STAND_INS = 2  # connections that stand in for those that seem to stall
WASTE_BYTES = OBJECT_BYTES // 50  # that a load may fetch in vain (reader/jobs.c), killed or not
STALL_EVERY = 30
FOREVER = 1000.0  # seconds, which no check waits for
BEFORE, WITHIN = "before", "within"


class PacedServer:
    """One object by ranges, at a pace for each connection. Counts the bytes of bodies that it sent; of its answers one in
    stall_every stalls, in turn before its head and within its body, and so do the first silent_openings that ask for
    the object's first bytes."""

    def __init__(self, data, bytes_per_second, stall_every=0, stall_seconds=5.0, silent_openings=0):
        self.data, self.pace = data, bytes_per_second
        self.openings, self.silent_openings = 0, silent_openings
        self.stall_every, self.stall_seconds, self.closed = stall_every, stall_seconds, threading.Event()
        self.lock, self.sent, self.answers, self.stalled, self.open = threading.Lock(), 0, 0, 0, 0
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}/big.bin"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                peer, _ = self.listener.accept()
            except OSError:
                return
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self.talk, args=(peer,), daemon=True).start()

    def count_open(self, change):
        with self.lock:
            self.open += change

    def talk(self, peer):
        self.count_open(1)
        try:
            with peer:
                while self.answer(peer):
                    pass
        except OSError:
            pass
        self.count_open(-1)

    def taken(self):
        """Bytes of bodies that a client which is stopped has read: those sent less what lies in sockets. A head or a
        piece more or less."""
        port, sent, queued = f":{self.listener.getsockname()[1]:04X}", self.sent, 0
        with open("/proc/net/tcp") as file:
            for line in file:
                _, local, remote, _, queues, *_ = line.split()
                if local.endswith(port):
                    queued += int(queues.split(":")[0], 16)
                elif remote.endswith(port):
                    queued += int(queues.split(":")[1], 16)
        return sent - queued

    def answer(self, peer):
        head = b""
        while b"\r\n\r\n" not in head:
            more = peer.recv(8192)
            if not more:
                return False
            head += more
        found = re.search(rb"[Rr]ange: bytes=(\d+)-(\d+)", head)
        begin, end = int(found[1]), min(int(found[2]) + 1, len(self.data))
        stall = self.opens(begin, end) or self.stalls(begin)
        if stall == BEFORE:
            self.closed.wait(self.stall_seconds)
        peer.sendall(f"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {begin}-{end - 1}/{len(self.data)}\r\n"
                     f"Content-Length: {end - begin}\r\nETag: \"one\"\r\n\r\n".encode())
        started = time.monotonic()
        for at in range(begin, end, PIECE_BYTES):
            piece = self.data[at:min(at + PIECE_BYTES, end)]
            peer.sendall(piece)
            with self.lock:
                self.sent += len(piece)
            if stall == WITHIN and at == begin:
                self.closed.wait(self.stall_seconds)
            early = (at + len(piece) - begin) / self.pace - (time.monotonic() - started)
            if early > 0:
                time.sleep(early)
        return True

    def opens(self, begin, end):
        """BEFORE, if it is one of the first requests to learn what the object is."""
        with self.lock:
            opening = not begin and end < RANGE_BYTES
            self.openings += opening
            self.stalled += opening and self.openings <= self.silent_openings
            return BEFORE if opening and self.openings <= self.silent_openings else None

    def stalls(self, begin):
        """None, BEFORE or WITHIN; the first bytes of the object do not."""
        with self.lock:
            self.answers += bool(begin)
            if not begin or not self.stall_every or self.answers % self.stall_every != self.stall_every // 2:
                return None
            self.stalled += 1
            return (BEFORE, WITHIN)[self.stalled % 2]

    def close(self):
        self.closed.set()
        self.listener.close()


def paced(bytes_per_second, **options):
    data = random.Random(7).randbytes(OBJECT_BYTES)
    return PacedServer(data, bytes_per_second, **options), hashlib.sha256(data).hexdigest()


def small_tmpfs(h, size):
    """A tmpfs that holds one copy of the object and little more, or a skip."""
    if os.getuid():
        raise Skip("needs root to mount a tmpfs")
    mount = h.fresh("small")
    os.mkdir(mount)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", mount], capture_output=True).returncode:
        raise Skip("may not mount a tmpfs here")
    h.mounts.append(mount)
    return os.path.join(mount, "model")


def journalled(to):
    """Bytes that the journal of a load vouches for (sink/journal.c)."""
    try:
        with open(os.path.join(to, ".sluice", "journal"), "rb") as file:
            records = file.read()[64:]
    except FileNotFoundError:
        return 0
    pieces = [struct.unpack_from("<IIQQ", records, at) for at in range(0, len(records) - 39, 40)]
    end, total = 0, 0
    for kind, _, first, last in sorted(pieces, key=lambda piece: piece[2]):
        if kind == 1 and last > end:
            total, end = total + last - max(first, end), last
    return total


@check()
def killed_at_random_points(h):
    """kill -9 at random points, again and again into one small tmpfs: never a wrong byte, and no more is fetched
    again than was in flight: of each connection what it has not told the journal. SLUICE_E2E_KILLS says how often,
    12 without."""
    wanted = int(os.environ.get("SLUICE_E2E_KILLS", "12"))
    server, digest = paced(32 << 20)
    to = small_tmpfs(h, OBJECT_BYTES + (8 << 20))
    kills, loads, worst, most, chance = 0, 0, 0, 0, random.Random(3)
    while kills < wanted:
        range_bytes, killed = (RANGE_BYTES, 16 * RANGE_BYTES)[loads % 2], 0
        each = min(range_bytes, UNTOLD_BYTES + WINDOW_BYTES)
        in_flight = CONNECTIONS * each
        while True:
            wait_for("connections to end", lambda: not server.open, 30)
            before, noted = server.sent, journalled(to)
            process = h.start("load", server.url, "--to", to, "--progress", "none", *pinned(range_bytes=range_bytes))
            try:
                process.wait(chance.uniform(0.01, 0.7) if kills < wanted else 300)
                break
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGSTOP)
                taken = server.taken()
                process.send_signal(signal.SIGKILL)
                process.wait()
            kills, killed = kills + 1, killed + 1
            if os.path.exists(os.path.join(to, ".sluice", "ready")):
                assert sha256_file(os.path.join(to, "big.bin")) == digest, "published and wrong"
                continue
            # each run asks once for the object's first bytes: they are not in the journal
            lost = taken - before - (journalled(to) - noted) - FIRST_BYTES
            if lost > worst:
                worst, most = lost, in_flight
            # where the machine is busy, connections stand in for others, or are given up
            assert lost <= in_flight + STAND_INS * each + WASTE_BYTES, f"kill {kills} cost {lost} bytes, {in_flight} were in flight"
        assert process.returncode == 0, f"the load after {killed} kills ended with {process.returncode}: {h.said(process)}"
        assert sha256_file(os.path.join(to, "big.bin")) == digest, "wrong bytes"
        loads += 1
        h.remove(to)
    server.close()
    return f"{kills} kills in {loads} loads; at most {worst / 1e6:.1f} MB a kill fetched again, {most / 1e6:.1f} in flight"


def stalling_load(h, *more):
    """(bytes that came twice, stalls) of one load."""
    server, digest = paced(16 << 20, stall_every=STALL_EVERY, stall_seconds=FOREVER)
    to = h.fresh()
    h.load(server.url, to, "--range-bytes", str(RANGE_BYTES), "--stall-seconds", str(int(FOREVER)), *more).expect(0)
    assert sha256_file(os.path.join(to, "big.bin")) == digest
    h.remove(to)
    server.close()
    return server.sent - OBJECT_BYTES - FIRST_BYTES, server.stalled


@check()
def stalls_by_chance_cost_little(h):
    """3 % of the responses never come, or not to their end: none is waited for, and few bytes come twice. What that costs
    beside a load without stalls is the benchmark's to say (its trials)."""
    told = []
    for more in ((), ("--connections", "4"), ("--connections", "16")):
        again, stalled = stalling_load(h, *more)
        assert stalled, "nothing stalled"
        assert again <= 0.02 * OBJECT_BYTES, f"{again} bytes came twice"
        told.append(f"{' '.join(more) or 'auto'}: {stalled} stalls, {100 * again / OBJECT_BYTES:.2f} % came twice")
    return "; ".join(told)


@check()
def a_silent_opening_is_not_waited_for(h):
    """The first request of a load, which has no siblings, is not answered: it is sent once more on another connection,
    long before that is a stall, and counted."""
    server, digest = paced(64 << 20, stall_seconds=FOREVER, silent_openings=1)
    to = h.fresh()
    result = h.load(server.url, to, "--stall-seconds", str(int(FOREVER)), "--connections", str(CONNECTIONS)).expect(0).json()
    assert sha256_file(os.path.join(to, "big.bin")) == digest
    assert server.openings == 2, f"{server.openings} requests for the first bytes"
    assert result["hedged"] >= 1, "it is not counted"
    server.close()


@check()
def a_stopped_process_goes_on(h):
    """SIGSTOP for longer than stallSeconds, then SIGCONT: the time was not the server's, the load ends well."""
    server, digest = paced(8 << 20)
    to = h.fresh()
    process = h.start("load", server.url, "--to", to, "--progress", "none", "--stall-seconds", "2", *pinned())
    wait_for("bytes", lambda: server.sent > 8 << 20)
    process.send_signal(signal.SIGSTOP)
    time.sleep(3)
    process.send_signal(signal.SIGCONT)
    assert process.wait(300) == 0
    assert sha256_file(os.path.join(to, "big.bin")) == digest
    again = server.sent - OBJECT_BYTES
    assert again <= CONNECTIONS * RANGE_BYTES, f"{again} bytes came twice"
    server.close()
    return f"{again / 1e6:.1f} MB came twice"


@check()
def a_disk_that_fills_up_ends_the_load(h):
    """Somebody else takes the space in mid-load: 6, nothing is published; with space again the load goes on."""
    server, digest = paced(8 << 20)
    to = small_tmpfs(h, OBJECT_BYTES + (8 << 20))
    process = h.start("load", server.url, "--to", to, "--progress", "none", *pinned())
    wait_for("bytes", lambda: server.sent > 16 << 20)
    filler = os.path.join(os.path.dirname(to), "filler")
    with open(filler, "wb", buffering=0) as file:
        try:
            while file.write(bytes(1 << 20)):
                pass
        except OSError:
            pass
    code = process.wait(300)
    assert code == 6, f"exit code {code}"
    assert not os.path.exists(os.path.join(to, ".sluice", "ready")), "ready exists"
    os.unlink(filler)
    result = h.load(server.url, to, *pinned()).expect(0).json()
    assert sha256_file(os.path.join(to, "big.bin")) == digest
    assert result["resumed"] > 8 << 20, f"only {result['resumed']} bytes were resumed"
    server.close()
    return f"{result['resumed'] / 1e6:.0f} MB resumed"
