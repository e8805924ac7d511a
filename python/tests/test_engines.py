"""The engines' entry points, against stand-ins that have what the engines have (the real ones need a GPU)."""
import dataclasses
import enum
import os
import sys
import types
import unittest
import warnings
from typing import Optional
from unittest import mock

import torch
from case import Case, Server, make, needs_writing

import sluice
import sluice.sglang
import sluice.vllm
from sluice import _deposits, _engines, _parts, _ranks
from sluice._dtypes import torch_dtype


class Model:
    def __init__(self, *wants):
        self.got, self.wants = {}, wants

    def load_weights(self, weights):
        for name, tensor in weights:
            self.got[name] = tensor.clone()
        return set(self.got)

    def named_parameters(self):
        return [(name, None) for name in self.wants]


@dataclasses.dataclass
class Source:
    """Weights that a model wants from elsewhere, as engines describe them."""

    model_or_path: str
    revision: Optional[str] = None
    subfolder: Optional[str] = None
    prefix: str = ""
    allow_patterns_overrides: Optional[list] = None


def module(name, **members):
    made = types.ModuleType(name)
    made.__dict__.update(members)
    return made


class Engine(Case):
    """A vLLM with what its loaders have."""

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

        class DefaultModelLoader(BaseModelLoader):
            """It takes no keys but its own, and refuses a model of which something got no weights, linear layers aside."""

            def __init__(self, load_config):
                if load_config.model_loader_extra_config:
                    raise ValueError(f"Unexpected extra config keys {load_config.model_loader_extra_config}")
                super().__init__(load_config)

            def load_model(self, vllm_config, model_config, prefix=""):
                model = model_config.made
                self.load_weights(model, model_config)
                return model

            def load_weights(self, model, model_config):
                loaded = model.load_weights(self.get_all_weights(model_config, model))
                if loaded is not None:
                    self.track_weights_loading(model, loaded)

            def track_weights_loading(self, model, loaded_weights, quantized=False):
                linear = set() if quantized else {name for name, _ in model.named_parameters() if "linear" in name}
                missing = {name for name, _ in model.named_parameters()} - loaded_weights - linear
                if missing:
                    raise ValueError(f"Following weights were not initialized from checkpoint: {missing}")

        loaders = module("vllm.model_executor.model_loader", register_model_loader=register_model_loader, _LOAD_FORMAT_TO_MODEL_LOADER=known)
        patch = mock.patch.dict(sys.modules, {
            "vllm": module("vllm"), "vllm.model_executor": module("vllm.model_executor"), "vllm.model_executor.model_loader": loaders,
            "vllm.model_executor.model_loader.base_loader": module("base_loader", BaseModelLoader=BaseModelLoader),
            "vllm.model_executor.model_loader.default_loader": module("default_loader", DefaultModelLoader=DefaultModelLoader),
        })
        patch.start()
        self.addCleanup(patch.stop)
        self.known = known

    def shared_by(self, ranks):
        distributed = module("vllm.distributed", get_tensor_model_parallel_world_size=lambda: ranks)
        patch = mock.patch.dict(sys.modules, {"vllm.distributed": distributed})
        patch.start()
        self.addCleanup(patch.stop)

    def load(self, place, extra, *wants, **more):
        loader = self.known["sluice"](types.SimpleNamespace(model_loader_extra_config=extra))
        model = Model(*wants)
        model.__dict__.update(more)
        loader.download_model(None)
        loader.load_weights(model, types.SimpleNamespace(model=place, revision=None))
        return model.got

class Vllm(Engine):
    def test_weights_come_from_the_models_path_or_a_uri(self):
        sluice.vllm.register()
        sluice.vllm.register()
        for place, extra in ((self.at("m.safetensors"), {}), ("nowhere", {"uri": self.at("m.safetensors")})):
            self.assertEqual({name: tensor.tolist() for name, tensor in self.load(place, extra).items()}, {"a": [1, 1], "b": [0]})
        with self.assertRaisesRegex(ValueError, "sockte"):
            self.load("x", {"sockte": "y"})
        with self.assertRaises(ValueError):
            self.load("x", {"uri": "y", "model": "z"})

    def reloaded(self, model, extra, place):
        """As vLLM does it in place: by a new loader, which it asks for the weights."""
        loader = self.known["sluice"](types.SimpleNamespace(model_loader_extra_config=extra))
        return dict(loader.get_all_weights(types.SimpleNamespace(model=place, revision=None), model))["a"][0].item()

    def test_a_reload_takes_the_path_that_it_is_given(self):
        """Without one what the start was told to take, as it is by now."""
        sluice.vllm.register()
        for value, name in ((2.0, "new"), (3.0, "other")):
            os.makedirs(self.at(name))
            make({"a": torch.full((2,), value)}, self.at(name + "/m.safetensors"))
        extra, model = {"uri": self.at("m.safetensors")}, Model()
        loader = self.known["sluice"](types.SimpleNamespace(model_loader_extra_config=extra))
        loader.load_weights(model, types.SimpleNamespace(model="engine's", revision=None))
        self.assertEqual(self.reloaded(model, extra, "engine's"), 1)
        make({"a": torch.full((2,), 5.0)}, self.at("m.safetensors"))
        self.assertEqual(self.reloaded(model, extra, "engine's"), 5)
        self.assertEqual(self.reloaded(model, extra, self.at("new")), 2)
        self.assertEqual(self.reloaded(model, {"model": "m", "deposit": True}, self.at("other")), 3)
        self.assertEqual(self.reloaded(model, {**extra, "sharded_state": True}, self.at("new")), 2)
        with self.assertRaisesRegex(ValueError, "sharded_state.*weights_path"):
            self.reloaded(model, {**extra, "sharded_state": True}, "engine's")

    def test_after_a_reload_that_broke_off_there_is_no_other(self):
        sluice.vllm.register()
        model, extra = Model(), {"uri": self.at("m.safetensors")}
        self.known["sluice"](types.SimpleNamespace(model_loader_extra_config=extra)).load_weights(model, types.SimpleNamespace(model="x", revision=None))
        with self.assertRaises(sluice.SluiceError):
            self.reloaded(model, extra, self.at("lacking.safetensors"))
        with self.assertRaisesRegex(RuntimeError, "start the engine again"):
            self.reloaded(model, extra, "x")

    def test_a_weight_that_the_file_lacks_is_refused(self):
        sluice.vllm.register()
        self.assertEqual(set(self.load(self.at("m.safetensors"), {}, "a", "b")), {"a", "b"})
        for ranks in (1, 2):
            self.shared_by(ranks)
            with self.assertRaisesRegex(ValueError, "not initialized.*lacking"):
                self.load(self.at("m.safetensors"), {}, "a", "b", "lacking")

    def test_what_vllm_does_not_look_at_is_said(self):
        sluice.vllm.register()
        with self.assertWarnsRegex(RuntimeWarning, "goes on without weights.*linear"):
            self.load(self.at("m.safetensors"), {}, "a", "b", "linear")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            self.load(self.at("m.safetensors"), {}, "a", "b")

    def test_weights_from_elsewhere_have_their_prefix(self):
        sluice.vllm.register()
        os.makedirs(self.at("vision/tower"))
        make({"c": torch.full((3,), 2.0)}, self.at("vision/tower/v.safetensors"))
        make({"d": torch.ones(1)}, self.at("vision/tower/other.safetensors"))
        towers = (Source(self.at("vision/tower"), prefix="all."), Source(self.at("vision"), subfolder="tower", prefix="one.", allow_patterns_overrides=["v.*"]))
        got = self.load("nowhere", {"uri": self.at("m.safetensors")}, "one.c", secondary_weights=towers)
        self.assertEqual(set(got), {"a", "b", "all.c", "all.d", "one.c"})
        self.assertEqual(got["one.c"].tolist(), [2, 2, 2])

    @needs_writing
    def test_encrypted_weights_are_loaded_with_a_key(self):
        sluice.vllm.register()
        key, path = sluice.Key.random(), self.at("e.tensors")
        for name, secret, text in (("key_file", key, key.key), ("passphrase_file", "correct horse", b"correct horse\n")):
            sluice.save({"a": torch.full((3,), 5.0)}, path, key=secret)
            with open(self.at("secret"), "wb") as file:
                file.write(text)
            for ranks in (1, 2):
                self.shared_by(ranks)
                self.assertEqual(self.load(path, {name: self.at("secret")})["a"].tolist(), [5, 5, 5])
        with self.assertRaises(sluice.SluiceError):
            self.load(path, {})
        with self.assertRaisesRegex(ValueError, "both"):
            self.load(path, {"key_file": "a", "passphrase_file": "b"})
        with self.assertWarnsRegex(DeprecationWarning, "called deposit_key"):
            self.assertEqual(_engines.checked({"model": "m", "key": "k"}), {"model": "m", "deposit_key": "k"})

    def test_only_what_a_module_wants_is_read(self):
        """allow_patterns_overrides, is_unused_checkpoint_weight, experts of other ranks, --mm-encoder-only, and one of two sets."""
        sluice.vllm.register()
        os.makedirs(self.at("all"))
        names = ("experts.0.weight", "experts.1.weight", "lm.a", "vision.b")
        make({name: torch.ones(2) for name in names}, self.at("all/model.safetensors"))
        make({"c": torch.ones(2)}, self.at("all/other.safetensors"))
        place, skip = self.at("all"), lambda name, ids: name.startswith("experts.") and int(name.split(".")[1]) not in ids
        filters = module("ep_weight_filter", should_skip_weight=skip)
        with mock.patch.dict(sys.modules, {"vllm.model_executor.model_loader.ep_weight_filter": filters}):
            for ranks in (1, 2):
                self.shared_by(ranks)
                self.assertEqual(set(self.load(place, {})), {*names, "c"})
                self.assertEqual(set(self.load(place, {}, allow_patterns_overrides=["oth*"])), {"c"})
                self.assertEqual(set(self.load(place, {}, is_unused_checkpoint_weight=lambda name: name != "lm.a")), {"lm.a"})
                for inner, left in (({"local_expert_ids": {1}}, {"experts.0.weight"}), ({"_encoder_only_lm_prefixes": ("lm.",)}, {"lm.a"})):
                    with mock.patch.multiple(self.known["sluice"], create=True, **inner):
                        self.assertEqual(set(self.load(place, {})), {*names, "c"} - left)
        make({"mistral": torch.ones(2)}, self.at("all/consolidated.safetensors"))
        self.assertEqual(set(self.load(place, {})), {"mistral"})
        found = _engines.weights(place, {})
        self.assertEqual({name for name, _ in found}, {*names, "c"})

    def test_a_draft_model_has_its_own_weights(self):
        """One configuration of a loader is for both, and says where the model's weights are."""
        sluice.vllm.register()
        for name, value in (("main", 1.0), ("draft", 2.0), ("third", 3.0)):
            os.makedirs(self.at(name))
            make({"a": torch.full((2,), value)}, self.at(name + "/m.safetensors"))

        def loaded(path, extra, speculative, load_config=None):
            load_config = load_config or types.SimpleNamespace(model_loader_extra_config=extra)
            config = types.SimpleNamespace(model=path, revision=None, made=Model())
            whole = types.SimpleNamespace(model_config=speculative.target_model_config, speculative_config=speculative)
            return self.known["sluice"](load_config).load_model(whole, config).got["a"][0].item()

        def speculative(draft, **more):
            models = {"target_model_config": "main", "draft_model_config": draft}
            return types.SimpleNamespace(**{key: types.SimpleNamespace(model=self.at(name)) for key, name in models.items()}, **more)

        extra = {"uri": self.at("main/m.safetensors")}
        self.assertEqual(loaded(self.at("main"), extra, speculative("draft")), 1)
        self.assertEqual(loaded(self.at("draft"), extra, speculative("draft")), 2)
        there = {**extra, "draft": {"uri": self.at("third/m.safetensors")}}
        self.assertEqual(loaded(self.at("draft"), there, speculative("draft")), 3)
        self.assertEqual(loaded(self.at("main"), there, speculative("draft")), 1)
        same = speculative("main")  # its layers are in the model's own files
        self.assertEqual(loaded(self.at("main"), {"uri": self.at("third/m.safetensors")}, same), 3)
        own = types.SimpleNamespace(model_loader_extra_config={"uri": self.at("third/m.safetensors")})
        self.assertEqual(loaded(self.at("draft"), extra, speculative("draft", draft_load_config=own), own), 3)
        for wrong in ({"draft": {"draft": {}}}, {"draft": 5}, {"draft": {"sockte": "x"}}, {"deposit": True}, {"model": "m", "key": "k", "deposit": True}):
            with self.assertRaises(ValueError):
                loaded(self.at("main"), wrong, speculative("draft"))

    def test_a_name_is_a_repository_of_the_hub(self):
        for place, revision, uri in (
            ("org/name-1.5", None, "hf://org/name-1.5"), ("org/name", "v1", "hf://org/name@v1"), ("org/name", "refs/pr/3", "hf://org/name@refs/pr/3"),
            (self.folder, "v1", self.folder), ("s3://m/x/", None, "s3://m/x/"), ("/not/there", None, "/not/there"), ("name", None, "name"),
            ("../name", None, "../name"), ("org/name", "a/b", "hf://org/name@a%2Fb"),
        ):
            self.assertEqual(_engines.uri_of(place, revision), uri)

    def test_one_of_several_ranks_gets_the_same(self):
        sluice.vllm.register()
        self.shared_by(2)
        made = {"a": torch.arange(24.0).reshape(6, 4), "b": torch.zeros(1)}
        make(made, self.at("m.safetensors"))
        with mock.patch.object(_parts, "SMALL_BYTES", 64):
            self.assertSame(dict(sorted(self.load(self.at("m.safetensors"), {}).items())), made)


class Tied(torch.nn.Module):
    """What an engine has of a rank when all is done: names that a checkpoint lacks, a buffer, one memory under two names, padding."""

    def __init__(self):
        super().__init__()
        self.qkv_proj = torch.nn.Linear(4, 6, bias=False)
        self.embed = torch.nn.Embedding(8, 4)
        self.lm_head = torch.nn.Linear(4, 8, bias=False)
        self.lm_head.weight = self.embed.weight
        self.register_buffer("scale", torch.zeros(2))
        self.register_buffer("first", self.scale[:1])
        self.register_buffer("empty", torch.zeros(0))


class ShardedState(Engine):
    """Each rank has files of its own, of what was in its module."""

    def setUp(self):
        super().setUp()
        sluice.vllm.register()
        os.makedirs(self.at("m"))
        for rank in range(2):
            self.save(rank, 0, {"qkv_proj.weight": torch.full((6, 4), 1.0 + rank), "scale": torch.full((2,), 5.0 + rank)})
            self.save(rank, 1, {"embed.weight": torch.full((8, 4), 3.0 + rank)})

    def save(self, rank, part, tensors, name="m/model-rank-{}-part-{}.safetensors"):
        make(tensors, self.at(name.format(rank, part)))

    def start(self, rank, ranks, extra, place=None):
        names = {"get_tensor_model_parallel_rank": lambda: rank, "get_tensor_model_parallel_world_size": lambda: ranks}
        loader = self.known["sluice"](types.SimpleNamespace(model_loader_extra_config={"sharded_state": True, **extra}))
        made = Tied()
        with mock.patch.dict(sys.modules, {"vllm.distributed": module("vllm.distributed", **names)}):
            loader.load_weights(made, types.SimpleNamespace(model=place or self.at("m"), revision=None))
        return [made.qkv_proj.weight[0, 0].item(), made.lm_head.weight[7, 3].item(), made.first.item()]

    def test_a_rank_takes_its_own_files_and_no_others(self):
        self.assertEqual(self.start(0, 2, {}), [1, 3, 5])
        self.assertEqual(self.start(1, 2, {}), [2, 4, 6])
        self.assertEqual(self.start(0, 2, {"rank": 1}), [2, 4, 6])
        self.assertEqual(self.start(1, 2, {"uri": self.at("m") + "/"}, "nowhere"), [2, 4, 6])

    def test_ranks_of_another_number_are_refused(self):
        for rank, ranks, words in ((0, 1, "model-rank-1-part-.*is there"), (2, 3, "model-rank-2-part-.*not there"), (0, 4, "model-rank-2-part-.*not there")):
            with self.assertRaisesRegex(sluice.SluiceError, words):
                self.start(rank, ranks, {})
        os.remove(self.at("m/model-rank-1-part-0.safetensors"))
        with self.assertRaisesRegex(sluice.SluiceError, "of rank 1 1 file is there"):
            self.start(1, 2, {})

    def test_every_parameter_is_filled_by_a_tensor_of_its_size(self):
        whole = {"qkv_proj.weight": torch.ones(6, 4), "scale": torch.ones(2), "embed.weight": torch.ones(8, 4)}
        for change, words in (
            ({"scale": None}, "lack 1 of the model's tensors: scale"), ({"more": torch.ones(1)}, "'more' .* fills no parameter"),
            ({"lm_head.weight": torch.ones(8, 4)}, "'lm_head.weight' .* fills no parameter"), ({"scale": torch.ones(3)}, r"shape \[3\]"),
            ({"scale": torch.ones(2, 1)}, r"shape \[2, 1\]"), ({"qkv_proj.weight": torch.ones(6, 8)}, r"its parameter \[6, 4\]"),
        ):
            tensors = {name: tensor for name, tensor in {**whole, **change}.items() if tensor is not None}
            make(tensors, self.at("one0.safetensors"))
            with self.assertRaisesRegex(ValueError, words):
                self.start(0, 1, {"uri": self.at("one{rank}.safetensors")})

    def test_a_padded_parameter_is_filled_in_part_and_it_is_said(self):
        self.save(0, 1, {"embed.weight": torch.full((6, 4), 9.0)})
        with self.assertWarnsRegex(RuntimeWarning, "narrower.*embed.weight"):
            self.assertEqual(self.start(0, 2, {})[0], 1)

    def test_a_name_may_say_the_rank(self):
        for rank in range(2):
            self.save(rank, 0, {"qkv_proj.weight": torch.full((6, 4), 7.0 + rank), "scale": torch.ones(2), "embed.weight": torch.ones(8, 4)}, "r{:03d}.safetensors")
        self.assertEqual(self.start(1, 2, {"uri": self.at("r{rank:03d}.safetensors")})[0], 8)
        self.assertEqual(_ranks.of_rank("a/{rank}/b-{rank:02d}", 7), "a/7/b-07")
        seen = []
        with mock.patch.object(_engines, "from_pool", lambda name, extra: seen.append(name) or iter(())), self.assertRaisesRegex(ValueError, "lack 3"):
            self.start(1, 2, {"model": "llama-{rank}"})
        self.assertEqual(seen, ["llama-1"])

    def test_what_does_not_go_with_it_is_refused(self):
        for wrong in ({"rank": -1}, {"rank": "1"}, {"rank": True}, {"model": "m", "deposit": True}, {"sharded_state": False, "rank": 1}):
            with self.assertRaises(ValueError):
                self.start(0, 1, wrong)

    def test_of_one_memory_the_name_that_covers_it_is_filled(self):
        memory = torch.zeros(4, 6)
        state = {"b": memory, "a": memory.view(4, 6), "part": memory[1], "turned": memory.t(), "other": torch.zeros(1), "none": torch.zeros(0)}
        self.assertEqual(set(_ranks.distinct(state)), {"a", "other"})
        rows = {"odd": memory[1::2], "even": memory[0::2]}  # neither covers the other
        self.assertEqual(set(_ranks.distinct(rows)), {"odd", "even"})


class Parts(Case):
    """Tensors as ranks are given them, and what vLLM's layers do with them."""

    def setUp(self):
        super().setUp()
        self.made = {"wide": torch.arange(24.0).reshape(4, 6), "deep": torch.arange(60).reshape(5, 4, 3), "flat": torch.arange(7.0).half()}
        self.path = self.at("m.safetensors")
        make(self.made, self.path)
        patch = mock.patch.object(_parts, "SMALL_BYTES", 1)
        patch.start()
        self.addCleanup(patch.stop)

    def unread(self, uri=None):
        return dict(_parts.weights(sluice.open(uri or self.path, framework="torch")))

    def test_only_what_is_taken_is_fetched(self):
        rows = torch.arange(1 << 20).reshape(2048, 512).float()  # 4 MiB
        make({"rows": rows}, self.path)
        server = Server(self.path)
        self.addCleanup(server.close)
        for rank in range(4):
            model = sluice.open(server.url, framework="torch")
            (_, loaded), = _parts.weights(model)
            before = model.bytes_fetched
            weight = torch.empty(512, 512)
            weight.data.copy_(loaded.narrow(0, rank * 512, 512))  # ColumnParallelLinear, VocabParallelEmbedding
            self.assertTrue(torch.equal(weight, rows[rank * 512:][:512]))
            self.assertLess(model.bytes_fetched - before, (1 << 20) + 4096, "a quarter")
            columns = torch.empty(2048, 128)
            columns.copy_(loaded.narrow(1, rank * 128, 128))  # RowParallelLinear
            self.assertTrue(torch.equal(columns, rows[:, rank * 128:][:, :128]))

    def test_a_dry_run_reads_nothing(self):
        """vLLM counts what a weight would fill before it takes it: its loader copies into a tensor without memory."""
        rows = torch.arange(1 << 20).reshape(2048, 512).float()
        make({"rows": rows}, self.path)
        server = Server(self.path)
        self.addCleanup(server.close)
        model = sluice.open(server.url, framework="torch")
        (_, loaded), = _parts.weights(model)
        before = model.bytes_fetched
        torch.empty(512, 512, device="meta").copy_(loaded.narrow(0, 512, 512))
        self.assertEqual(model.bytes_fetched, before)
        weight = torch.empty(512, 512)
        weight.copy_(loaded.narrow(0, 512, 512))
        self.assertTrue(torch.equal(weight, rows[512:1024]))

    def test_layers_find_what_they_look_for(self):
        loaded, real = self.unread()["wide"], self.made["wide"]
        for ask in (
            lambda one: one.shape, lambda one: one.dtype, lambda one: one.device, lambda one: one.size(), lambda one: one.size(1),
            lambda one: one.dim(), lambda one: one.ndim, lambda one: one.numel(), lambda one: len(one), lambda one: one.element_size(),
            lambda one: one.is_floating_point(), lambda one: one.requires_grad, lambda one: one.narrow(0, 1, 2).shape,
        ):
            self.assertEqual(ask(loaded), ask(real))
        self.assertIsInstance(loaded, torch.Tensor)
        self.assertIsNone(loaded.stored.held, "nothing was read")

    def test_whatever_is_done_with_it_is_done_with_its_bytes(self):
        calls = (
            lambda one: one.narrow(-1, 2, 2), lambda one: torch.narrow(one, 0, 1, 2), lambda one: one.narrow(0, -2, 2), lambda one: one[1],
            lambda one: one[1:3], lambda one: one[1:, 2], lambda one: one[-1], lambda one: one[..., 1], lambda one: one[::2],
            lambda one: one[None, 1], lambda one: one[one > 3], lambda one: one[torch.tensor([1, 0])], lambda one: one[3:1], lambda one: one[2:99],
            lambda one: one[1:].narrow(0, 1, 1)[0], lambda one: one.chunk(3)[1], lambda one: torch.cat(one.split(2)), lambda one: one.split((1, 3))[1],
            lambda one: torch.cat(one.chunk(4, dim=-1), -1), lambda one: one.split(4, 1)[1], lambda one: one.t(), lambda one: one.reshape(-1),
            lambda one: one.to(torch.float64), lambda one: one + one, lambda one: torch.cat([one, one[:1]]), lambda one: one.data,
            lambda one: one.contiguous(), lambda one: one.detach()[1], lambda one: one.clone(), lambda one: torch.tensor(one.tolist()),
            lambda one: torch.from_numpy(one.numpy()), lambda one: one[1, 2].item(), lambda one: one.unbind(0)[1], lambda one: list(one)[2],
            lambda one: one.narrow(0, 3, 2), lambda one: one.narrow(2, 0, 1), lambda one: one[4], lambda one: one[0, 0, 0], lambda one: one.split(0),
            lambda one: one.split((1, 1)), lambda one: one.chunk(0), lambda one: one[True], lambda one: torch.empty(4, 6).copy_(one),
        )
        for name, real in self.made.items():
            for number, call in enumerate(calls):
                (mine, wrong), (right, error) = self.both([lambda: call(self.unread()[name]), lambda: call(real)])
                self.assertEqual(wrong, error, (name, number))
                if isinstance(right, torch.Tensor):
                    self.assertEqual((mine.dtype, mine.shape, mine.tolist()), (right.dtype, right.shape, right.tolist()), (name, number))
                elif error is None:
                    self.assertEqual(mine, right, (name, number))

    def test_it_outlives_its_model_and_its_address_stays(self):
        loaded = self.unread()["wide"]
        address = loaded.data_ptr()
        self.assertNotEqual(address, 0)
        self.assertEqual((loaded.data_ptr(), loaded.tolist()), (address, self.made["wide"].tolist()))

    @needs_writing
    def test_what_has_a_hash_over_the_whole_is_read_whole(self):
        sluice.save(self.made, self.at("m.tensors"))
        found = self.unread(self.at("m.tensors"))
        self.assertEqual({type(tensor) for tensor in found.values()}, {torch.Tensor})
        self.assertSame(dict(sorted(found.items())), dict(sorted(self.made.items())))


class Pool:
    """A pool of one model, as attach() and Deposit show it; deposits are bound to its version."""

    def __init__(self, made, version=b"1"):
        self.made, self.version, self.kept, self.asked = made, version, {}, []

    def attach(self, name, device="cpu", *, deposit=None, **options):
        key = deposit
        self.asked.append(key)
        if key is None:
            return Attached(self.made, self.version)
        if (key, self.version) not in self.kept:
            raise sluice.SluiceError(f"nobody deposited '{key}'", "NOT_FOUND", "absent")
        return Attached(self.kept[key, self.version], self.version)

    def deposit(self, source, key, nbytes, **options):
        return Deposited(self, source, key, nbytes)


class Attached(dict):
    def __init__(self, made, version):
        super().__init__({name: types.SimpleNamespace(torch=lambda tensor=tensor: tensor, shape=tuple(tensor.shape)) for name, tensor in made.items()})
        self.version = version

    def close(self):
        self.version = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Deposited:
    def __init__(self, pool, source, key, nbytes):
        self.pool, self.of, self.left, self.rows = pool, (key, source.version), nbytes, {}

    def room(self, name, dtype, shape):
        place = torch.empty(shape, dtype=torch_dtype(dtype))
        self.left -= -(-place.numel() * place.element_size() // 256) * 256
        assert self.left >= 0, "less room was announced"
        self.rows[name] = place
        return types.SimpleNamespace(torch=lambda: place)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.pool.kept[self.of] = self.rows


class Fused(torch.nn.Module):
    """It loads two tensors of a checkpoint into one of its own, as engines do."""

    calls = []  # of all: loading changes nothing of a module but its tensors

    def __init__(self):
        super().__init__()
        self.qk = torch.nn.Parameter(torch.zeros(4, 2, dtype=torch.bfloat16))
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def load_weights(self, weights):
        found = dict(weights)
        self.calls.append(sorted(found))
        with torch.no_grad():
            self.qk.copy_(torch.cat([found["q"], found["k"]]))
            self.seen += 1
        return {"qk"}


class Deposits(Vllm):
    """An engine's start from what an earlier start kept in the pool."""

    def setUp(self):
        super().setUp()
        self.pool = Pool({"q": torch.ones(2, 2), "k": torch.full((2, 2), 2.0)})
        for name, mine in (("attach", self.pool.attach), ("Deposit", self.pool.deposit)):
            for where in (_deposits, _engines):
                if hasattr(where, name):
                    patch = mock.patch.object(where, name, mine)
                    patch.start()
                    self.addCleanup(patch.stop)
        sluice.vllm.register()
        Fused.calls.clear()

    def start(self, made=None, **more):
        made = made or Fused()
        loader = self.known["sluice"](types.SimpleNamespace(model_loader_extra_config={"model": "m", "deposit": True}))
        loader.load_model(types.SimpleNamespace(), types.SimpleNamespace(model="m", revision=None, made=made, dtype="bf16", **more))
        return made

    def test_the_second_start_takes_what_the_first_made(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            first, second = self.start(), self.start()
        self.assertEqual(Fused.calls, [["k", "q"]], "the second has loaded nothing")
        self.assertTrue(torch.equal(first.qk, second.qk) and first.qk.sum() == 12)
        self.assertEqual((first.seen.item(), second.seen.item()), (1, 1), "buffers that are not saved, too")

    def test_what_would_make_other_tensors_is_another_key(self):
        def starts():
            for _ in range(2):
                self.start()
                self.start(quantization="fp8")
                self.start(hf_config=types.SimpleNamespace(to_json_string=lambda: "{}"))
                with mock.patch.object(torch, "__version__", "9.9"):
                    self.start()
                group = types.SimpleNamespace(rank_in_group=1, world_size=2)
                with mock.patch.dict(sys.modules, {"vllm.distributed": module("vllm.distributed", get_tp_group=lambda: group)}):
                    self.start()

        starts()
        self.assertEqual((len(self.pool.kept), len(Fused.calls)), (5, 5), "the second of each has loaded nothing")
        self.pool.version = b"2"  # what was made from another does not count
        starts()
        self.assertEqual((len(self.pool.kept), len(Fused.calls)), (10, 10))

    def test_what_is_not_whole_is_not_kept(self):
        class Silent(Fused):
            def load_weights(self, weights):
                super().load_weights(weights)
                return None  # the engine cannot check it

        class Scaled(Fused):
            def load_weights(self, weights):
                self.scale = 3.0
                return super().load_weights(weights)

        class Exchanged(Fused):
            def load_weights(self, weights):
                done = super().load_weights(weights)
                self.qk = torch.nn.Parameter(self.qk.float())
                return done

        for made, why in ((Silent, "does not say"), (Scaled, "more than tensors: .scale"), (Exchanged, "exchanged tensors")):
            with self.assertWarnsRegex(RuntimeWarning, why):
                self.start(made())
        elsewhere = Fused()
        elsewhere.secondary_weights = (Source(self.at("m.safetensors"), prefix="other."),)
        with self.assertWarnsRegex(RuntimeWarning, "elsewhere"):
            self.start(elsewhere)
        self.assertEqual(self.pool.kept, {})

    def test_a_pool_that_refuses_is_a_warning_and_no_more(self):
        def refuses(*arguments, **options):
            raise sluice.SluiceError("user 7 cannot deposit: name it in pool.depositUids", "AUTH")

        with mock.patch.object(_deposits, "Deposit", refuses), self.assertWarnsRegex(RuntimeWarning, "depositUids"):
            self.assertEqual(self.start().qk.sum(), 12)

    def test_a_deposit_that_does_not_fit_is_refused(self):
        self.start()
        for rows in self.pool.kept.values():
            rows["qk"] = rows["qk"][:2]
        with self.assertRaisesRegex(ValueError, "does not fit"):
            self.start()


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

            @classmethod
            def _filter_mtp_weights(cls, weights, prefix, layer):
                return tuple((prefix + name, tensor) for name, tensor in weights if name.endswith(str(layer)))

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
            make({"a": torch.zeros(2)}, self.at("draft.safetensors"))
            config.model_loader_extra_config = '{"uri": "%s"}' % self.at("m.safetensors")
            for path, draft, value in (("m", False, 1), ("draft", True, 0)):
                small = types.SimpleNamespace(model_path=self.at(path + ".safetensors"), is_draft_model=draft)
                get(None, config).load_model(model, small)
                self.assertEqual(model.got["a"].tolist(), [value, value], "a draft model has its own weights")
            served = types.SimpleNamespace(model_path=self.at("draft.safetensors"))
            for where, accessor in sluice.sglang.ARGUMENTS:
                def retired():
                    raise RuntimeError("retired")

                told = {name: module(name, **{word: (lambda: served) if name == where else retired}) for name, word in sluice.sglang.ARGUMENTS}
                with self.subTest(accessor=accessor), mock.patch.dict(sys.modules, told):
                    small = types.SimpleNamespace(model_path=served.model_path, is_draft_model=True)
                    get(None, config).load_model(model, small)
                    self.assertEqual(model.got["a"].tolist(), [1, 1], "layers for speculation of the model's own weights")
            make({"layer.0": torch.zeros(1), "layer.1": torch.ones(1)}, self.at("layers.safetensors"))
            config.model_loader_extra_config, config.draft_model_idx, model = "", 1, Model()
            get(None, config).load_model(model, types.SimpleNamespace(model_path=self.at("layers.safetensors")))
            self.assertEqual(list(model.got), ["layer.1"])
            formats = module("load_config", LoadFormat=types.SimpleNamespace(AUTO="auto"))
            config.model_loader_extra_config, config.draft_model_idx = "", None
            with mock.patch.dict(sys.modules, {"sglang.srt.configs": module("configs"), "sglang.srt.configs.load_config": formats}):
                class ModelOptModelLoader(DefaultModelLoader):
                    def __init__(self, load_config):
                        assert (load_config.load_format, load_config.model_loader_extra_config) == ("auto", {})

                class Plain(DefaultModelLoader):
                    __init__ = ModelOptModelLoader.__init__

                loader.DefaultModelLoader = Plain
                model = Model()
                plain = get(lambda given, model_config: Plain(given), config, types.SimpleNamespace())
                plain.load_model(model, types.SimpleNamespace(model_path=self.at("m.safetensors")))
                self.assertEqual(list(model.got), ["a"])
                with self.assertRaisesRegex(ValueError, "by ModelOptModelLoader"):
                    get(lambda given, model_config: ModelOptModelLoader(given), config, model_config=types.SimpleNamespace())
            config.model_loader_extra_config = {"model": "m", "deposit": True}
            with self.assertRaisesRegex(ValueError, "vLLM alone"):
                get(None, config)


if __name__ == "__main__":
    unittest.main()
