"""Who pays for the pages of a shared tmpfs, with control groups of version 1 and of version 2."""
import json
import os
import re
import subprocess
import sys

from containers import ControlGroup, need_namespaces
from harness import ROOT, Skip, check

ROOMS = ("core/base", "core/concurrency", "core/sink", "node/pool")
LATE = True
PROGRAM = os.path.join(ROOT, "build-static-full", "sluice")  # where the other kernel sees it, too
WHO_PAYS = os.path.join(ROOT, "e2e", "who_pays.py")
# Version 2 alone, which few machines of continuous integration have.
IN_VERSION_2 = f"""
mount -t sysfs none /sys
mount -t cgroup2 none /sys/fs/cgroup
{{python}} {WHO_PAYS} {{program}}
"""


def judge(told):
    """What holds with both versions."""
    model = told["model_mib"]
    assert told["daemon_loaded"] == told["reader_touched"] == {"daemon": model, "reader": 0}, told
    assert told["loader_ended"] == {"daemon": model, "loader": model}, told
    assert told["greedy_ended"] == -9 and told["greedy_kills"] >= 1 and told["other_kills"] == 0, told
    assert told["greedy_holds"] > 0 and told["daemon_answers"] and told["right"], told
    code, last = told["refused"]
    assert code == 6 and "is 40.0 MiB" in last and ("memory.max" if told["version"] == 2 else "memory.limit_in_bytes") in last, last
    # Pages outlive their group: its parent has them from then on, and a new group of that name does not.
    assert told["daemon_gone"]["files"] and told["daemon_gone"]["all"] >= 2 * model, told
    assert told["daemon_again"] == {"daemon": 0, "all": told["daemon_gone"]["all"]}, told
    assert told["budget_mib"] == told["limit_mib"] * 80 // 100 and told["removed"] == 0, told
    return (f"version {told['version']}, Linux {told['kernel']}: daemon {model} MiB, reader 0, loader {model} after its end; killed alone; "
            f"{told['daemon_gone']['all']} MiB stay with the parent")


@check("static_full")
def cgroup_v1_says_who_pays(h, program):
    """Version 1: whoever writes a page pays, readers nothing, and an OOM kill of one is none of the others'; limits are read right."""
    need_namespaces()
    if ControlGroup.place("memory")[0] != 1:
        raise Skip("this machine has version 2, which the other check tries")
    done = subprocess.run([sys.executable, WHO_PAYS, program], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=600)
    if "Read-only file system" in done.stderr or "Permission denied" in done.stderr:
        raise Skip("no control groups can be made here")
    assert done.returncode == 0, done.stderr[-1500:]
    return judge(json.loads(done.stdout.splitlines()[-1]))


@check("debian_kernel", "static_full")
def cgroup_v2_says_who_pays(h, kernel, _):
    """The same with version 2 alone, on Debian's kernel, with memory.oom.group as a kubelet sets it."""
    out = kernel.run(IN_VERSION_2.format(python=sys.executable, program=PROGRAM))
    told = json.loads(re.search(r"^\{\"version\".*\}$", out, re.MULTILINE)[0])
    assert told["version"] == 2, told
    return judge(told)
