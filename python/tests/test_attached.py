"""What open() gives and what attach() gives are used in the same way."""
import asyncio
import pickle
import unittest
import warnings

import numpy
import torch
from case import Case, make
from daemon import Daemon, needs_a_daemon

import sluice


@needs_a_daemon
class Attached(Case):
    def setUp(self):
        super().setUp()
        self.made = {"wide": torch.arange(24.0).reshape(4, 6), "half": torch.ones(3, dtype=torch.bfloat16), "whole": torch.arange(5)}
        make(self.made, self.at("m.safetensors"))
        self.daemon = Daemon(self.at("m.safetensors"))
        self.addCleanup(self.daemon.end)

    def attach(self, **options):
        return sluice.attach("m", socket=self.daemon.socket, timeout=600, **options)

    def test_one_program_uses_either(self):
        for model in (self.attach(framework="torch"), sluice.open(self.at("m.safetensors"), framework="torch")):
            with model:
                self.assertEqual((model.framework, model.device, set(model)), ("torch", "cpu", set(self.made)))
                self.assertEqual(model.meta("wide"), sluice.Meta("wide", "F32", (4, 6), 96, False, ()))
                found = (model.load(), dict(model.stream()), dict(model.items()), {name: model.get_tensor(name) for name in self.made})
                for each in found:
                    self.assertSame({name: each[name] for name in self.made}, self.made)
                self.assertEqual(list(model.load("wide")), ["wide"])
                self.assertEqual([name for name, _ in model.stream(filter=lambda name: name == "half")], ["half"])
                cast = model.load(dtype="f16", timeout=600)
                self.assertEqual((cast["wide"].dtype, cast["whole"].dtype), (torch.float16, torch.int64))
                part, whole = model.slice("wide"), self.made["wide"].numpy()
                self.assertEqual((part.shape, part.get_shape(), part.get_dtype()), ((4, 6), [4, 6], "F32"))
                for index in (numpy.s_[0:2], numpy.s_[:, ::2], numpy.s_[..., 1], numpy.s_[-1], numpy.s_[::-1, 5:0:-2], numpy.s_[None, 1:3, None],
                              (), numpy.s_[3, 5], numpy.s_[1:1]):
                    self.assertEqual((part[index].tolist(), tuple(part[index].shape)), (whole[index].tolist(), whole[index].shape), index)
                self.assertIn("<td>wide</td><td>F32</td><td>[4, 6]</td>", model._repr_html_())
                for call in (lambda: model["none"], lambda: model.load(["none"]), lambda: model.meta("none"), lambda: model.slice("none")):
                    with self.assertRaises(KeyError):
                        call()

    def test_arrays_are_of_the_framework_that_was_asked_for(self):
        with self.attach() as model:
            self.assertIsInstance(model["wide"], sluice.Tensor)
            self.assertIsInstance(model.load()["wide"], sluice.Tensor)
            self.assertIsInstance(model.slice("wide")[1:], numpy.ndarray)
        with self.attach(framework="numpy") as model:
            again = pickle.loads(pickle.dumps(model))
            for each in (model, again):
                self.assertEqual((each.framework, type(each["wide"]), each["wide"].tolist()), ("numpy", numpy.ndarray, self.made["wide"].tolist()))
            again.close()
        for framework in ("jax", "fortran"):
            with self.assertRaises(ValueError):
                self.attach(framework=framework)

    def test_a_deposit_has_one_name(self):
        with self.attach():
            self.assertEqual(sluice.pool.stat("m", socket=self.daemon.socket).row.name, "m")
        for call in (sluice.pool.stat, sluice.pool.evict):
            for given in ({"deposit": "k"}, {"key": "k"}):
                with warnings.catch_warnings(record=True) as warned, self.assertRaises(FileNotFoundError):
                    warnings.simplefilter("always")
                    call("m", socket=self.daemon.socket, **given)
                self.assertEqual([str(each.message).split(" is called ")[1] for each in warned], [f"pool.{call.__name__}(deposit=…)"] * ("key" in given))

    def test_a_loop_may_attach(self):
        async def within():
            async with await sluice.aattach("m", socket=self.daemon.socket, timeout=600, framework="torch") as model:
                return model, model["wide"]

        model, wide = asyncio.run(within())
        self.assertTrue(torch.equal(wide, self.made["wide"]))
        with self.assertRaisesRegex(ValueError, "closed"):
            model["wide"]


if __name__ == "__main__":
    unittest.main()
