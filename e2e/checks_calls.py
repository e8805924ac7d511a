"""System calls of a load, counted by strace: these are the same on a busy machine and on a quiet one, so a bound on them tells of
a copy, a poll or a file too many where times cannot."""
import collections
import os
import subprocess

from checks_stores import BUCKET
from harness import check, need_program, pinned, sha256_file

ROOMS = ("core/base", "storage/net", "storage/http", "load/reader", "core/sink")
LARGE_BYTES, SMALL_BYTES = 128 << 20, 1 << 20
# Measured: 14 to 16 for each MB in all, 2.3 to write, 4.3 to 6.3 to read; 476 to 577 and 82 files with a small object; 297
# where all is there. What comes in smaller pieces than usual takes more of them, and strace delays both sides.
CALLS_PER_MB, WRITES_PER_MB, READS_PER_MB = 32, 6, 12
START_CALLS, START_FILES, AGAIN_CALLS = 640, 95, 400
WRITES = ("pwrite64", "pwritev", "write", "writev")
READS = ("recvfrom", "recvmsg", "read", "readv", "splice")


def object_of(nginx, name, count):
    path = os.path.join(nginx.root, name)
    with open(path, "wb") as file:
        for _ in range(count >> 20):
            file.write(os.urandom(1 << 20))
    return sha256_file(path), f"{nginx.http}/{name}"


def traced(h, *arguments, env=None):
    """How often each system call was made by one run, all threads together."""
    strace, trace = need_program("strace"), os.path.join(h.disk, "calls.trace")
    done = subprocess.run([strace, "-f", "-qq", "-o", trace, h.program, *arguments, "--progress", "none"],
                          env=h.environment(env), timeout=300, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    calls = collections.Counter()
    with open(trace) as file:
        for line in file:
            words = line.split(None, 1)[1]
            if not words.startswith(("<...", "+++", "---")):  # the end of one that began above; signals
                calls[words.split("(", 1)[0]] += 1
    os.remove(trace)
    assert calls["execve"] == 1, calls
    return calls


def calls_of(h, uri, digest):
    """Those of one load."""
    to = h.fresh()
    calls = traced(h, "load", uri, "--to", to, *pinned(range_bytes=8 << 20))
    assert sha256_file(os.path.join(to, os.path.basename(uri))) == digest
    h.remove(to)
    return calls


def sum_of(calls, names):
    return sum(calls[name] for name in names)


@check("nginx")
def a_load_makes_few_system_calls(h, nginx):
    """So many for each MB over plain HTTP: in all, to write and to read."""
    digest, uri = object_of(nginx, "calls.bin", LARGE_BYTES)
    calls, megabytes = calls_of(h, uri, digest), LARGE_BYTES / 1e6
    found = {"all": calls.total(), "writes": sum_of(calls, WRITES), "reads": sum_of(calls, READS)}
    found = {name: count / megabytes for name, count in found.items()}
    print("  for each MB: " + ", ".join(f"{count:.1f} {name}" for name, count in found.items()))
    assert found["writes"] <= WRITES_PER_MB and found["reads"] <= READS_PER_MB and found["all"] <= CALLS_PER_MB, \
        f"{found}, {calls.most_common(8)}"


@check("nginx")
def a_start_makes_few_system_calls(h, nginx):
    """A load of 1 MB is mostly its start: libraries, configuration, what the machine is. Few files are opened for that."""
    digest, uri = object_of(nginx, "start.bin", SMALL_BYTES)
    calls = calls_of(h, uri, digest)
    print(f"  {calls.total()} calls, {calls['openat']} files")
    assert calls.total() <= START_CALLS, calls.most_common(10)
    assert calls["openat"] <= START_FILES, calls


@check("versitygw", "minilm")
def a_load_that_finds_everything_there_is_a_start(h, store, minilm):
    """The same version again takes little more than its start: nothing is read anew, whatever its size."""
    store.make_bucket(BUCKET)
    minilm.put(store, BUCKET, "minilm/")
    to, uri = h.fresh(), f"s3://{BUCKET}/minilm/"
    h.load(uri, to, env=store.env()).expect(0)
    calls = traced(h, "load", uri, "--to", to, *pinned(), env=store.env())
    print(f"  {calls.total()} calls, {calls['openat']} files")
    assert calls.total() <= AGAIN_CALLS, calls.most_common(10)
