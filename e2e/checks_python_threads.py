"""Many threads of Python in one model, with and without a global lock (scripts/free-threaded makes a Python without one)."""
import json
import os
import random
import struct
import subprocess

from checks_python import FilePool
from checks_python_open import run_tests
from harness import ROOT, Skip, check

ROOMS = ("client/api", "lib/open", "python")
PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "free_threads.py")
TENSORS = 12
SERIES = ("3.13", "3.14")


def without_a_lock():
    """{version: the Python that scripts/free-threaded made}, at least one."""
    found = {}
    for series in SERIES:
        done = subprocess.run([os.path.join(ROOT, "scripts", "free-threaded"), "--where", series], capture_output=True, text=True)
        if done.returncode == 0:
            found[series] = done.stdout.strip()
    if not found:
        raise Skip("no Python without a global lock: scripts/free-threaded makes one")
    return found


@check()
def many_threads_share_models_writers_and_tensors(h):
    """One model, one tensor, one writer, one file that is changed, used and closed by many threads at once."""
    return run_tests(h, "test_threads")


@check()
def a_python_without_a_lock_runs_it(h):
    """The same under a Python whose threads truly run at once; importing sluice leaves it so."""
    return "; ".join(f"{series}: {run_tests(h, 'test_threads', python=python)}" for series, python in without_a_lock().items())


def model_file(path):
    """Tensors of random numbers."""
    head = {f"t{number}": {"dtype": "F32", "shape": [50, 20], "data_offsets": [4000 * number, 4000 * (number + 1)]} for number in range(TENSORS)}
    text = json.dumps(head).encode()
    values = random.Random(1)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.write(struct.pack(f"<{1000 * TENSORS}f", *(values.uniform(-1, 1) for _ in range(1000 * TENSORS))))


@check()
def a_python_without_a_lock_attaches(h):
    """Threads that truly run at once attach to the pool, look, copy, close what others look at; also with torch, where it was put into that
    Python (scripts/free-threaded --torch)."""
    pythons, path = without_a_lock(), os.path.join(h.directory("free-threads"), "m.safetensors")
    model_file(path)
    pool, said = FilePool(h, f"file://{path}"), []
    for series, python in pythons.items():
        *frameworks, no, lock = pool.python("-W", "ignore", PROGRAM, pool.path, path, program=python).split()
        assert (no, lock) == ("no", "lock") and frameworks[0] == "numpy", frameworks
        said.append(f"{series}: {' and '.join(frameworks)}")
    pool.end()
    return "; ".join(said)
