"""Libraries of models with what sluice gives them, as far as a machine without a GPU goes; they want e2e/torch2.py's environment."""
import os
import re
import subprocess

import torch2
from checks_python import FilePool
from checks_python_doors import need_torch2
from checks_python_open import cache, environment
from harness import ROOT, Skip, check, run_client

ROOMS = ("client/api", "lib/open", "python")
MODELS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "engine_models.py")
BUCKET = "engines"
DIFFUSERS = ("diffusers==0.42.1", "importlib_metadata", "zipp", "pillow")
PATIENCE = 600


def run(h, *words, env=None, path=()):
    """What one of torch 2's programs prints."""
    done = subprocess.run([torch2.PYTHON, "-W", "ignore", *words], capture_output=True, text=True, stdin=subprocess.DEVNULL,
                          env={**environment(h, *path), "HF_HUB_OFFLINE": "1", **(env or {})}, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def put_folder(store, folder, prefix):
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            with open(path, "rb") as file:
                store.put(BUCKET, prefix + os.path.relpath(path, folder), file.read())


@check("versitygw", "nginx")
def transformers_models_come_in_one_line(h, store, nginx):
    """A tiny Llama from a directory, a bucket and the pool has the weights and the logits of transformers' own; then it generates words
    (examples/generate_from_s3.py)."""
    need_torch2()
    folder = h.directory("llama")
    run(h, MODELS, "llama", folder)
    store.make_bucket(BUCKET)
    put_folder(store, folder, "llama/")
    pool = FilePool(h, f"file://{folder}/")
    said = run(h, MODELS, "same-llama", folder, folder, f"s3://{BUCKET}/llama/", "pool:" + pool.path, env=store.env())
    assert said.split()[-1] == "3", said
    pool.end()
    said = run(h, os.path.join(ROOT, "examples", "generate_from_s3.py"), f"s3://{BUCKET}/llama/", "once upon a time", env=store.env())
    tokens = re.search(r"tokens: \[(.*)\]", said)[1].split(", ")
    assert tokens[:4] == ["0", "1", "2", "3"] and len(tokens) == 12, said
    return "a directory, a bucket, the pool; " + said.splitlines()[-1]


def in_hub_cache(h, hub, folder, name):
    """A model of a folder, committed to the hub and published as the hub's client keeps it: where."""
    files = {}
    for each in os.listdir(folder):
        with open(os.path.join(folder, each), "rb") as file:
            files[each] = (file.read(), each.endswith(".safetensors"))
    hub.commit(name, files)
    to = h.fresh()
    h.sluice("load", "hf://" + name, "--to", to, "--set", "sink.tmpfs.layout=hf-cache", env={"HF_ENDPOINT": hub.url, "HOME": "/nonexistent"}).expect(0)
    return to


@check("hub")
def transformers_finds_a_model_of_the_hub_by_its_name(h, hub):
    """from_pretrained("org/tiny"), offline, from what was published with layout hf-cache: weights and tokenizer are those of the folder."""
    need_torch2()
    folder = h.directory("llama")
    run(h, MODELS, "llama", folder)
    to = in_hub_cache(h, hub, folder, "org/tiny")
    return run(h, MODELS, "named-llama", folder, "org/tiny", env={"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": to}).split()[-1] + " tensors"


def diffusers(h):
    """Where diffusers is, installed once."""
    place = os.path.join(cache(), "python-" + DIFFUSERS[0].replace("==", "-"))
    if not os.path.exists(os.path.join(place, "whole")):
        done = run_client([torch2.PYTHON, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target", place, *DIFFUSERS],
                          env=dict(os.environ))
        if done.returncode:
            raise Skip("no package registry can be reached")
        open(os.path.join(place, "whole"), "w", encoding="utf-8").close()
    return place


@check("versitygw")
def components_of_diffusers_are_loaded(h, store):
    """A tiny pipeline from a bucket, as docs/engines.md loads one, draws the picture that it draws from its directory."""
    need_torch2()
    folder, path = h.directory("diffuser"), [diffusers(h)]
    run(h, MODELS, "diffuser", folder, path=path)
    store.make_bucket(BUCKET)
    put_folder(store, folder, "diffuser/")
    assert run(h, MODELS, "same-diffuser", folder, f"s3://{BUCKET}/diffuser/", env=store.env(), path=path).split()[-1] == "equal"
    return DIFFUSERS[0]
