"""Repositories of a hub: what sluice loads is what the hub's own client loads, and that finds what sluice publishes."""
import hashlib
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile

from harness import CACHE, Skip, check, fixture, free_port, one_at_a_time, pinned, run_client, sha256_file
from hf_hub import Hub

ROOMS = ("storage/cloud", "storage/hf")
PACKAGES = ("huggingface_hub", "blake3", "lz4")  # these two are for xet_store.py
XET_STORE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "xet_store.py")
CAS_CRATE = "xet-client"  # brings local_cas_server, the reference's own content store for tests
UPLOAD = """
import sys, time
import hf_xet
print(hf_xet.upload_files([sys.argv[1]], sys.argv[2], ("token", int(time.time()) + 3600), None, None, "model")[0].hash)
"""
SNAPSHOT = """
import sys
from huggingface_hub import snapshot_download
path = snapshot_download("org/name", revision=sys.argv[1] or None, cache_dir=sys.argv[2], local_files_only=sys.argv[3] == "offline")
print(path)
"""
FIND = """
import sys
from huggingface_hub import hf_hub_download, scan_cache_dir, snapshot_download, try_to_load_from_cache
cache = sys.argv[1]
print(snapshot_download("org/name", cache_dir=cache, local_files_only=True))
print(hf_hub_download("org/name", "config.json", cache_dir=cache, local_files_only=True))
print(try_to_load_from_cache("org/name", "model.safetensors", cache_dir=cache))
print(",".join(repo.repo_id for repo in scan_cache_dir(cache).repos))
"""
BUCKET = """
import json, sys
from huggingface_hub import HfApi, HfFileSystem, parse_hf_uri
api, bucket, xet, links = HfApi(), *sys.argv[1:]
listed = [item for item in api.list_bucket_tree(bucket, recursive=True) if item.type == "file"]
assert list(api.get_bucket_paths_info(bucket, [item.path for item in listed] + ["no such file"])) == listed
api.download_bucket_files(bucket, [(item, f"{xet}/{item.path}") for item in listed])
files = HfFileSystem()
for item in listed:
    with files.open(f"buckets/{bucket}/{item.path}", "rb") as file, open(f"{xet}/{item.path}", "rb") as same:
        assert file.read() == same.read(), item.path
below = files.find(f"buckets/{bucket}/step 1")
print(json.dumps({"files": {item.path: [item.size, item.xet_hash] for item in listed}, "below": below}))
"""
TRANSFORMERS = """
from transformers import AutoConfig
config = AutoConfig.from_pretrained("org/name")
print(config.model_type, config.hidden_size)
"""


def safetensors(seed, items=300000):
    head = json.dumps({"weight": {"dtype": "F32", "shape": [items], "data_offsets": [0, 4 * items]}}).encode()
    return struct.pack("<Q", len(head)) + head + random.Random(seed).randbytes(4 * items)


def files_of(seed):
    config = {"model_type": "llama", "hidden_size": 64 * seed, "intermediate_size": 128, "num_hidden_layers": 1,
              "num_attention_heads": 4, "vocab_size": 100}
    return {"config.json": (json.dumps(config).encode(), False), "model.safetensors": (safetensors(seed), True),
            "README.md": (b"# a model\n", False), "a folder/with 100%.txt": (b"odd names", False), "empty.txt": (b"", False)}


COPIES = {"pytorch_model.bin": (b"pickled" * 100, True), "original/consolidated.00.pth": (b"once more" * 100, True),
          "onnx/model.onnx": (b"onnx" * 100, True)}


@fixture("hub")
def hub(_):
    server = Hub()
    server.commit("org/name", {**files_of(1), **COPIES})
    return server


@one_at_a_time("{}")
def python_with(folder, module, packages):
    """A Python that imports a module, in a folder of the cache."""
    own = os.path.join(CACHE, folder)
    python = os.path.join(own, "bin", "python")
    if os.access(python, os.X_OK) and subprocess.run([python, "-c", f"import {module}"], capture_output=True).returncode == 0:
        return python
    for command in ([sys.executable, "-m", "venv", own], [python, "-m", "pip", "install", "-q", *packages]):
        done = run_client(command, timeout=600)
        if done.returncode:
            raise Skip(f"{' '.join(command[:4])}: {(done.stderr or done.stdout).strip()[-200:]}")
    return python


@fixture("hf_python", expensive=True)
def hf_python(_):
    """A Python with the hub's own client, and what xet_store.py needs."""
    return python_with("hf-venv", "huggingface_hub, blake3, lz4.frame", PACKAGES)


class Cas:
    """The reference's content store on a port of this machine."""

    def __init__(self, h, program):
        folder, port = tempfile.mkdtemp(prefix="cas-", dir=h.disk), free_port()
        self.url = f"http://127.0.0.1:{port}"
        h.serve("cas", [program, "--data-directory", folder, "--port", str(port)], port)


@fixture("cas")
def cas(h):
    """local_cas_server, from PATH or where docs/development.md says; it takes minutes to build, so it is built by hand."""
    program = shutil.which("local_cas_server") or os.path.join(CACHE, "xet-client", "bin", "local_cas_server")
    if not os.access(program, os.X_OK):
        raise Skip(f"no local_cas_server: docs/development.md says how to build it ({CAS_CRATE})")
    return Cas(h, program)


def fresh(server):
    """As it was before any check."""
    server.before_link = None
    server.refuse, server.requests, server.oldest = [], [], 0
    server.token, server.gated = None, set()
    assert not server.leaked, f"a token went to another host: {server.leaked}"


def env_of(server, **more):
    return {"HF_ENDPOINT": server.url, "HOME": "/nonexistent", **more}


def client(python, script, *arguments, **environment):
    with tempfile.TemporaryDirectory(prefix="sluice-home-") as home:  # its Xet client keeps things there
        env = {"PATH": "/usr/bin:/bin", "HOME": home, "HF_HUB_DISABLE_XET": "1", **environment}
        done = subprocess.run([python, "-c", script, *arguments], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip().split("\n")


def hashes(top):
    """{name: SHA-256} of the files below, links followed, without what sluice keeps for itself."""
    found = {}
    for folder, folders, names in os.walk(top):
        folders[:] = [name for name in folders if name != ".sluice"]
        for name in names:
            path = os.path.join(folder, name)
            found[os.path.relpath(path, top)] = sha256_file(path)
    return found


@check("hub", "hf_python")
def hf_loads_what_the_client_loads(h, hub, python):
    """The same files, the same bytes, the same commit; a branch, a tag and a commit."""
    fresh(hub)
    commit = hub.commit("org/name", files_of(7), "v1.0")
    main = hub.refs["org/name"]["main"]
    for revision, at in (("main", main), ("v1.0", commit), (commit, commit)):
        theirs = client(python, SNAPSHOT, revision, h.fresh("cache"), "", HF_ENDPOINT=hub.url)[-1]
        to = h.fresh()
        done = h.sluice("load", f"hf://org/name@{revision}", "--to", to, "--set", "source.include=[\"*\"]", "--json", env=env_of(hub))
        done.expect(0)
        assert hashes(to) == hashes(theirs), f"{revision}: {sorted(hashes(to))} is not {sorted(hashes(theirs))}"
        assert os.path.basename(theirs) == at
        with open(os.path.join(to, ".sluice", "manifest.json")) as file:
            assert at in file.read(), "the manifest does not name the commit"


@check("hub", smoke=True)
def hf_takes_the_weights_once(h, hub):
    """Of safetensors, pickles, originals and ONNX one is loaded, and the plan says so."""
    fresh(hub)
    to = h.fresh()
    h.sluice("plan", "hf://org/name", "--to", to, env=env_of(hub)).expect(0, "3 objects with the same weights")
    h.sluice("load", "hf://org/name", "--to", to, *pinned(), env=env_of(hub)).expect(0)
    assert sorted(hashes(to)) == sorted(files_of(1))
    assert len([line for line in hub.requests if "/resolve/" in line and "model.safetensors" in line]) <= 2, hub.requests
    hub.commit("org/quants", {f"m-{kind}.gguf": (kind.encode() * 99, True) for kind in ("Q4", "Q8")})
    h.sluice("load", "hf://org/quants", "--to", h.fresh("q"), env=env_of(hub)).expect(2, "source.include", "m-Q4.gguf")


@check("hub")
def hf_tokens_stay_with_the_hub(h, hub):
    """Private and gated repositories say what to do; the token is in no request elsewhere, no log, no manifest."""
    fresh(hub)
    hub.token = "hf_verysecret"
    to = h.fresh()
    h.sluice("load", "hf://org/name", "--to", to, env=env_of(hub)).expect(4, "HF_TOKEN")
    wrong = h.sluice("load", "hf://org/name", "--to", to, env=env_of(hub, HF_TOKEN="hf_wrong"))
    wrong.expect(3, "/settings/tokens")
    done = h.sluice("load", "hf://org/name", "--to", to, "--log-level", "trace", env=env_of(hub, HF_TOKEN=hub.token))
    done.expect(0)
    with open(os.path.join(to, ".sluice", "manifest.json")) as file:
        said = done.out + done.err + wrong.err + file.read()
    for secret in ("hf_verysecret", "hf_wrong", "s3cret"):
        assert secret not in said, f"{secret} was told"
    hub.gated = {"org/name"}
    h.sluice("plan", "hf://org/name", "--to", to, env=env_of(hub, HF_TOKEN=hub.token)).expect(3, "accept", "/org/name")
    fresh(hub)


@check("hub")
def hf_limits_and_links_are_obeyed(h, hub):
    """A refusal for two seconds holds everything back so long; a link that has expired is asked for anew."""
    fresh(hub)
    hub.refuse = [(429, {"RateLimit": '"api";r=0;t=1'})]
    done = h.sluice("load", "hf://org/name", "--to", h.fresh(), env=env_of(hub))
    done.expect(0)
    assert done.seconds >= 2, f"it took {done.seconds} s"
    hub.oldest = hub.links + 2  # the next link has expired when it is given
    h.sluice("load", "hf://org/name", "--to", h.fresh(), *pinned(), env=env_of(hub)).expect(0)
    fresh(hub)


@check("hub")
def hf_wrong_bytes_are_refused(h, hub):
    """Bytes that are not those of the tree's hashes, large and small, are not published."""
    fresh(hub)
    for path in ("model.safetensors", "README.md"):
        commit = hub.commit("org/wrong", files_of(3))
        file = hub.repos["org/wrong"][commit][path]
        file.data = bytes([file.data[0] ^ 1]) + file.data[1:] if path == "README.md" else file.data[:-1] + bytes([file.data[-1] ^ 1])
        to = h.fresh()
        h.sluice("load", "hf://org/wrong", "--to", to, env=env_of(hub)).expect(5)
        assert not os.path.exists(os.path.join(to, ".sluice", "ready"))


@check("hub", "hf_python")
def hf_cache_is_found_offline(h, hub, python):
    """layout hf-cache: the client finds it by name without a network; then a new commit; then as one of several."""
    fresh(hub)
    to = h.fresh()
    layout = ("--set", "sink.tmpfs.layout=hf-cache")
    for seed in (1, 2):
        commit = hub.commit("org/name", {**files_of(seed), **COPIES})
        h.sluice("load", "hf://org/name", "--to", to, *layout, env=env_of(hub)).expect(0)
        snapshot, config, model, repos = client(python, FIND, to, HF_HUB_OFFLINE="1")
        assert snapshot == os.path.join(to, "models--org--name", "snapshots", commit), snapshot
        assert config == os.path.join(snapshot, "config.json") and model == os.path.join(snapshot, "model.safetensors")
        assert repos == "org/name", repos
        assert set(hashes(snapshot)) == set(files_of(seed))
        with open(os.path.join(to, "models--org--name", "refs", "main")) as file:
            assert file.read() == commit
        assert os.listdir(os.path.join(to, "models--org--name", "snapshots")) == [commit]
    several = h.fresh("several")
    within = os.path.join(several, "models--org--name")
    h.sluice("load", f"hf://org/name@{commit}", "--to", within, *layout, env=env_of(hub)).expect(0)
    assert client(python, FIND, several, HF_HUB_OFFLINE="1")[0] == os.path.join(within, "snapshots", commit)
    h.sluice("load", os.path.join(within, "snapshots", commit) + "/", "--to", h.fresh("x"), *layout).expect(2, "hf://")


@check("hub", "hf_python")
def hf_cache_serves_transformers(h, hub, python):
    """AutoConfig.from_pretrained("org/name"), offline, from what sluice published, which every user can read."""
    fresh(hub)
    if subprocess.run([python, "-c", "import transformers"], capture_output=True).returncode:
        raise Skip("no transformers in the Python of the hub's client (pip install transformers)")
    to = h.fresh()
    commit = hub.commit("org/name", files_of(5))
    h.sluice("load", f"hf://org/name@{commit}", "--to", to, "--set", "sink.tmpfs.layout=hf-cache", env=env_of(hub)).expect(0)
    for folder, _, names in os.walk(os.path.join(to, "models--org--name")):
        assert os.stat(folder).st_mode & 0o005 == 0o005, folder
        assert all(os.stat(os.path.join(folder, name)).st_mode & 0o004 for name in names), folder
    assert client(python, TRANSFORMERS, HF_HUB_OFFLINE="1", HF_HUB_CACHE=to)[-1] == "llama 320"


@check("hub", "hf_python")
def hf_xet_client_and_sluice_read_the_same(h, hub, python):
    """Chunks of all kinds, repeated ones, a file in two xorbs: the hub's own Xet client and sluice read one store, and no link is asked for."""
    fresh(hub)
    place, port, draw = h.directory("xet"), free_port(), random.Random(4)
    paths = {"noise.bin": random.Random(3).randbytes(5_000_001), "zeros.bin": bytes(3_000_000),
             "weights.bin": b"".join(struct.pack("<f", draw.gauss(0, 1)) for _ in range(500_000))}
    for name, data in paths.items():
        with open(os.path.join(place, name), "wb") as file:
            file.write(data)
    store = h.spawn("xet-store", [python, XET_STORE, str(port), place, "--xorb-bytes", "3000000", *(os.path.join(place, name) for name in paths)],
                    stdout=subprocess.PIPE, text=True)
    told, links, to = json.loads(store.stdout.readline()), hub.links, h.fresh()
    hub.cas = f"http://127.0.0.1:{port}"
    try:
        hub.commit("org/xets", {**{name: (data, True, told[os.path.join(place, name)]) for name, data in paths.items()}, "config.json": (b"{}", False)})
        h.sluice("load", "hf://org/xets", "--to", to, "--set", "source.hf.xet=on", env=env_of(hub)).expect(0)
        theirs = client(python, SNAPSHOT.replace("org/name", "org/xets"), "", h.fresh("cache"), "", HF_ENDPOINT=hub.url, HF_HUB_DISABLE_XET="0")[-1]
        assert hashes(to) == hashes(theirs) == {**{name: hashlib.sha256(data).hexdigest() for name, data in paths.items()},
                                                "config.json": hashlib.sha256(b"{}").hexdigest()}
        assert hub.links == links, "a plain link was asked for"
    finally:
        hub.cas = None
        h.stop(store)


@check("hub", "hf_python")
def hf_buckets_are_read_as_the_client_reads_them(h, hub, python):
    """The same files, sizes and hashes are listed, and the same bytes come, through Xet and by links; a folder has nothing of its neighbours."""
    fresh(hub)
    place, port = h.directory("bucket"), free_port()
    paths = {"model.safetensors": safetensors(21), "step 1/100% \u00e4#b?.bin": random.Random(22).randbytes(700_000), "step 10/x.bin": b"a neighbour",
             "config.json": json.dumps({"model_type": "llama"}).encode()}
    here = {path: os.path.join(place, str(number)) for number, path in enumerate(paths)}
    for path, data in paths.items():
        with open(here[path], "wb") as file:
            file.write(data)
    store = h.spawn("bucket-store", [python, XET_STORE, str(port), place, *here.values()], stdout=subprocess.PIPE, text=True)
    told = json.loads(store.stdout.readline())
    hub.cas = f"http://127.0.0.1:{port}"
    try:
        for path, data in paths.items():
            hub.keep("org/store", path, data, told[here[path]])
        hub.keep("org/store", "empty.txt", b"", "0" * 64)
        theirs = h.directory("theirs")
        seen = json.loads(client(python, BUCKET, "org/store", theirs, "-", HF_ENDPOINT=hub.url, HF_HUB_DISABLE_XET="0")[-1])
        listed = json.loads(h.sluice("ls", "hf://buckets/org/store", "--json", env=env_of(hub)).expect(0).out)
        assert {item["name"]: [item["bytes"], item["version"]] for item in listed} == seen["files"]
        links = hub.links
        for mode in ("on", "off"):
            to = h.fresh(mode)
            h.sluice("load", "hf://buckets/org/store", "--to", to, "--set", f"source.hf.xet={mode}", env=env_of(hub)).expect(0)
            assert hashes(to) == hashes(theirs), mode
            assert (hub.links == links) == (mode == "on"), f"{mode}: {hub.links - links} links"
        to = h.fresh("below")
        h.sluice("load", "hf://buckets/org/store/step 1/", "--to", to, env=env_of(hub)).expect(0)
        assert [f"buckets/org/store/step 1/{name}" for name in hashes(to)] == seen["below"], seen["below"]
        to = h.fresh("one")
        h.sluice("load", "hf://buckets/org/store/step 1/100% \u00e4#b?.bin", "--to", to, env=env_of(hub)).expect(0)
        assert list(hashes(to).values()) == [hashlib.sha256(paths["step 1/100% \u00e4#b?.bin"]).hexdigest()]
        shown = json.loads(h.sluice("inspect", "hf://buckets/org/store/model.safetensors", "--json", env=env_of(hub)).expect(0).out)
        assert [tensor["name"] for tensor in shown["tensors"]] == ["weight"]
        h.sluice("verify", "hf://buckets/org/store", env=env_of(hub)).expect(0)
        h.sluice("initializer", "hf://buckets/org/store", h.fresh("kserve"), env=env_of(hub)).expect(0)
    finally:
        hub.cas = None
        h.stop(store)


@check("hub")
def hf_buckets_are_never_mixed(h, hub):
    """A file that is replaced between listing and reading: the load begins anew once and has all of the new one, or gives up with 5."""
    fresh(hub)
    old, new, to = safetensors(31), safetensors(32), h.fresh()
    by_links = ("--set", "source.hf.xet=off", *pinned())
    hub.keep("org/moving", "model.safetensors", old)
    h.sluice("load", "hf://buckets/org/moving", "--to", to, *by_links, env=env_of(hub)).expect(0)
    h.sluice("load", "hf://buckets/org/moving", "--to", to, *by_links, env=env_of(hub)).expect(0, "already")
    hub.keep("org/moving", "model.safetensors", safetensors(33))
    hub.before_link = lambda path: hub.keep("org/moving", path, new)
    h.sluice("load", "hf://buckets/org/moving", "--to", to, *by_links, env=env_of(hub)).expect(0)
    assert hashes(to) == {"model.safetensors": hashlib.sha256(new).hexdigest()}
    seeds = iter(range(40, 90))
    hub.keep("org/moving", "model.safetensors", old)
    hub.before_link = lambda path: hub.keep("org/moving", path, safetensors(next(seeds)))
    h.sluice("load", "hf://buckets/org/moving", "--to", to, *by_links, env=env_of(hub)).expect(5, "replaced")
    assert hashes(to) == {"model.safetensors": hashlib.sha256(new).hexdigest()}
    fresh(hub)
    h.sluice("load", "hf://buckets/org/none", "--to", h.fresh("n"), env=env_of(hub)).expect(4, "no such bucket")
    h.sluice("load", "hf://buckets/org/moving@main", "--to", h.fresh("r"), env=env_of(hub)).expect(2, "buckets have none")


@check("hub", "hf_python", "cas")
def hf_xet_is_read_natively(h, hub, python, cas):
    """What the reference stores in Xet is loaded from there, and is what its client brings; without Xet the same by links."""
    fresh(hub)
    part = safetensors(12, 400_000)
    data, here = b"a blob" * 9000 + bytes(3_000_000) + safetensors(11, 8_000_000) + part * 2, os.path.join(h.fresh("up"), "blob")
    os.makedirs(os.path.dirname(here), exist_ok=True)
    with open(here, "wb") as file:
        file.write(data)
    xet_hash = client(python, UPLOAD, here, cas.url)[-1]
    hub.cas = cas.url
    try:
        hub.commit("org/xet", {"blob.bin": (data, True, xet_hash), "config.json": (b"{}", False)})
        links, to = hub.links, h.fresh()
        h.sluice("load", "hf://org/xet", "--to", to, "--set", "source.hf.xet=on", env=env_of(hub)).expect(0)
        assert sha256_file(os.path.join(to, "blob.bin")) == sha256_file(here)
        assert hub.links == links, "a plain link was asked for"
        theirs = client(python, SNAPSHOT.replace("org/name", "org/xet"), "", h.fresh("cache"), "", HF_ENDPOINT=hub.url,
                        HF_HUB_DISABLE_XET="0")[-1]
        assert hashes(theirs) == hashes(to)
        hub.cas = None
        h.sluice("load", "hf://org/xet", "--to", h.fresh("x"), "--set", "source.hf.xet=auto", env=env_of(hub)).expect(0, "Xet is not used any more")
        assert hub.links > links
    finally:
        hub.cas = None
