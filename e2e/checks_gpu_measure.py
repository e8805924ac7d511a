"""What is measured on a GPU, against the fake driver: here it only has to run."""
import csv
import os
import re
import subprocess
import sys

from harness import CACHE, ROOT, Skip, check

ROOMS = ("client/cuda", "device/kernels", "device/gpu", "device/fill")


def parts(h):
    """The folders of programs and of the fake driver."""
    folder = os.path.dirname(h.program)
    fake = os.path.join(folder, "tests", "fake_cuda")
    if not os.access(os.path.join(folder, "gpu_check"), os.X_OK) or not os.path.exists(os.path.join(fake, "libcuda.so.1")):
        raise Skip("no gpu_check and no fake driver beside the program")
    return folder, fake


def gpu_check(h, *arguments, env=None):
    return subprocess.run([sys.executable, os.path.join(ROOT, "scripts", "gpu-check"), *arguments], env=h.environment({"SLUICE_CACHE": CACHE, **(env or {})}),
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600)


@check()
def gpu_check_runs_through_with_a_fake_driver(h):
    """Every section and every case of scripts/gpu-check, in small, from its archive alone, in an empty root and without network: nothing
    fails, little is skipped, and what it says last is short."""
    folder, fake = parts(h)
    out = h.directory("gpu")
    done = gpu_check(h, "--rehearse", "--fake", fake, "--bin", folder, "--out", out)
    lines = done.stdout.strip().splitlines() or [done.stderr[-500:]]
    failed = [line for line in lines if line.startswith("FAIL ")]
    assert done.returncode == 0, "; ".join(failed) or lines[-1]
    passed, skipped = map(int, re.fullmatch(r"(\d+) passed, 0 failed, (\d+) skipped", lines[-1]).groups())
    assert passed > 200, lines[-1]
    seconds = next(float(line.split("all of it")[1].split()[0]) for line in lines if line.startswith("time "))
    summary = lines[next(i for i, line in enumerate(lines) if line.startswith("time ")):]
    assert seconds < 480 and sum(map(len, summary)) < 12000, (seconds, len(summary))
    where = next(line for line in lines if "rehearsed" in line).partition("rehearsed ")[2]
    return f"{passed} rows, {skipped} left out, {seconds:.0f} s, {where}"


def sections(out):
    """{section: verdicts} of the table."""
    found = {}
    with open(os.path.join(out, "gpu-check.csv"), newline="") as file:
        for row in csv.DictReader(file):
            found.setdefault(row["section"], []).append(row["verdict"])
    return found


@check()
def a_row_of_gpu_check_that_fails_loses_itself_alone(h):
    """A driver that exports no memory: sections that need that fail, say so last, and all others are measured."""
    folder, fake = parts(h)
    out = h.directory("gpu")
    refusals = ",".join(f"cuMemExportToShareableHandle:{nth}:999" for nth in range(1, 13))
    done = gpu_check(h, "--quick", "--only", "driver", "--fake", fake, "--bin", folder, "--out", out, env={"FAKE_CUDA_FAIL": refusals})
    found = sections(out)
    assert done.returncode == 1 and "FAIL rules" in done.stdout and "FAIL attach" in done.stdout, done.stdout[-1500:]
    whole = ("device", "kernels", "copies", "host", "errors")
    assert all(name in found and "FAIL" not in found[name] for name in whole), {name: found.get(name) for name in whole}
    assert {"rules", "alone", "costs", "attach", "ring", "holders"} <= found.keys(), sorted(found)
