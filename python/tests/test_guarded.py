"""Within tensorizer_loading() a stranger's checkpoint runs nothing, as with plain torch.load(); only who says so gives that up."""
import collections
import io
import os
import pickle
import unittest

import torch

from case import Case, needs_writing
from sluice.tensorizer import torch_compat

MODES = (True, False)  # of the zip and of the format before it


class Hostile:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


class Secrets(Case):
    def test_no_exception_says_the_key_of_a_uri(self):
        import sluice
        from sluice import safetensors
        from sluice.tensorizer import stream_io

        for scheme in "s3", "gs", "hf", "oci", "ms", "az", "s4", "http:/127.0.0.1:1":
            for uri in f"{scheme}://user:hush@bucket/m", f"{scheme}:/user:hush@bucket/m", f"{scheme}://bucket/{'x' * 90}?X-Amz-Signature=hush":
                if scheme != "s4" and "?" in uri:
                    continue  # it would be asked for
                for call in sluice.open, sluice.ls, sluice.load, safetensors.safe_open, stream_io.s3_download:
                    more = {safetensors.safe_open: ("pt",), stream_io.s3_download: ("a", "b")}.get(call, ())
                    with self.assertRaises(Exception) as caught:
                        call(uri, *more)
                    self.assertNotIn("hush", str(caught.exception), (call, uri))


@unittest.skipIf(torch.__version__ < "2", "the context needs torch 2")
class Guarded(Case):
    def refused(self, path, **options):
        with torch_compat.tensorizer_loading(device="cpu"):
            with self.assertRaises(Exception) as caught:
                torch.load(path, **options)
        self.assertFalse(os.path.exists(self.at("made")), caught.exception)
        return str(caught.exception)

    def test_nothing_is_called(self):
        for zipped in MODES:
            torch.save({"a": Hostile(self.at("made"))}, self.at("h.pt"), _use_new_zipfile_serialization=zipped)
            self.assertIn("weights_only=False", self.refused(self.at("h.pt")))
            self.refused(self.at("h.pt"), weights_only=True)
            self.refused(self.at("h.pt"), weights_only=None)

    def test_who_says_so_gives_it_up(self):
        torch.save({"a": Hostile(self.at("made"))}, self.at("h.pt"))
        suppressed = {"suppress_weights_only": True}
        for context, options in (suppressed, {}), ({}, {"weights_only": False}), (suppressed, {"weights_only": True}):
            with torch_compat.tensorizer_loading(device="cpu", **context):
                torch.load(self.at("h.pt"), **options)
            os.rmdir(self.at("made"))

    def test_no_opcode_goes_round_it(self):
        made = self.at("made").encode()
        text = b"X" + len(made).to_bytes(4, "little") + made
        system = b"cos\nmkdir\n"
        bodies = [
            system + b"(" + text + b"tR",
            b"(" + text + b"ios\nmkdir\n",
            b"(" + system + text + b"o",
            b"cbuiltins\ngetattr\n",
            b"c__builtin__\neval\n",
            b"ccopy_reg\n_reconstructor\n(cos\nmkdir\nc__builtin__\nobject\nNtR",
            b"ctorch\nload\n(" + text + b"tR",
            b"ccollections\nOrderedDict\n)R}X\x01\x00\x00\x00a" + system + b"sb",
            b"\x82\x01",
            b"X\x02\x00\x00\x00osX\x05\x00\x00\x00mkdir\x93(" + text + b"tR",
            b"csluice.tensorizer.torch_compat\n_Patch\n(" + text + b"tR",
        ]
        for body in bodies:
            for head in (b"\x80\x02", b"\x80\x04"):
                module = torch_compat._loading_module(lambda: [], True)
                for load in (lambda: module.load(io.BytesIO(head + body + b".")), lambda: module.loads(head + body + b"."),
                             lambda: module.Unpickler(io.BytesIO(head + body + b".")).load()):
                    with self.assertRaises(Exception, msg=body):
                        load()
                self.assertFalse(os.path.exists(self.at("made")))

    def test_torchscript_is_refused(self):
        torch.jit.save(torch.jit.script(torch.nn.Linear(1, 1)), self.at("s.pt"))
        self.assertIn("TorchScript", self.refused(self.at("s.pt")))
        self.assertIsNotNone(torch.jit.load(self.at("s.pt")))

    @needs_writing
    def test_weights_are_loaded(self):
        made = collections.OrderedDict(w=torch.nn.Parameter(torch.ones(2)), b=torch.arange(3), n=[{"x": (1, 2.5, None, "s")}])
        for zipped in MODES:
            with torch_compat.tensorizer_saving():
                torch.save(made, self.at("w.pt"), _use_new_zipfile_serialization=zipped)
            for options in {}, {"weights_only": True}, {"weights_only": False}:
                with torch_compat.tensorizer_loading(device="cpu"):
                    found = torch.load(self.at("w.pt"), **options)
                self.assertEqual((list(found), found["w"].tolist(), found["b"].tolist(), found["n"]),
                                 (list(made), [1, 1], [0, 1, 2], made["n"]))
                self.assertIsInstance(found["w"], torch.nn.Parameter)

    @unittest.skipUnless(hasattr(torch.serialization, "safe_globals"), "this torch has no list of a program's own")
    def test_what_a_program_adds_is_taken(self):
        torch.save({"a": pickle.PickleBuffer}, self.at("g.pt"))
        self.refused(self.at("g.pt"))
        with torch.serialization.safe_globals([pickle.PickleBuffer]), torch_compat.tensorizer_loading(device="cpu"):
            self.assertIs(torch.load(self.at("g.pt"))["a"], pickle.PickleBuffer)


if __name__ == "__main__":
    unittest.main()
