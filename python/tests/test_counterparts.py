"""Every public name of Run:ai's streamer and of fastsafetensors has a row in docs/python.md that says what does the same, and no row is of nothing."""
import importlib
import inspect
import os
import re
import unittest

PACKAGES = ("runai_model_streamer", "fastsafetensors")
DOCS = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, os.pardir, "docs", "python.md")
HEADING = "## What does what Run:ai's streamer and fastsafetensors do"


def rows():
    """Names in the table's first column; one that ends with .* is of a class and all its members."""
    with open(DOCS, encoding="utf-8") as file:
        table = file.read().split(HEADING + "\n", 1)[1].split("\n## ", 1)[0]
    first = [line.split(" | ", 1)[0] for line in table.split("\n") if line.startswith("| `")]
    return [name for column in first for name in re.findall(r"`([^`]+)`", column)]


def public(package):
    """"package.name" and "package.Class.method" of what is the package's own."""
    module = importlib.import_module(package)
    for name in getattr(module, "__all__", None) or [each for each in vars(module) if not each.startswith("_")]:
        value = getattr(module, name)
        if inspect.ismodule(value) or getattr(value, "__module__", package).split(".")[0] != package:
            continue
        members = [
            each for kind in getattr(value, "__mro__", ()) if kind.__module__.split(".")[0] == package
            for each, found in vars(kind).items() if not each.startswith("_") and inspect.isroutine(found)
        ]
        yield from [f"{package}.{name}.{each}" for each in members] or [f"{package}.{name}"]


def covers(row, name):
    return row == name or (row.endswith(".*") and (name + ".").startswith(row[:-1]))


class Counterparts(unittest.TestCase):
    def check(self, package):
        try:
            found = sorted(set(public(package)))
        except ImportError:
            self.skipTest(f"no {package}: e2e/torch2.py makes an environment that has it")
        known = [row for row in rows() if row.split(".")[0] == package]
        self.assertGreater(len(found), 10)
        self.assertEqual([name for name in found if not any(covers(row, name) for row in known)], [], "without a counterpart")
        self.assertEqual([row for row in known if not any(covers(row, name) for name in found)], [], "rows that are of nothing")

    def test_of_runai(self):
        self.check("runai_model_streamer")

    def test_of_fastsafetensors(self):
        self.check("fastsafetensors")

    def test_ours_are_there(self):
        import sluice

        with open(DOCS, encoding="utf-8") as file:
            table = file.read().split(HEADING + "\n", 1)[1].split("\n## ", 1)[0]
        for name in re.findall(r"sluice\.(\w+)\(", table):
            self.assertTrue(hasattr(sluice, name), name)
        for name in re.findall(r"model\.(\w+)\(", table):
            self.assertTrue(hasattr(sluice.Model, name), name)


if __name__ == "__main__":
    unittest.main()
