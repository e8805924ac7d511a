"""What a model says of itself: Model.metadata() of GGUF, safetensors and formats that have none, short and long, here and over HTTP."""
import copy
import os
import pickle
import struct
import unittest
from unittest import mock

import numpy
from case import Case, Server
from ggufs import ARRAY, BOOL, F32, F64, FORMS, I8, I64, TEXT, U8, U16, U32, U64, gguf

import sluice
from sluice import _values
from sluice._library import library

LONG = 30000  # texts, of which the library keeps the place
KEYS = {
    "general.architecture": (TEXT, "llama"), "general.alignment": (U32, 32), "empty": (TEXT, ""), "small": (I8, -128), "large": (U64, 2**64 - 1),
    "negative": (I64, -(2**63)), "half": (F32, 0.5), "tenth": (F64, 0.1), "yes": (BOOL, True), "no": (BOOL, False), "odd": (TEXT, b"\xff\0x"),
    "ids": (ARRAY, U16, [1, 2, 65535]), "flags": (ARRAY, BOOL, [True, False]), "none": (ARRAY, TEXT, []),
    "nested": (ARRAY, ARRAY, [(U8, [1, 2]), (TEXT, ["a"])]),
    "tokens": (ARRAY, TEXT, [f"token {number}" for number in range(LONG)]), "scores": (ARRAY, F32, [float(number) for number in range(LONG)]),
    "template": (TEXT, "x" * 70000),
}


def plain(value):
    """What metadata() is to give."""
    if value[0] != ARRAY:
        return value[1].decode("utf-8", "surrogateescape") if isinstance(value[1], bytes) else value[1]
    return [plain(one) if value[1] == ARRAY else one for one in ((ARRAY, *one) if value[1] == ARRAY else one for one in value[2])]


class Told(Case):
    def setUp(self):
        super().setUp()
        self.path = self.at("m.gguf")
        gguf(self.path, KEYS)

    def served(self):
        server = Server(self.path)
        self.addCleanup(server.close)
        return server.url

    def check(self, uri):
        with sluice.open(uri) as model:
            found = model.metadata()
            self.assertEqual(list(found), list(KEYS))
            for key, value in KEYS.items():
                self.assertEqual(found[key], plain(value), key)
                if value[0] != ARRAY:
                    self.assertIs(type(found[key]), type(plain(value)), key)
            for key in ("tokens", "scores"):
                self.assertEqual((found[key][-1], found[key][2:4], len(found[key])), (plain(KEYS[key])[-1], plain(KEYS[key])[2:4], LONG))
                self.assertRaises(IndexError, found[key].__getitem__, LONG)

    def test_every_type_of_a_local_file(self):
        self.check(self.path)

    def test_every_type_over_http(self):
        self.check(self.served())

    def test_a_long_array_is_fetched_once_when_its_first_element_is_asked_for(self):
        with sluice.open(self.served()) as model:
            found = model.metadata()
            before = model.bytes_fetched
            self.assertEqual(len(found["tokens"]), LONG)
            self.assertEqual(model.bytes_fetched, before)
            self.assertEqual(found["tokens"][7], "token 7")
            after = model.bytes_fetched
            self.assertGreater(after, before)
            self.assertEqual(found["tokens"][8], "token 8")
            self.assertEqual(model.bytes_fetched, after)

    def test_arrays_are_compared_copied_and_shown(self):
        with sluice.open(self.path) as model:
            ids, long = model.metadata()["ids"], model.metadata()["tokens"]
            self.assertIsInstance(ids, sluice.Values)
            self.assertEqual((ids, ids), ([1, 2, 65535], (1, 2, 65535)))
            self.assertNotEqual(ids, [1, 2])
            self.assertNotEqual(ids, "ids")
            self.assertEqual((pickle.loads(pickle.dumps(ids)), copy.copy(ids)), ([1, 2, 65535], [1, 2, 65535]))
            self.assertEqual(repr(ids), "<sluice.Values of 'ids': 3>")
            self.assertEqual((2 in ids, list(reversed(ids)), ids.index(2)), (True, [65535, 2, 1], 1))
        self.assertEqual(list(ids), [1, 2, 65535])  # it was read
        self.assertRaises(ValueError, long.__getitem__, 0)  # it was not

    def test_what_changed_since_is_no_crash(self):
        with sluice.open(self.path) as model:
            tokens = model.metadata()["tokens"]
            for damage in (struct.pack("<Q", 2**63), b"\xff" * 8, b""):
                data = damage + bytes(40)
                with mock.patch.object(type(tokens._source), "value_bytes", lambda *_, data=data: data):
                    self.assertRaises(sluice.SluiceError, tokens.__getitem__, 0)
            deep = struct.pack("<IQ", ARRAY, 1) * 9
            self.assertRaises(sluice.SluiceError, _values._Parser(deep).elements, ARRAY, 1, 0)
            for kind in FORMS:
                self.assertRaises(sluice.SluiceError, _values._Parser(b"").elements, kind, 1, 0)
        with open(self.path, "r+b") as file:
            data = file.read()
            at = data.index(b"token 100")
            file.seek(0)
            file.write(data[:at] + b"TOKEN" + data[at + 5:])
        os.utime(self.path, ns=(1, 1))
        self.assertRaises(ValueError, tokens.__getitem__, 0)

    def test_a_file_that_is_cut_off_is_one_sentence(self):
        with open(self.path, "rb") as file:
            data = file.read()
        for size in range(4, len(data), 9973):
            with open(self.path, "wb") as file:
                file.write(data[:size])
            with self.assertRaises(sluice.SluiceValueError) as raised:
                sluice.open(self.path)
            self.assertNotIn("\n", str(raised.exception))

    @unittest.skipUnless(hasattr(library, "sluice_create"), "this libsluice does not write")
    def test_other_formats_have_texts_or_nothing(self):
        where = self.at("m")
        sluice.save({"w": numpy.ones(3)}, where + ".safetensors", metadata={"format": "np", "a": ""})
        sluice.save({"w": numpy.ones(3)}, where + ".tensors")
        with sluice.open(where + ".safetensors") as model:
            self.assertEqual(model.metadata(), {"a": "", "format": "np"})
        with sluice.open(where + ".tensors") as model:
            self.assertEqual(model.metadata(), {})


if __name__ == "__main__":
    unittest.main()
