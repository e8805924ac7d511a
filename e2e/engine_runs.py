"""Starts of a real engine, run by the Python of the environment that has it (scripts/test-engines):

    engine_runs.py vllm|sglang RUNS     RUNS is a list of {"path": …, "format": …, "extra": …, "ranks": …, "count": …, "reloads": …, "adapter": …} as JSON

Each start is a process of its own, forked when the engine has been imported. It prints a line of JSON: the tokens that the engine makes of one
prompt and the SHA-256 of its weights on each rank, as they were loaded, or the error. "reloads" is a list of {"before": COMMAND, "weights_path": …}:
after each the engine reloads its weights, and says its tokens again, or the error. "adapter" is {"path": …, "name": …}: the tokens with the adapter of
that folder, and with the one that vLLM's resolvers find by its name.
"""
import contextlib
import hashlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile

PROMPT, TOKENS = "once upon a time", 12
OPTIONS = {"max_model_len": 64, "enforce_eager": True, "disable_log_stats": True}


def digest(model):
    """Of a module's parameters, by name."""
    import torch

    whole = hashlib.sha256()
    for name, tensor in sorted(model.named_parameters()):
        whole.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        whole.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return whole.hexdigest(), sum(tensor.numel() for tensor in model.parameters())


def hash_what_is_loaded():
    """vLLM packs weights for the processor, and frees them; so they are looked at in between. A plugin of vLLM, since ranks are processes of
    their own. And with SLUICE_SAVE_RANKS saved there by vLLM's own function: what is left later is not all."""
    base = importlib.import_module("vllm.model_executor.model_loader.base_loader")
    prepare = base.process_weights_after_loading

    def hashed(model, *more):
        model.loaded = digest(model)
        if os.environ.get("SLUICE_SAVE_RANKS"):
            saving = importlib.import_module("vllm.model_executor.model_loader.sharded_state_loader")
            saving.ShardedStateLoader.save_model(model, os.environ["SLUICE_SAVE_RANKS"])
        return prepare(model, *more)

    if prepare.__name__ != hashed.__name__:
        base.process_weights_after_loading = hashed


def what_was_loaded(model):
    return model.loaded


def counted():
    """How often sluice's loader is asked for a model's weights, in this process."""
    import sluice._engines as engines

    asked, weights = [], engines.weights
    engines.weights = lambda *words, **options: asked.append(1) or weights(*words, **options)
    return asked


def adapters(base, path, name):
    """By its folder, and as vLLM's server finds it."""
    import asyncio

    from vllm.lora.request import LoRARequest
    from vllm.lora.resolver import LoRAResolverRegistry

    resolver = LoRAResolverRegistry.get_resolver("sluice_lora")
    return LoRARequest("by path", 1, path), asyncio.run(resolver.resolve_lora(base, name))


def vllm(run):
    from vllm import LLM, SamplingParams

    asked = counted() if run.get("count") else None
    engine = LLM(model=run["path"], load_format=run["format"], model_loader_extra_config=run.get("extra") or {}, dtype="bfloat16",
                 tensor_parallel_size=run.get("ranks", 1), enable_lora="adapter" in run, **OPTIONS)

    def tokens(lora=None):
        made = engine.generate([PROMPT], SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True), use_tqdm=False, lora_request=lora)
        return list(made[0].outputs[0].token_ids)

    def reloaded(before=None, **options):
        """As docs/engines.md has it."""
        subprocess.run(before or ["true"], check=True, stdout=subprocess.DEVNULL)
        try:
            engine.sleep(level=2)  # a GPU's weights are gone now
            engine.wake_up(tags=["weights"])
            engine.collective_rpc("reload_weights", kwargs=options)
            engine.wake_up(tags=["kv_cache"])
            engine.reset_prefix_cache()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return tokens()

    said = {"tokens": tokens()}
    found = engine.apply_model(what_was_loaded)
    said.update(digests=[each for each, _ in found], numbers=[count for _, count in found])
    if "adapter" in run:
        said["adapter"] = [tokens(each) for each in adapters(run["path"], **run["adapter"])]
    if "reloads" in run:
        said["reloaded"] = [reloaded(**each) for each in run["reloads"]]
    return said if asked is None else {**said, "asked": len(asked)}


def sglang(run):
    import sglang

    engine = sglang.Engine(model_path=run["path"], load_format=run["format"], model_loader_extra_config=json.dumps(run.get("extra") or {}),
                           device="cpu", dtype="bfloat16", tp_size=run.get("ranks", 1), context_length=64, mem_fraction_static=0.3,
                           disable_overlap_schedule=True, log_level="warning")
    made = engine.generate(PROMPT, {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True})
    return {"tokens": made["output_ids"]}


def started(engine, run):
    """In a process of its own: what comes of it."""
    try:
        return engine(run)
    except Exception as error:  # whatever it is, the check judges it
        return {"error": f"{type(error).__name__}: {error}"}


def in_child(engine, run):
    """What it starts goes with it."""
    with tempfile.NamedTemporaryFile("r") as result:
        child = os.fork()
        if not child:
            os.setsid()
            said = started(engine, run)
            with open(result.name, "w") as out:
                json.dump(said, out)
            os._exit(0)
        os.waitpid(child, 0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        return result.read() or json.dumps({"error": "the engine's process ended"})


def main(which, runs):
    importlib.import_module({"vllm": "vllm.entrypoints.llm", "sglang": "sglang"}[which])  # once for all
    for run in json.loads(runs):
        print("RESULT " + in_child({"vllm": vllm, "sglang": sglang}[which], run), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
