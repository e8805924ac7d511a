"""sluice with JAX, on the CPU: types, slices, what is saved, devices."""
import os
import shutil
import tempfile
import unittest

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy

import sluice

TYPES = ("float32", "float16", "bfloat16", "int8", "int16", "int32", "uint8", "uint16", "uint32", "bool_", "complex64",
         "float8_e4m3fn", "float8_e5m2")


class WithJax(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="sluice-test-")
        self.addCleanup(shutil.rmtree, self.folder)
        self.made = {name: jnp.arange(12).reshape(3, 4).astype(getattr(jnp, name)) for name in TYPES}
        self.made.update(scalar=jnp.float32(2.5), empty=jnp.zeros((0, 3)))

    def at(self, name):
        return os.path.join(self.folder, name)

    def assertSame(self, found, made):
        self.assertIsInstance(found, jax.Array)
        self.assertEqual((found.dtype, found.shape), (made.dtype, made.shape))
        self.assertEqual(numpy.asarray(found).tobytes(), numpy.asarray(made).tobytes())

    def test_every_type_comes_back(self):
        for name in ("m.safetensors", "m.tensors"):
            sluice.save(self.made, self.at(name))
            found = sluice.load(self.at(name), framework="jax")
            self.assertEqual(set(found), set(self.made))
            for key, array in self.made.items():
                with self.subTest(name=name, key=key):
                    self.assertSame(found[key], array)
            for key, array in sluice.stream(self.at(name), framework="jax"):
                self.assertSame(array, self.made[key])

    def test_parts_are_jax_arrays(self):
        sluice.save(self.made, self.at("m.safetensors"))
        with sluice.open(self.at("m.safetensors"), framework="jax") as model:
            for name in ("float32", "bfloat16", "float8_e5m2"):
                self.assertSame(model.slice(name)[1:, ::-2], self.made[name][1:, ::-2])
                self.assertSame(model.shard(name, 0, 1, 3), self.made[name][1:2])
            self.assertSame(model["float32"], self.made["float32"])

    def test_arrays_outlive_the_model_and_the_file(self):
        sluice.save(self.made, self.at("m.safetensors"))
        found = sluice.load(self.at("m.safetensors"), framework="jax")
        with open(self.at("m.safetensors"), "r+b") as file:
            file.write(bytes(os.path.getsize(file.name)))
        for key, array in self.made.items():
            self.assertSame(found[key], array)

    def test_a_tensor_goes_by_dlpack(self):
        sluice.save(self.made, self.at("m.safetensors"))
        with sluice.open(self.at("m.safetensors")) as model:
            for name in ("float32", "bfloat16", "int32"):
                self.assertSame(jnp.from_dlpack(model[name]), self.made[name])

    def test_types_are_cast(self):
        sluice.save(self.made, self.at("m.safetensors"))
        found = sluice.load(self.at("m.safetensors"), framework="jax", names=["float32", "int32"], dtype=ml_dtypes.bfloat16)
        self.assertEqual((found["float32"].dtype, found["int32"].dtype), (ml_dtypes.bfloat16, jnp.int32))

    def test_a_device_that_is_not_there_is_told(self):
        sluice.save(self.made, self.at("m.safetensors"))
        with self.assertRaisesRegex(Exception, "(?i)gpu|cuda"):
            sluice.load(self.at("m.safetensors"), framework="jax", device="cuda:0")

    def test_the_door_of_flax_is_the_original(self):
        import safetensors.flax

        import sluice.safetensors.flax as door

        made = {name: array for name, array in self.made.items() if "float8" not in name}  # which the original does not read
        for saves, loads in ((safetensors.flax, door), (door, safetensors.flax)):
            saves.save_file(made, self.at("m"), metadata={"a": "b"})
            for found in (loads.load_file(self.at("m")), door.load(saves.save(made))):
                self.assertEqual(set(found), set(made))
                for key, array in made.items():
                    self.assertSame(found[key], array)


if __name__ == "__main__":
    unittest.main()
