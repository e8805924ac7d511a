"""What is wrong in a call is told by what was called: each parameter of each public call × values that it does not take. What takes one is right;
else it is a TypeError or a ValueError, which names the parameter or the value, and not what the interpreter fell over. Without torch."""
import inspect
import os
import re
import tempfile
import unittest
import warnings

import numpy

import sluice
from sluice._library import library

ODD = object()
VALUES = (5, -1, 2.5, True, "x", "", b"x", ["x"], [5], {"x": 5}, {5: 5}, ODD, (), float("nan"), "\ud800", "a\0b", 1 << 70, None)
# Of each call that which is right; the others of its parameters are asked one by one.
CALLS = {
    "open": {"uri": "m.safetensors"}, "load": {"uri": "m.safetensors", "framework": "numpy"}, "stream": {"uris": "m.safetensors", "framework": "numpy"},
    "save": {"tensors": {"a": numpy.ones(2)}, "uri": "o.safetensors"}, "Writer": {"uri": "o.safetensors"}, "edit": {"path": "m.safetensors"},
    "ls": {"uri": "m.safetensors"}, "pull": {"uri": "m.safetensors", "directory": "there"}, "open_file": {"uri": "m.safetensors"}, "credentials": {},
    "attach": {"name": "m", "socket": "/nowhere", "timeout": 0.001}, "pool.list": {"socket": "/nowhere"},
    "pool.stat": {"model": "m", "socket": "/nowhere"}, "pool.evict": {"model": "m", "socket": "/nowhere"},
    "Key": {"secret": "p"}, "Key.from_string": {"passphrase": "p"}, "Key.from_key": {"key": b"k" * 32},
    "Model.load": {}, "Model.stream": {}, "Model.shard": {"name": "w", "dim": 0, "rank": 0, "of": 2},
}
CALLED_BEFORE = {
    ("save", "encryption"): "key", ("Writer", "encryption"): "key", ("attach", "key"): "deposit", ("pool.stat", "key"): "deposit",
    ("pool.evict", "key"): "deposit", ("save", "tensors"): "tensor",
}


class Wrong(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = tempfile.TemporaryDirectory()
        cls.before = os.getcwd()
        os.chdir(cls.place.name)
        sluice.save({"w": numpy.ones((4, 6)), "b": numpy.ones(3)}, "m.safetensors")
        cls.model = sluice.open("m.safetensors", framework="numpy")

    @classmethod
    def tearDownClass(cls):
        cls.model.close()
        os.chdir(cls.before)
        cls.place.cleanup()

    def function(self, name):
        first, _, second = name.partition(".")
        if first == "Model":
            return getattr(self.model, second)
        found = getattr(sluice, first)
        return getattr(found, second) if second else found

    def told(self, name, parameter, value):
        """What is wrong with it; None: nothing, or it is told well."""
        made = None
        try:
            made = self.function(name)(**{**CALLS[name], parameter: value})
            if inspect.isgenerator(made):
                list(made)
            elif name == "credentials":
                sluice.open("m.safetensors", credentials=made).close()
        except sluice.SluiceError:
            return None
        except KeyError as error:
            return None if parameter in ("name", "names") else repr(error)
        except (TypeError, ValueError, IndexError) as error:
            said = str(error)
            named = "key" if name.startswith("Key.from_key") or name == "Key" else CALLED_BEFORE.get((name, parameter), parameter).rstrip("s")
            told = re.search(rf"\b{re.escape(named)}", said) or repr(value) in said.partition("'")[0]
            return None if told and "not supported between" not in said else f"{type(error).__name__}: {said}"
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        finally:
            if isinstance(made, (sluice.Writer, sluice.Editor)):
                made.abandon()
            elif made is not None and hasattr(made, "close"):
                made.close()
        return None

    @unittest.skipUnless(hasattr(library, "sluice_create"), "this libsluice does not write")
    def test_every_parameter_of_every_call_says_what_it_takes(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            for name in CALLS:
                for parameter in inspect.signature(self.function(name)).parameters:
                    for value in VALUES:
                        if (parameter == "timeout" and type(value) in (int, float) and value > 0) or (parameter == "name" and isinstance(value, (list, dict))):
                            continue  # the one is waited for, the other is as of any dict
                        with self.subTest(f"{name}({parameter}={value!a})"):
                            self.assertIsNone(self.told(name, parameter, value))

    def test_what_is_neither_true_nor_false_is_not_taken_for_it(self):
        """replace="no" would have replaced."""
        flags = [(name, each.name) for name in CALLS for each in inspect.signature(self.function(name)).parameters.values()
                 if "bool" in str(each.annotation) and "Callable" not in str(each.annotation) and each.name != "progress"]
        self.assertIn(("save", "replace"), flags)
        for name, parameter in flags:
            for value in ("no", 0, 1, [], ODD):
                with self.subTest(f"{name}({parameter}={value!r})"), self.assertRaises(TypeError):
                    made = self.function(name)(**{**CALLS[name], parameter: value})
                    if inspect.isgenerator(made):
                        list(made)

    def test_every_public_call_is_in_the_table(self):
        asked = {name for name in CALLS if "." not in name}
        waits = {name for name in sluice.__all__ if name[0] == "a" and name[1:] in sluice.__all__ + ["open"]}  # which take what those take
        calls = {name for name in sluice.__all__ if inspect.isfunction(getattr(sluice, name)) or name in ("Writer", "Key")}
        self.assertEqual(calls - waits - asked, {"load_into_module"})  # which is torch's

    def test_a_header_is_one_line(self):
        for headers in ({"a": "b\nc: d"}, {"a\r": "b"}):
            with self.subTest(headers), self.assertRaisesRegex(ValueError, "line's end"):
                sluice.credentials(headers=headers)

    def test_a_token_of_a_session_is_not_left_out(self):
        with self.assertRaisesRegex(ValueError, "session_token goes with"):
            sluice.credentials(session_token="t")


if __name__ == "__main__":
    unittest.main()
