#!/usr/bin/env python3
"""What little things cost in Python: sluice beside safetensors' safe_open, interleaved, in one process, files in a tmpfs.

    e2e/torch2.py                    once: torch 2 and safetensors
    e2e/bench/small_opens.py [--rounds 7] [--times 200] [--library build/lib/libsluice.so.0]

Rows, of torch and of NumPy: to open a file of 4 kB or of 268 MB (32 tensors) and take one tensor or 20 rows of one; the same of a file that is open, and
30 of one with 300 tensors of 16 kB. Each is done `times` times a round after a warm-up, the two in turn. One line of JSON a row: microseconds,
[median of the rounds' medians, least, most], of both, and the least of all by that of safetensors, which other work on the machine changes least.
The machine should do nothing else.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.dirname(HERE))
import torch2  # noqa: E402

TENSOR, ROWS = "t7", slice(100, 120)


def make(place):
    """A small file and a large one."""
    import torch
    from safetensors.torch import save_file
    save_file({TENSOR: torch.arange(1000.0).reshape(500, 2)}, os.path.join(place, "small.safetensors"))
    save_file({f"t{number}": torch.zeros(2048, 1024) for number in range(32)}, os.path.join(place, "large.safetensors"))
    save_file({f"t{number}": torch.zeros(64, 64) for number in range(300)}, os.path.join(place, "many.safetensors"))


def opened(opener, path, take):
    def work():
        with opener(path) as model:
            take(model)
    return work


def rows(place, framework, theirs_called):
    """(what, ours, theirs)."""
    import safetensors
    import sluice

    def ours(path):
        return sluice.open(path, framework=framework)

    def theirs(path):
        return safetensors.safe_open(path, theirs_called)

    def one(model):
        return model.get_tensor(TENSOR)

    def some(model):
        return model.get_slice(TENSOR)[ROWS]

    def each(model):
        for name in names:
            model.get_tensor(name)

    small, large, many = (os.path.join(place, name + ".safetensors") for name in ("small", "large", "many"))
    for what, path, take in (("open 4 kB, one tensor", small, one), ("open 268 MB, one of 32 tensors", large, one), ("open 268 MB, 20 rows", large, some)):
        yield what, opened(ours, path, take), opened(theirs, path, take)
    for what, path, take in (("one of 4 kB, of an open file", small, one), ("one of 8 MB, of an open file", large, one),
                             ("20 rows of an open file", large, some), ("30 of 16 kB, of an open file", many, each)):
        mine, other = ours(path), theirs(path)
        names = list(mine)[:30]
        yield what, lambda take=take, mine=mine: take(mine), lambda take=take, other=other: take(other)


def microseconds(work, times):
    """The median, and the least."""
    found = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return 1e6 * statistics.median(found), 1e6 * min(found)


def measure(rounds, times):
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        make(place)
        for framework, called in (("torch", "pt"), ("numpy", "np")):
            for what, ours, theirs in rows(place, framework, called):
                count = max(times // 10, 1) if what.startswith("30 of") else times
                found = {"sluice": [], "safetensors": []}
                microseconds(ours, 20), microseconds(theirs, 20)
                for _ in range(rounds):
                    found["sluice"].append(microseconds(ours, count))
                    found["safetensors"].append(microseconds(theirs, count))
                told = {name: [round(pick(median for median, _ in each), 1) for pick in (statistics.median, min, max)] for name, each in found.items()}
                least = {name: min(least for _, least in each) for name, each in found.items()}
                print(json.dumps({"framework": framework, "what": what, **told, "least": round(least["sluice"] / least["safetensors"], 2)}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--times", type=int, default=200)
    parser.add_argument("--library", default=os.path.join(ROOT, "build", "lib", "libsluice.so.0"))
    parser.add_argument("--here", action="store_true", help="in this Python, whatever torch it has")
    wanted = parser.parse_args()
    if wanted.here:
        measure(wanted.rounds, wanted.times)
        return
    if not torch2.there():
        raise SystemExit("no environment with torch 2: e2e/torch2.py makes it")
    env = {**os.environ, "SLUICE_LIBRARY": os.path.abspath(wanted.library), "PYTHONPATH": os.path.join(ROOT, "python"), "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([torch2.PYTHON, "-W", "ignore", os.path.abspath(__file__), "--here", "--rounds", str(wanted.rounds), "--times", str(wanted.times)],
                   check=True, env=env)


if __name__ == "__main__":
    main()
