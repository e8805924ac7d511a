"""What is measured on a GPU, against the fake driver: here it only has to run."""
import os
import re
import subprocess
import sys

from harness import ROOT, Skip, check


@check()
def gpu_check_runs_through_with_a_fake_driver(h):
    """Every section and every case of scripts/gpu-check, in small, from its archive alone and without network: nothing fails, little
    is skipped."""
    folder = os.path.dirname(h.program)
    fake = os.path.join(folder, "tests", "fake_cuda")
    if not os.access(os.path.join(folder, "gpu_check"), os.X_OK) or not os.path.exists(os.path.join(fake, "libcuda.so.1")):
        raise Skip("no gpu_check and no fake driver beside the program")
    out = h.directory("gpu")
    done = subprocess.run([sys.executable, os.path.join(ROOT, "scripts", "gpu-check"), "--rehearse", "--fake", fake, "--bin", folder,
                           "--out", out], env=h.environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600)
    lines = done.stdout.strip().splitlines() or [done.stderr[-500:]]
    failed = [line for line in lines if line.startswith("FAIL ")]
    assert done.returncode == 0, "; ".join(failed) or lines[-1]
    passed, skipped = map(int, re.fullmatch(r"(\d+) passed, 0 failed, (\d+) skipped", lines[-1]).groups())
    assert passed > 100, lines[-1]
    return f"{passed} rows, {skipped} left out"
