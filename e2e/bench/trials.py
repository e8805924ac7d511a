"""What is not a race: stalls, wrong bits, kills. A trial yields (round, figure, value, note); bar.py says what is wanted."""
import mmap
import os
import re
import struct
import sys

import checks_resilience
import checks_verified
from harness import sha256_file
import measure

PACE = "250000000"  # bytes/s for each connection of the server that stalls
STALL_EVERY, STALL_MS = 100, 5000
KILLS = 100


class Counted:
    """nginx behind the proxy, which counts."""

    def __init__(self, bench, name, every):
        self.path = os.path.join(bench.h.disk, name)
        port = bench.shaped(name, bench.nginx_port(), "0", PACE, str(every), str(STALL_MS), self.path)
        self.origin = f"http://127.0.0.1:{port}"

    def counts(self):
        """Bytes sent, requests, stalls, so far."""
        with open(self.path, "rb") as file:
            return struct.unpack("=3Q", file.read(24))


def stalls(bench, rounds):
    """Loads from a server that holds back one of a hundred answers for 5 s, at its head or in its middle, and from one that does
    not, in turn."""
    big = bench.big()
    servers = {"calm": Counted(bench, "calm", 0), "stalling": Counted(bench, "stalling", STALL_EVERY)}
    for number in range(rounds):
        seconds = {}
        for name, server in servers.items():
            to, before = bench.h.fresh(), server.counts()
            measure.warm(bench.h.memory, 2 * big.bytes)
            run = bench.h.load(f"{server.origin}/bench/{big.prefix}{big.files[0][0]}", to).expect(0)
            if number == 0:
                big.check(to, True)
            bench.h.remove(to)
            seconds[name], after = run.seconds, server.counts()
        stalled, sent = after[2] - before[2], after[0] - before[0]
        yield number, "extra_s", seconds["stalling"] - seconds["calm"], ""
        yield number, "wasted", 100 * max(0, sent / big.bytes - 1), ""
        yield number, "stalled", stalled, f"{stalled} of {after[1] - before[1]} answers stalled; {seconds['calm']:.2f} s without, " \
            f"{seconds['stalling']:.2f} s with"


def flips(bench, rounds):
    """One bit wrong in each GB on its way, once: found, and only the ranges that hold them fetched again."""
    path, _ = bench.big_signed()
    with open(path, "rb") as file, open(path + ".sluice.json", "rb") as sidecar:
        data, hashes = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ), sidecar.read()
    digest = sha256_file(path)
    for number in range(rounds):
        places = [at + (number * 77_777_777 + 123_456_789) % 1_000_000_000 for at in range(0, len(data) - 1_000_000_000, 1_000_000_000)]
        server, to = checks_verified.FlippingServer(data, hashes, places, 1), bench.h.fresh()
        run = bench.h.load(server.url, to, "--set", "verify.sidecar=require").expect(0)
        found, wrong = run.json()["refetched_ranges"], sha256_file(os.path.join(to, "big.bin")) != digest
        bench.h.remove(to)
        again = max(0, server.sent - len(data) - (1 << 20)) / checks_verified.RANGE_BYTES
        yield number, "missed", len(places) - found + wrong, ""
        yield number, "again", max(0.0, again - len(places)), f"{len(places)} bits in {len(data) / 1e9:.2f} GB, " \
            f"{(server.sent - len(data)) / 1e6:.1f} MB fetched twice, ranges of {checks_verified.RANGE_BYTES / 1e6:.1f} MB"


def kills(bench, rounds):
    """kill -9 at 100 random points, run again: never a wrong byte, and no more fetched again than was in flight."""
    before = os.environ.get("SLUICE_E2E_KILLS")
    os.environ["SLUICE_E2E_KILLS"] = before or str(KILLS)
    try:
        note = checks_resilience.killed_at_random_points(bench.h)
    except AssertionError as error:
        yield 0, "wrong", 1, str(error)
        return
    finally:
        if before is None:
            del os.environ["SLUICE_E2E_KILLS"]
    yield 0, "wrong", 0, note
    found = re.search(r"at most ([\d.]+) MB a kill fetched again, ([\d.]+) in flight", note)
    if found:
        yield 0, "beyond", float(found[1]) / float(found[2]), ""


TITLES = {"stalls": "2 GiB over HTTP, one of 100 answers stalls for 5 s", "flips": "2 GiB over HTTP, one bit wrong in each GB, sidecar",
          "kills": "64 MiB over HTTP, kill -9 at random points, then run again"}
TRIALS = {"stalls": stalls, "flips": flips, "kills": kills}


def run(bench, name, rounds):
    """Rows of figures.csv, told as they come."""
    rows = []
    for number, figure, value, note in TRIALS[name](bench, rounds):
        rows.append({"workload": name, "round": number, "figure": figure, "value": value, "note": note})
        print(f"  {number} {figure:10} {value:.3f}  {note}", file=sys.stderr)
    return rows

