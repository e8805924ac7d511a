"""Which public calls of the originals are made by the tests beside them, and ours in the same test: every one, or the reason stands here.
Those tests run once more for it, under a profile that notes each function that is entered."""
import enum
import functools
import inspect
import sys
import threading
import unittest

import test_safetensors
import test_tensorizer
import test_tensorizer_more
import test_zipslicer
import torch
from tensorizer._crypt import available as has_sodium
from test_doors import NOTHING, PROTOCOLS, covers, known_rows, modules, of_package, public

SUITES = {
    "safetensors": (test_safetensors,), "tensorizer": (test_tensorizer, test_tensorizer_more), "zipslicer": (test_zipslicer,),
}
# What no test calls, and why.
NOT_CALLED = {
    "safetensors.flax": "of JAX: test_jax.py",
}


def key(value):
    """What the profile sees of a callable: its code, or the name of one that has none of Python's; None if it is not a function."""
    if isinstance(value, property):
        value = value.fget
    if isinstance(value, (functools.cached_property, functools.partial)):
        value = value.func
    if isinstance(value, (classmethod, staticmethod)):
        value = value.__func__
    if isinstance(value, type) or not (callable(value) or inspect.isgetsetdescriptor(value)):
        return None
    value = inspect.unwrap(value)
    if hasattr(value, "__code__"):
        return value.__code__
    return getattr(value, "__qualname__", None) if inspect.isroutine(value) else None


def static(kind, name):
    return inspect.getattr_static(kind, name, NOTHING)


def constructor(kind):
    """(name, function) of what runs when one is made."""
    for name in ("__init__", "__new__"):
        found = static(kind, name)
        if getattr(key(found), "co_name", None):
            return name, found
    return "__init__", None


def of_class(where, theirs, ours, package):
    """(name, the original's key, ours or None) of a class and its members that are the package's own."""
    if issubclass(theirs, enum.Enum) or not isinstance(ours, type):
        return
    name, function = constructor(theirs)
    if function is not None:
        yield where, key(function), key(constructor(ours)[1])
    own = [each for each in theirs.__mro__ if of_package(each, package)]
    for name in sorted({name for each in own for name in vars(each)}):
        value, mine = static(theirs, name), static(ours, name)
        if name.startswith("_") and name not in PROTOCOLS:
            continue
        if isinstance(value, type) and of_package(value, package):
            yield from of_class(f"{where}.{name}", value, mine, package)
        elif key(value) is not None:
            yield f"{where}.{name}", key(value), key(mine)


def calls(package):
    """The same of every public name."""
    for name, theirs, ours in modules(package):
        for each, value in public(theirs, package) if ours else ():
            mine = getattr(ours, each, NOTHING)
            if isinstance(value, type) and of_package(value, package):
                where = f"{value.__module__}.{value.__name__}".replace("builtins", package)
                yield from of_class(where, value, mine, package)
            elif key(value) is not None:
                yield f"{name}.{each}", key(value), key(mine)


class Noted(unittest.TestResult):
    """What was entered in each test, by whatever thread."""

    def __init__(self, wanted):
        super().__init__()
        self.wanted, self.entered, self.now = wanted, {}, set()

    def note(self, frame, event, called):
        if event == "call" and frame.f_code in self.wanted:
            self.now.add(frame.f_code)
        elif event == "c_call" and getattr(called, "__qualname__", None) in self.wanted:
            self.now.add(called.__qualname__)

    def startTest(self, test):
        super().startTest(test)
        self.now = self.entered[test.id()] = set()
        threading.setprofile(self.note)
        sys.setprofile(self.note)

    def stopTest(self, test):
        sys.setprofile(None)
        threading.setprofile(None)
        super().stopTest(test)


def expected(name):
    """Can it be called here?"""
    if torch.__version__ < "2" and ".torch_compat." in name:
        return False  # which needs torch 2, in both
    if ".RedisStreamFile" in name and not test_tensorizer_more.REDIS:
        return False
    return has_sodium or "Encryption" not in name and "Decryption" not in name


class EveryCall(unittest.TestCase):
    maxDiff = None

    def check(self, package):
        rows = [*known_rows(), *NOT_CALLED]
        # What ours inherits from classes of C enters no function that a profile sees.
        found = {name: (theirs, None if isinstance(ours, str) else ours) for name, theirs, ours in calls(package) if expected(name)}
        wanted = {each for keys in found.values() for each in keys if each is not None}
        noted = Noted(wanted)
        suite = unittest.TestSuite(unittest.defaultTestLoader.loadTestsFromModule(module) for module in SUITES[package])
        suite.run(noted)
        self.assertEqual([text for _, text in noted.failures + noted.errors], [])
        self.assertGreater(len(found), 10)
        alone = [name for name, (theirs, ours) in sorted(found.items())
                 if not any(theirs in entered and (ours is None or ours in entered) for entered in noted.entered.values())]
        left_out = [name for name in alone if not any(covers(row, name) or name.startswith(row + ".") for row in rows)]
        self.assertEqual(left_out, [], "no test calls the original's and ours")

    def test_of_safetensors(self):
        self.check("safetensors")

    def test_of_tensorizer(self):
        self.check("tensorizer")

    def test_of_zipslicer(self):
        self.check("zipslicer")


if __name__ == "__main__":
    unittest.main()
