"""Adapters by name: what is fetched, refused, shared and removed, and what vLLM's resolver answers (against a stand-in)."""
import asyncio
import dataclasses
import gc
import json
import os
import subprocess
import sys
import threading
import types
import unittest
from unittest import mock

import torch
from bucket import Bucket
from case import Case, make

import sluice
from sluice import lora

BASE = "org/Llama-8B"
OTHER_PROCESS = """import sys
from sluice import lora
found = lora.Adapters(sys.argv[1], sys.argv[2]).fetch(sys.argv[3])
print(found.path, flush=True)
sys.stdin.read()
"""


class Program:
    """What makes a folder when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def module(name, **members):
    made = types.ModuleType(name)
    made.__dict__.update(members)
    return made


class Stored(Case):
    """A store of adapters, and a folder for them."""

    def setUp(self):
        super().setUp()
        self.pulls = []
        pull = lora.pull

        def counted(uri, directory, **options):
            self.pulls.append(uri)
            pull(uri, directory, **options)

        patch = mock.patch.object(lora, "pull", counted)
        patch.start()
        self.addCleanup(patch.stop)
        self.uri, self.there = self.at("store") + "/", self.at("there")

    def put(self, name, value=1.0, size=4, **config):
        folder = os.path.join(self.uri, name)
        os.makedirs(folder, exist_ok=True)
        make({"base_model.model.q_proj.lora_A.weight": torch.full((size,), value)}, os.path.join(folder, "adapter_model.safetensors"))
        with open(os.path.join(folder, "adapter_config.json"), "w", encoding="utf-8") as file:
            json.dump({"peft_type": "LORA", "base_model_name_or_path": BASE, "r": 8, **config}, file)
        return folder

    def adapters(self, **options):
        found = lora.Adapters(self.uri, self.there, **options)
        self.addCleanup(lambda: [lease.end() for lease in found._leases.values()])
        return found

    def bucket(self):
        """What was put, as a bucket, and adapters out of it."""
        found = Bucket(self.uri)
        self.addCleanup(found.close)
        self.uri = "s3://models/"
        return found, self.adapters(credentials=sluice.credentials(endpoint=found.endpoint, anonymous=True))

    def refused(self, adapters, name, words, base=BASE):
        with self.assertLogs("sluice", "WARNING") as said:
            self.assertIsNone(adapters.fetch(name, base))
        self.assertEqual(len(said.output), 1)
        self.assertRegex(said.output[0], words)


class Lora(Stored):
    """What is asked for, fetched and removed."""

    def test_an_adapter_loads_like_any_model(self):
        folder = self.put("sql")
        self.assertEqual(list(sluice.load(folder)), ["base_model.model.q_proj.lora_A.weight"])
        with sluice.open(folder) as model:
            self.assertEqual(json.loads(bytes(model.files["adapter_config.json"].memoryview()))["r"], 8)
        os.remove(os.path.join(folder, "adapter_model.safetensors"))
        torch.save({"a": torch.ones(3)}, os.path.join(folder, "adapter_model.bin"))
        self.assertEqual(sluice.load(folder)["a"].tolist(), [1, 1, 1])

    def test_who_asks_twice_is_given_the_same(self):
        folder = self.put("sql")
        with open(os.path.join(folder, "optimizer.pt"), "wb") as file:
            file.write(b"state")  # of the training
        adapters = self.adapters()
        first, again = adapters.fetch("sql", BASE), adapters.fetch("sql", BASE)
        self.assertEqual(first, again)
        self.assertEqual(len(self.pulls), 1)
        self.assertEqual(sorted(name for name in os.listdir(first.path) if name[0] != "."), ["adapter_config.json", "adapter_model.safetensors"])
        self.assertEqual(os.path.dirname(first.path), os.path.join(self.there, "sql"))
        self.assertGreater(first.number, 0)
        self.assertEqual(self.adapters().fetch("sql").number, first.number, "in another process, too")

    def test_a_store_that_lists_versions_is_asked_for_a_list(self):
        self.put("sql")
        bucket, adapters = self.bucket()
        found = adapters.fetch("sql", BASE)
        bucket.asked.clear()
        self.assertEqual(adapters.fetch("sql", BASE), found)
        self.assertEqual(bucket.asked, ["list"])
        folder, self.uri = self.uri, bucket.directory
        self.put("sql", 2.0)
        self.uri = folder
        self.assertNotEqual(adapters.fetch("sql", BASE).version, found.version)

    def test_adapters_one_after_another_come_by_the_same_connections(self):
        names = [f"a{i}" for i in range(20)]
        for name in names:
            self.put(name)
        bucket, adapters = self.bucket()
        with mock.patch.object(lora, "IDLE_SECONDS", 300):
            for name in names:
                self.assertIsNotNone(adapters.fetch(name, BASE))
        self.assertEqual(bucket.asked.count("list"), 3 * len(names))
        self.assertLess(bucket.connections, len(names))

    def test_another_version_is_another_folder(self):
        self.put("sql")
        adapters = self.adapters()
        first = adapters.fetch("sql")
        self.put("sql", 2.0, 5)
        second = adapters.fetch("sql")
        self.assertNotEqual((first.path, first.number), (second.path, second.number))
        self.assertEqual([len(sluice.load(each.path)["base_model.model.q_proj.lora_A.weight"]) for each in (first, second)], [4, 5])

    def test_what_changes_meanwhile_has_its_own_name(self):
        self.put("sql")
        pull, adapters = lora.pull, self.adapters()

        def late(uri, directory, **options):
            if len(self.pulls) < 1:
                self.put("sql", 2.0, 5)
            pull(uri, directory, **options)

        with mock.patch.object(lora, "pull", late):
            found = adapters.fetch("sql")
        self.assertEqual(found.version, adapters._version_of("sql"))
        self.assertEqual(len(sluice.load(found.path)["base_model.model.q_proj.lora_A.weight"]), 5)
        others = [each for each in os.listdir(os.path.dirname(found.path)) if not each.startswith(found.version) and not each.endswith(lora.LEASE)]
        self.assertEqual([lora._is_whole(os.path.join(os.path.dirname(found.path), each)) for each in others], [False])
        with mock.patch.object(adapters, "_version_of", lambda name, numbers=iter(range(99)): f"{next(numbers):032x}"):
            with self.assertRaisesRegex(sluice.SluiceError, "has no versions"):
                adapters.fetch("sql")

    def test_after_a_restart_of_the_machine_it_is_compared(self):
        self.put("sql")
        found = self.adapters().fetch("sql")
        with open(self.at("boot"), "w", encoding="ascii") as file:
            file.write("another")
        with mock.patch.object(lora, "BOOT", self.at("boot")):
            self.assertEqual(self.adapters().fetch("sql"), found)
        self.assertEqual(len(self.pulls), 2)
        self.assertEqual(self.adapters().fetch("sql"), found)
        self.assertEqual(len(self.pulls), 2)

    def test_names_that_lead_elsewhere_are_refused(self):
        self.put("sql")
        for name in ("", ".", "..", ".sql", "../sql", "a/sql", "/sql", "sql/", "a\\sql", "sql?x", "sql\0", "s ql", "sql%2f", "a" * 129, "sql\n"):
            self.refused(self.adapters(), name, "a name has letters")
        self.assertFalse(os.path.exists(self.there))
        self.assertEqual(self.pulls, [])

    def test_what_is_not_there_is_none(self):
        self.put("sql")
        self.refused(self.adapters(), "other", "adapter 'other' is not there")
        with self.assertRaises(sluice.SluiceError):
            lora.Adapters("http://127.0.0.1:1/", self.there, timeout=0.2).fetch("sql")

    def test_the_base_model_must_agree(self):
        for named, base, agrees in (
            (BASE, BASE, True), (BASE, "/models/llama-8b/", True), (BASE, "org/Llama-70B", False), (None, "any", True), ("", "any", True), (BASE, None, True),
            ("/", "/models/", False),
        ):
            self.put("sql", base_model_name_or_path=named)
            if agrees:
                self.assertIsNotNone(self.adapters().fetch("sql", base), (named, base))
            else:
                self.refused(self.adapters(), "sql", "its base model is", base)
        self.put("sql")
        self.assertIsNotNone(self.adapters(bases=["org/Llama-8B"]).fetch("sql", "ours"))

    def test_what_is_no_adapter_is_told(self):
        self.put("ia3", peft_type="IA3")
        self.refused(self.adapters(), "ia3", "its peft_type is 'IA3'")
        for name, config in (("broken", "{"), ("list", "[]"), ("deep", "[" * 100000)):
            with open(os.path.join(self.put(name), "adapter_config.json"), "w", encoding="utf-8") as file:
                file.write(config)
            self.refused(self.adapters(), name, "adapter_config.json (cannot be read|is not a mapping)")
        os.remove(os.path.join(self.put("bare"), "adapter_model.safetensors"))
        self.refused(self.adapters(), "bare", "it has none of adapter_model.safetensors")

    def test_a_pickle_that_is_a_program_comes_to_no_engine(self):
        mark = self.at("executed")
        for name, file in (("one", "adapter_model.bin"), ("two", "new_embeddings.pt")):
            torch.save({"w": Program(mark)}, os.path.join(self.put(name), file))
            self.refused(self.adapters(), name, f"would unpickle '{file}'.*posix.mkdir is not in the list")
        self.assertFalse(os.path.exists(mark))
        make({"w": torch.ones(2)}, os.path.join(self.put("three"), "w.safetensors"))  # a format that a pickle may begin like
        os.rename(os.path.join(self.uri, "three", "w.safetensors"), os.path.join(self.uri, "three", "adapter_model.bin"))
        self.refused(self.adapters(), "three", "would unpickle 'adapter_model.bin', which is safetensors")
        torch.save({"w": torch.ones(2)}, os.path.join(self.put("good"), "adapter_model.bin"))
        self.assertIsNotNone(self.adapters().fetch("good"))

    def test_names_that_were_asked_for_are_forgotten(self):
        adapters = self.adapters()
        for number in range(3):
            self.refused(adapters, f"none-{number}", "is not there")
        gc.collect()  # errors that were logged hold what saw them
        self.assertEqual(len(adapters._names), 0)

    def test_threads_that_ask_at_once_share_one_load(self):
        self.put("sql")
        adapters, found = self.adapters(), []
        threads = [threading.Thread(target=lambda: found.append(adapters.fetch("sql"))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual((len(found), len(set(found)), len(self.pulls)), (8, 1, 1))

    def other(self, name):
        """A process that was given an adapter, and lives until it is told."""
        program = [sys.executable, "-W", "ignore", "-c", OTHER_PROCESS, self.uri, self.there, name]
        process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.stdin.close)
        return process, process.stdout.readline().strip()

    def test_processes_that_ask_at_once_share_one_folder(self):
        self.put("sql", size=1 << 18)
        started = [self.other("sql") for _ in range(3)]
        self.assertEqual({path for _, path in started}, {self.adapters().fetch("sql").path})

    def test_above_the_limit_those_go_that_nobody_has(self):
        for name in ("held", "old", "older", "new"):
            self.put(name, size=1000)
        living, held = self.other("held")
        paths = {}
        os.makedirs(os.path.join(self.there, "older", "0" * 32 + lora.GONE, "half"))
        for name in ("older", "old"):
            process, paths[name] = self.other(name)
            process.stdin.close()
            process.wait()
        os.utime(paths["older"] + lora.LEASE, (1, 1))
        os.utime(paths["old"] + lora.LEASE, (2, 2))
        os.utime(held + lora.LEASE, (0, 0))
        size = lora._bytes_of(held)
        self.adapters(limit_bytes=3 * size + size // 2, kept_minutes=0).fetch("new")
        self.assertEqual([os.path.exists(each) for each in (held, paths["old"], paths["older"])], [True, True, False])
        self.assertEqual(sorted(os.listdir(os.path.dirname(paths["older"]))), [])
        os.utime(paths["old"] + lora.LEASE)
        adapters = self.adapters(limit_bytes=size, kept_minutes=10)
        with self.assertLogs("sluice", "WARNING") as said:
            adapters.fetch("new")
        self.assertIn("all of them are in use", said.output[0])
        self.assertTrue(os.path.exists(paths["old"]), "given out a moment ago")
        living.stdin.close()
        living.wait()

    def test_what_was_removed_is_fetched_again(self):
        self.put("a")
        self.put("b")
        process, path = self.other("a")
        process.stdin.close()
        process.wait()
        os.utime(path + lora.LEASE, (1, 1))
        adapters = self.adapters(limit_bytes=0, kept_minutes=0)
        with self.assertLogs("sluice", "WARNING"):
            adapters.fetch("b")
        self.assertFalse(os.path.exists(path))
        with self.assertLogs("sluice", "WARNING"):
            self.assertEqual(adapters.fetch("a").path, path)
        self.assertTrue(os.path.exists(os.path.join(path, "adapter_model.safetensors")))

    def test_sizes_are_read(self):
        self.assertEqual([lora._number(each) for each in ("0", "5", "2k", "3MB", "4GiB", " 1Ti ")], [0, 5, 2000, 3000000, 4 << 30, 1 << 40])
        for wrong in ("", "x", "1.5G", "-1", "1i", "4 B x"):
            with self.assertRaisesRegex(ValueError, "20GiB"):
                lora._number(wrong)


@dataclasses.dataclass
class Request:
    """As vLLM's."""

    lora_name: str
    lora_int_id: int
    lora_path: str


class Resolver(Stored):
    """vLLM's side."""

    def registered(self, **environment):
        known = {}

        class LoRAResolver:
            pass

        registry = types.SimpleNamespace(get_supported_resolvers=known.keys, register_resolver=known.__setitem__)
        modules = {
            "vllm": module("vllm"), "vllm.lora": module("vllm.lora"), "vllm.lora.request": module("request", LoRARequest=Request),
            "vllm.lora.resolver": module("resolver", LoRAResolver=LoRAResolver, LoRAResolverRegistry=registry),
        }
        with mock.patch.dict(sys.modules, modules), mock.patch.dict(os.environ, environment):
            lora.register()
            lora.register()
        for each in known.values():
            self.assertIsInstance(each, LoRAResolver)
        return known

    def test_vllm_is_given_requests(self):
        self.put("sql")
        known = self.registered(SLUICE_LORA=self.uri[:-1], SLUICE_LORA_DIR=self.there, SLUICE_LORA_BYTES="1GiB", SLUICE_LORA_BASE="x,ours")
        self.assertEqual(list(known), ["sluice_lora"])

        async def asks():
            with self.assertLogs("sluice", "WARNING"):
                nothing = await known["sluice_lora"].resolve_lora(BASE, "other")
            return nothing, await asyncio.gather(*(known["sluice_lora"].resolve_lora(BASE, "sql") for _ in range(4)))

        nothing, found = asyncio.run(asks())
        self.assertIsNone(nothing)
        self.assertEqual(len(self.pulls), 1)
        self.assertEqual({each.lora_name for each in found}, {"sql"})
        self.assertTrue(os.path.exists(os.path.join(found[0].lora_path, "adapter_config.json")))

    def test_without_a_place_nothing_is_registered(self):
        with mock.patch.dict(os.environ):
            os.environ.pop("SLUICE_LORA", None)
            self.assertEqual(self.registered(SLUICE_LORA_DIR=self.there), {})
        with self.assertRaisesRegex(ValueError, "SLUICE_LORA_DIR"):
            self.registered(SLUICE_LORA="s3://a/", SLUICE_LORA_DIR="")


if __name__ == "__main__":
    unittest.main()
