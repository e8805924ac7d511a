"""Every public name of the package says what it is: modules, functions, classes, their methods and properties."""
import doctest
import importlib
import inspect
import os
import pickle
import re
import tempfile
import traceback
import unittest

from ggufs import ARRAY, TEXT, U32, gguf

import sluice

FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Methods that Python gives a meaning.
KNOWN = re.compile(r"__\w+__$")
# What stands for something that the original's documents explain: its own documents are not copied.
MODULES = (
    "sluice", "sluice.pool", "sluice.safetensors", "sluice.safetensors.torch", "sluice.safetensors.numpy", "sluice.safetensors.flax",
    "sluice.tensorizer", "sluice.tensorizer.serialization", "sluice.tensorizer.stream_io", "sluice.tensorizer.torch_compat",
    "sluice.tensorizer.utils", "sluice.torch_compat", "sluice.transformers", "sluice.vllm", "sluice.sglang",
    "sluice.lora", "sluice.zipslicer",
)

# Errors but the first are told by its example; pool is a module. edit comes before what uses its file.
EXAMPLES = ("open", "edit", *(name for name in sluice.__all__ if name not in ("edit", "pool") and not re.match(r"Sluice\w+(?<!SluiceError)$", name)))


def of_class(where, kind):
    """(name, what it is) of its public members that are written in this package."""
    for each in kind.__mro__:
        if not each.__module__.startswith("sluice"):
            continue
        for name, value in vars(each).items():
            if name.startswith("_") or KNOWN.match(name):
                continue
            found = value.__func__ if isinstance(value, (classmethod, staticmethod)) else getattr(value, "fget", None) or value
            if inspect.isfunction(found) or isinstance(value, property) or type(value).__name__ == "once":
                yield f"{where}.{name}", found


def public(module):
    """(name, what it is) of a module."""
    for name in sorted(getattr(module, "__all__", None) or (each for each in vars(module) if not each.startswith("_"))):
        value = getattr(module, name)
        if not (inspect.isclass(value) or inspect.isfunction(value)) or not value.__module__.startswith("sluice"):
            continue
        yield f"{module.__name__}.{name}", value
        if inspect.isclass(value):
            yield from of_class(f"{module.__name__}.{name}", value)


class Documented(unittest.TestCase):
    def test_every_public_name_says_what_it_is(self):
        silent, seen = [], 0
        for name in MODULES:
            module = importlib.import_module(name)
            if not (module.__doc__ or "").strip():
                silent.append(name)
            for where, value in public(module):
                seen += 1
                inherited = inspect.isclass(value) and (value.__doc__ or "").startswith(value.__name__ + "(")  # a NamedTuple without one
                if not (value.__doc__ or "").strip() or inherited:
                    silent.append(where)
        self.assertGreater(seen, 200)
        self.assertEqual(silent, [])

    def test_messages_call_things_as_users_do(self):
        self.assertEqual(sluice.open.__qualname__, "open")  # what Python says of a wrong argument, from 3.10 on
        try:
            sluice.open("nowhere.safetensors")
        except sluice.SluiceError as error:
            self.assertEqual(traceback.format_exception_only(type(error), error)[0].split(":")[0], "sluice.SluiceNotFoundError")
            self.assertIs(type(pickle.loads(pickle.dumps(error))), sluice.SluiceNotFoundError)
        self.assertIs(pickle.loads(pickle.dumps(sluice.open)), sluice.open)

    def test_every_public_name_has_an_example(self):
        self.assertEqual([name for name in EXAMPLES if ">>>" not in (getattr(sluice, name).__doc__ or "")], [])

    def test_examples_say_what_comes_out(self):
        import numpy

        made = {"w": numpy.arange(24, dtype=numpy.float32).reshape(4, 6), "b": numpy.ones(3, numpy.float32)}
        before = os.getcwd()
        self.addCleanup(os.chdir, before)
        with tempfile.TemporaryDirectory(prefix="sluice-test-") as folder:
            os.chdir(folder)
            sluice.save(made, "m.safetensors", metadata={"format": "np"})
            gguf("m.gguf", {"llama.block_count": (U32, 2), "tokenizer.ggml.tokens": (ARRAY, TEXT, ["<s>", "a", "b"])})
            sluice.save({"w": made["w"]}, "changed.safetensors")
            runner, tried = doctest.DocTestRunner(), 0
            for name in EXAMPLES:
                for test in doctest.DocTestFinder().find(getattr(sluice, name), name, globs={"sluice": sluice}):
                    tried += len(test.examples)
                    runner.run(test)
            os.chdir(before)
        self.assertGreater(tried, 50)
        self.assertEqual(runner.failures, 0)

    def test_no_module_is_left_out(self):
        found = set()
        for place, _, files in os.walk(os.path.join(FOLDER, "sluice")):
            for file in files:
                if file.endswith(".py") and (file == "__init__.py" or not file.startswith("_")):
                    path = os.path.relpath(os.path.join(place, file), FOLDER)[:-3].replace(os.sep, ".")
                    found.add(re.sub(r"\.__init__$", "", path))
        self.assertEqual(found, set(MODULES))

    def test_every_name_is_in_the_handbook(self):
        path = os.path.join(FOLDER, os.pardir, "docs", "python.md")
        with open(path, encoding="utf-8") as file:
            page = file.read()
        with open(os.path.join(os.path.dirname(path), "pool.md"), encoding="utf-8") as file:
            page += file.read()
        missing = [name for name in sluice.__all__ if not re.search(rf"\b{name}\b", page)]
        self.assertEqual(missing, [])


if __name__ == "__main__":
    unittest.main()
