"""The engines' entry points, against stand-ins that have what the engines have (the real ones need a GPU)."""
import enum
import sys
import types
import unittest
from unittest import mock

import torch
from case import Case, make

import sluice
import sluice.sglang
import sluice.vllm


class Model:
    def __init__(self):
        self.got = {}

    def load_weights(self, weights):
        for name, tensor in weights:
            self.got[name] = tensor.clone()


def module(name, **members):
    made = types.ModuleType(name)
    made.__dict__.update(members)
    return made


class Vllm(Case):
    def setUp(self):
        super().setUp()
        make({"a": torch.ones(2), "b": torch.zeros(1)}, self.at("m.safetensors"))
        known = {}

        class BaseModelLoader:
            def __init__(self, load_config):
                self.load_config = load_config

        def register_model_loader(name):
            def put(cls):
                assert issubclass(cls, BaseModelLoader)
                known[name] = cls
                return cls

            return put

        loaders = module("vllm.model_executor.model_loader", register_model_loader=register_model_loader, _LOAD_FORMAT_TO_MODEL_LOADER=known)
        patch = mock.patch.dict(sys.modules, {
            "vllm": module("vllm"), "vllm.model_executor": module("vllm.model_executor"), "vllm.model_executor.model_loader": loaders,
            "vllm.model_executor.model_loader.base_loader": module("base_loader", BaseModelLoader=BaseModelLoader),
        })
        patch.start()
        self.addCleanup(patch.stop)
        self.known = known

    def load(self, place, extra):
        loader = self.known["sluice"](types.SimpleNamespace(model_loader_extra_config=extra))
        model = Model()
        loader.download_model(None)
        loader.load_weights(model, types.SimpleNamespace(model=place))
        return model.got

    def test_weights_come_from_the_models_path_or_a_uri(self):
        sluice.vllm.register()
        sluice.vllm.register()
        for place, extra in ((self.at("m.safetensors"), {}), ("nowhere", {"uri": self.at("m.safetensors")})):
            self.assertEqual({name: tensor.tolist() for name, tensor in self.load(place, extra).items()}, {"a": [1, 1], "b": [0]})
        with self.assertRaisesRegex(ValueError, "sockte"):
            self.load("x", {"sockte": "y"})
        with self.assertRaises(ValueError):
            self.load("x", {"uri": "y", "model": "z"})


class Sglang(Case):
    def test_three_hooks_make_the_format_known(self):
        make({"a": torch.ones(2)}, self.at("m.safetensors"))
        hooks, choices = {}, []

        class HookType(enum.Enum):
            AROUND = "around"

        class HookRegistry:
            @classmethod
            def register(cls, target, hook, hook_type):
                hooks[target] = hook

        class BaseModelLoader:
            def __init__(self, load_config):
                self.load_config = load_config

        class DefaultModelLoader(BaseModelLoader):
            def __init__(self, load_config):
                raise ValueError("knows no format of that name")

            def load_model(self, model, config):
                model.load_weights(self._get_all_weights(config, model))

        loader = module("loader", BaseModelLoader=BaseModelLoader, DefaultModelLoader=DefaultModelLoader)
        names = {
            "sglang.srt.plugins.hook_registry": module("hook_registry", HookType=HookType, HookRegistry=HookRegistry),
            "sglang.srt.arg_groups.choices": module("choices", add_load_format_choices=choices.extend),
            "sglang.srt.model_loader.loader": loader,
            **{name: module(name) for name in ("sglang", "sglang.srt", "sglang.srt.plugins", "sglang.srt.arg_groups", "sglang.srt.model_loader")},
        }
        with mock.patch.dict(sys.modules, names):
            sluice.sglang.register()
            sluice.sglang.register()
            self.assertEqual(choices, ["sluice"])
            config = types.SimpleNamespace(load_format="sluice", model_loader_extra_config="{}")
            verify = hooks["sglang.srt.configs.load_config.LoadConfig._verify_load_format"]
            self.assertIsNone(verify(lambda self: 1 / 0, config))
            self.assertEqual(verify(lambda self: "checked", types.SimpleNamespace(load_format="auto")), "checked")
            get = hooks["sglang.srt.model_loader.loader.get_model_loader"]
            self.assertEqual(get(lambda config: "other", types.SimpleNamespace(load_format="auto")), "other")
            model = Model()
            get(None, config).load_model(model, types.SimpleNamespace(model_path=self.at("m.safetensors")))
            self.assertEqual(model.got["a"].tolist(), [1, 1])


if __name__ == "__main__":
    unittest.main()
