#!/usr/bin/env python3
"""Where the seconds of an engine's start go, of real vLLM with a small Llama on the processor, all in one run:

    e2e/engine_starts.py FOLDER     with what scripts/test-engines made (SLUICE_ENGINES), and an empty folder below /dev/shm or /tmp

Three starts of `sluice load SPEC -- engine`: the first; one with weights alone, whose caches are as on a new machine; one with a set of engine
caches. Each prints what vLLM's log says of its phases, and the seconds from the command to the first token.
"""
import os
import re
import shutil
import subprocess
import sys
import time

from checks_real_engines import SETTINGS
from harness import ROOT

ENGINE = """
import sys
from vllm import LLM, SamplingParams
engine = LLM(model=sys.argv[1], dtype="bfloat16", max_model_len=64, disable_log_stats=True)
print("FIRST TOKEN", engine.generate(["once upon a time"], SamplingParams(max_tokens=1))[0].outputs[0].token_ids[0], flush=True)
"""
SPEC = """\
apiVersion: sluice/v1alpha1
kind: Model
metadata: {{name: llama}}
source: {{uri: '{0}/stored/'}}
sink: {{tmpfs: {{path: {0}/llama}}, caches: {{path: {0}/machine/caches, url: '{0}/sets/', trust: store, save: true}}}}
"""
SAID = re.compile(r"(Loading weights|Model loading|Dynamo bytecode transform|[Cc]ompil|init engine|restored).*")


def start(python, folder, sluice, log):
    began = time.monotonic()
    lines = []
    with open(log, "w", encoding="utf-8") as file, subprocess.Popen(
            [sluice, "load", f"{folder}/model.yaml", "--", python, "-W", "ignore", "-c", ENGINE, f"{folder}/llama"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **SETTINGS}) as process:
        for line in process.stdout:
            file.write(line)
            found = SAID.search(line)
            if found and re.search(r"[0-9.]+ s", found[0]):
                lines.append(f"    at {time.monotonic() - began:6.1f} s: {found[0].strip()}")
            if line.startswith("FIRST TOKEN"):
                return time.monotonic() - began, lines
    raise SystemExit(f"the engine did not start: see {log}")


def main(folder):
    python = os.path.join(os.environ["SLUICE_ENGINES"], "vllm", "bin", "python")
    sluice = os.path.join(ROOT, "build", "sluice")
    stored = os.path.join(folder, "stored")
    if not os.path.exists(os.path.join(stored, "config.json")):
        os.makedirs(stored)
        subprocess.run([python, "-W", "ignore", os.path.join(ROOT, "e2e", "engine_models.py"), "wide-llama", stored, "1"], check=True)
    with open(os.path.join(folder, "model.yaml"), "w", encoding="utf-8") as file:
        file.write(SPEC.format(folder))
    for name in ("the first start", "weights alone", "with engine caches"):
        if name == "with engine caches":
            subprocess.run([sluice, "caches", "save", f"{folder}/model.yaml"], check=True)
        shutil.rmtree(os.path.join(folder, "machine"), ignore_errors=True)
        seconds, lines = start(python, folder, sluice, os.path.join(folder, name.replace(" ", "-") + ".log"))
        print(f"{name}: {seconds:.1f} s to the first token", *lines, sep="\n", flush=True)


main(os.path.abspath(sys.argv[1]))
