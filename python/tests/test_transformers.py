"""sluice.transformers, with a stand-in that has what it calls; the real one is in e2e."""
import json
import os
import sys
import tempfile
import types
import unittest
from unittest import mock

import torch
from case import Case, make, needs_writing

import sluice
import sluice.transformers


class Data:
    def memoryview(self):
        return memoryview(b"{}")


class Llama:
    @classmethod
    def from_pretrained(cls, place, config, state_dict, dtype, **options):
        return types.SimpleNamespace(state=state_dict, dtype=dtype, config=config, options=options)


class Auto:
    @classmethod
    def from_pretrained(cls, place, trust_remote_code):
        with open(os.path.join(place, "config.json"), encoding="utf-8") as file:
            return types.SimpleNamespace(architectures=["Llama"], text=file.read())


class Transformers(Case):
    def setUp(self):
        super().setUp()
        stand_in = types.ModuleType("transformers")
        stand_in.AutoConfig, stand_in.Llama = Auto, Llama
        patch = mock.patch.dict(sys.modules, {"transformers": stand_in})
        patch.start()
        self.addCleanup(patch.stop)
        with open(self.at("config.json"), "w", encoding="utf-8") as file:
            file.write("{}")
        self.made = {"w": torch.ones(3, dtype=torch.bfloat16)}
        make(self.made, self.at("model.safetensors"))

    def load(self, **options):
        return sluice.transformers.from_pretrained(self.folder + "/", **options)

    def test_a_folder_with_more_than_one_model_is_loaded_by_a_pattern(self):
        self.assertEqual((list(self.load().state), self.load().dtype), (["w"], torch.bfloat16))
        os.makedirs(self.at("checkpoint-100"))
        make({"w": torch.zeros(3)}, self.at("checkpoint-100/model.safetensors"))
        make({"w": torch.zeros(3)}, self.at("model.fp16.safetensors"))
        for options in ({"exclude": ["checkpoint-*/*", "*.fp16.*"]}, {"include": ["model.safetensors", "*.json"]},
                        {"spec": {"source": {"include": ["model.safetensors", "*.json"]}}}):
            self.assertSame(self.load(**options).state, self.made)

    def test_a_type_has_either_name(self):
        for options in ({"dtype": torch.float16}, {"torch_dtype": torch.float16}):
            made = self.load(timeout=600, **options)
            self.assertEqual((made.dtype, made.options), (torch.float16, {}))

    @needs_writing
    def test_encrypted_weights_are_loaded_with_a_key(self):
        os.remove(self.at("model.safetensors"))
        sluice.save(self.made, self.at("model.tensors"), key="correct horse")
        self.assertSame(self.load(key="correct horse").state, self.made)

    def test_an_index_that_names_what_is_not_there_is_an_error(self):
        os.rename(self.at("model.safetensors"), self.at("model-00001-of-00002.safetensors"))
        shards = {"w": "model-00001-of-00002.safetensors", "v": "model-00002-of-00002.safetensors"}
        with open(self.at("model.safetensors.index.json"), "w", encoding="utf-8") as file:
            json.dump({"metadata": {}, "weight_map": shards}, file)
        with self.assertRaises(sluice.SluiceError) as found:
            self.load()
        self.assertIn("model-00002-of-00002.safetensors", str(found.exception))

    def test_no_file_is_written_outside_of_its_folder(self):
        outside = self.at("outside")
        beside = os.path.join("..", os.path.relpath(outside, tempfile.gettempdir()))
        for name in (outside, beside, f"a/../{beside}", "..", ".", "a//b", ""):
            with self.subTest(name), self.assertRaisesRegex(ValueError, "its folder"):
                with sluice.transformers._folder({"config.json": Data(), name: Data()}):
                    pass
        self.assertFalse(os.path.exists(outside))
        with sluice.transformers._folder({"a/..b/c.json": Data()}) as place:
            self.assertTrue(os.path.exists(os.path.join(place, "a/..b/c.json")))


if __name__ == "__main__":
    unittest.main()
