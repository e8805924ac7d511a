"""Finds the files of checks, and knows which rooms of src/ each of them belongs to.

A file says so at its head: ROOMS = ("storage/s3", "load/reader"), by the names of sluice_layer(...) in CMakeLists.txt, or
OUTSIDE. A file that is the only real proof of a room belongs to it. Every room has a file.
"""
import glob
import importlib
import os
import re
import sys

import harness

OUTSIDE = ("python", "packaging", "charts", "docs")


def names():
    """Of all rooms."""
    with open(os.path.join(harness.ROOT, "CMakeLists.txt"), encoding="utf-8") as file:
        return [*re.findall(r"^sluice_layer\((\S+)", file.read(), re.MULTILINE), *OUTSIDE]


def registers(path):
    """Has it checks or fixtures?"""
    with open(path, encoding="utf-8") as file:
        return re.search(r"^@(check|fixture)\(", file.read(), re.MULTILINE)


def find():
    """Import every file here that registers checks or fixtures, and sort the checks: {name of a file of checks: its rooms}."""
    found = {}
    for path in sorted(glob.glob(os.path.join(harness.ROOT, "e2e", "*.py"))):
        name = os.path.basename(path)[:-3]
        if name.startswith("checks_") or registers(path):
            module = importlib.import_module(name)
            if name.startswith("checks_"):
                found[name] = getattr(module, "ROOMS", ())
    harness.CHECKS.sort(key=lambda one: one.module)
    judge(found)
    return found


def judge(found):
    known, wrong = names(), []
    for name, rooms in found.items():
        wrong += [] if rooms else [f"{name}.py has no ROOMS"]
        wrong += [f"{name}.py: no room is called '{room}'" for room in rooms if room not in known]
    named = {room for rooms in found.values() for room in rooms}
    wrong += [f"no file of checks belongs to {room}" for room in known if room not in named]
    if wrong:
        sys.exit("e2e/rooms.py: " + "\n    ".join(wrong))
