"""What is not a race: stalls, wrong bits, kills. A trial yields (round, figure, value, note); bar.py says what is wanted."""
import hashlib
import json
import mmap
import os
import re
import statistics
import struct
import subprocess
import sys
import threading

import checks_resilience
import checks_verified
import measure
import workloads

PACE = "250000000"  # bytes/s for each connection of the server that stalls
STALL_EVERY, STALL_MS = 100, 5000
KILLS = 100
FLIP_TRIES = 5
TOGETHER, ALONE, TOGETHER_BYTES = (2, 8), 3, 128 << 20
OPENING_BYTES = 128 << 10  # that a load asks for to learn what an object is, and fetches again


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


def flipped_load(bench, data, digest, hashes, places):
    """(the load's result, how many of the wrong bits were published) of one load; None where another byte is wrong."""
    server, to = checks_verified.FlippingServer(data, hashes, places, 1), bench.h.fresh()
    result = bench.h.load(server.url, to, "--set", "verify.sidecar=require").expect(0).json()
    with open(os.path.join(to, "big.bin"), "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as loaded:
        missed = sum(loaded[at] != data[at] for at in places)
        same = hashlib.sha256(loaded).digest() == digest
    bench.h.remove(to)
    server.close()
    return result, missed if same or missed else None


def flips(bench, rounds):
    """One bit wrong in each GB on its way, once: found, and only the ranges that hold them fetched again.

    What a load took in is counted by itself, and so exact: what the server sent also holds what is left of requests that
    were slow and sent again (`hedged`), which is not an answer to a wrong bit. A wrong bit may be in such an answer, which
    nobody reads: then it is not found, since it is not there, and the round is tried again."""
    path, _ = bench.big_signed()
    with open(path, "rb") as file, open(path + ".sluice.json", "rb") as sidecar:
        data, hashes = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ), sidecar.read()
    digest = hashlib.sha256(data).digest()
    for number in range(rounds):
        places = [at + (number * 77_777_777 + 123_456_789) % 1_000_000_000 for at in range(0, len(data) - 1_000_000_000, 1_000_000_000)]
        for _ in range(FLIP_TRIES):
            result, missed = flipped_load(bench, data, digest, hashes, places)
            if missed is None or missed or result["refetched_ranges"] >= len(places):
                break
        again = (result["fetched"] - len(data) - len(hashes) - OPENING_BYTES) / checks_verified.RANGE_BYTES
        note = f"{len(places)} bits in {len(data) / 1e9:.2f} GB, {result['refetched_ranges']} ranges of " \
            f"{checks_verified.RANGE_BYTES / 1e6:.1f} MB came wrong, {again:.2f} fetched twice; {result['hedged']} slow requests sent again"
        yield number, "missed", len(places) if missed is None else missed, note
        yield number, "again", max(0.0, max(again, result["refetched_ranges"]) - len(places)), note


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


class Loads:
    """So many loads of one object that begin at the same time, each into a directory of its own."""

    def __init__(self, bench, uri, count):
        self.bench, self.results, self.places = bench, [None] * count, [bench.h.fresh() for _ in range(count)]
        threads = [threading.Thread(target=self.load, args=(uri, number)) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def load(self, uri, number):
        command = [self.bench.h.program, "load", uri, "--to", self.places[number], "--json", "--progress", "none"]
        process = subprocess.Popen(command, env=self.bench.h.environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        out = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0, out
        self.results[number] = {"cpu": usage.ru_utime + usage.ru_stime, **json.loads(out)}

    def end(self, workload, hashed):
        for place in self.places:
            workload.check(place, hashed)
            self.bench.h.remove(place)

    def of(self, key):
        return [result[key] for result in self.results]


def together(bench, rounds):
    """One load (three times), two, and eight at once, in turn: each gets its share, and none uses more than one alone does."""
    workload = workloads.Workload("together", "128 MiB object, HTTP (nginx)", "http", "together/", [("model.safetensors", TOGETHER_BYTES)])
    workload.make(bench)
    uri = f"{bench.origin}/{workload.prefix}{workload.files[0][0]}"
    for number in range(rounds):
        alone = []
        for count in (*(1,) * ALONE, *TOGETHER):
            measure.warm(bench.h.memory, 2 * count * workload.bytes)
            loads = Loads(bench, uri, count)
            loads.end(workload, number == 0)
            cpu = sum(loads.of("cpu")) / (count * workload.bytes / 1e9)
            if count == 1:
                alone.append((loads.of("connections_most")[0], loads.of("seconds")[0], cpu))
                continue
            alone_most, alone_seconds, alone_cpu = (pick(each) for pick, each in zip((max, statistics.median, statistics.median), zip(*alone)))
            seconds, most = sorted(loads.of("seconds")), max(loads.of("connections_most"))
            note = f"{seconds[0]:.2f} to {seconds[-1]:.2f} s, one alone {alone_seconds:.2f}; at most {most} connections, " \
                f"alone {alone_most}; {cpu:.2f} CPU s/GB, alone {alone_cpu:.2f}"
            yield number, f"apart{count}", seconds[-1] / seconds[0], note
            yield number, f"more{count}", max(0, most - alone_most), note


TITLES = {"stalls": "2 GiB over HTTP, one of 100 answers stalls for 5 s", "flips": "2 GiB over HTTP, one bit wrong in each GB, sidecar",
          "kills": "64 MiB over HTTP, kill -9 at random points, then run again",
          "together": "128 MiB over HTTP, two and eight loads at once"}
TRIALS = {"stalls": stalls, "flips": flips, "kills": kills, "together": together}


def run(bench, name, rounds):
    """Rows of figures.csv, told as they come."""
    rows = []
    for number, figure, value, note in TRIALS[name](bench, rounds):
        rows.append({"workload": name, "round": number, "figure": figure, "value": value, "note": note})
        print(f"  {number} {figure:10} {value:.3f}  {note}", file=sys.stderr)
    return rows

