"""Real engines on the processor, with a small Llama of random weights. scripts/test-engines makes their environments and runs this; without
it the checks are skipped."""
import json
import os
import shutil
import socket
import struct
import subprocess
import threading
import tomllib

from checks_engines import BUCKET, MODELS, in_hub_cache, put_folder
from checks_python import FilePool
from checks_python_open import environment
from harness import ROOT, Skip, check

ROOMS = ("client/api", "lib/open", "python")
# Each check is alone: an engine takes most of the memory.
RUNS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "engine_runs.py")
PATIENCE = 1500
SETTINGS = {
    "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_TARGET_DEVICE": "cpu", "VLLM_HOST_IP": "127.0.0.1",
}


def python_of(engine):
    place = os.environ.get("SLUICE_ENGINES")
    if not place:
        raise Skip("SLUICE_ENGINES names no environments: scripts/test-engines makes them")
    found = os.path.join(place, engine, "bin", "python")
    if not os.path.exists(os.path.join(place, engine, "whole")):
        raise Skip(f"no {engine} in {place}: scripts/test-engines makes it")
    return found


class Line:
    """A TCP port before a store that counts what the store sends."""

    def __init__(self, port):
        self.target, self.bytes, self.lock = port, 0, threading.Lock()
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            peer, _ = self.server.accept()
            store = socket.create_connection(("127.0.0.1", self.target))
            for ends in ((peer, store, False), (store, peer, True)):
                threading.Thread(target=self.carry, args=ends, daemon=True).start()

    def carry(self, source, sink, counted):
        try:
            while part := source.recv(1 << 18):
                with self.lock:
                    self.bytes += len(part) if counted else 0
                sink.sendall(part)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            for end in (source, sink):
                end.close()

    def env(self, store):
        return {**store.env(), "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}"}

    def taken(self):
        """Since the last time."""
        with self.lock:
            found, self.bytes = self.bytes, 0
        return found


def entry_points(h):
    """The package's, as pip would leave them, and one of engine_runs.py."""
    place = h.directory("entry-points")
    made = os.path.join(place, "sluice_weights-0.dist-info")
    os.makedirs(made, exist_ok=True)
    with open(os.path.join(ROOT, "python", "pyproject.toml"), "rb") as file:
        groups = tomllib.load(file)["project"]["entry-points"]
    groups["vllm.general_plugins"]["digest"] = "engine_runs:hash_what_is_loaded"
    with open(os.path.join(made, "entry_points.txt"), "w") as file:
        for group, rows in groups.items():
            file.write(f"[{group}]\n" + "".join(f"{name} = {where}\n" for name, where in rows.items()))
    with open(os.path.join(made, "METADATA"), "w") as file:
        file.write("Metadata-Version: 2.1\nName: sluice-weights\nVersion: 0\n")
    return place


def starts(h, engine, runs, env=None, after=None):
    """What comes of each; after(number) is called as each ends."""
    program, found = python_of(engine), []
    with open(os.path.join(h.logs, engine + ".log"), "ab") as log, subprocess.Popen(
            [program, RUNS, engine, json.dumps(runs)], stdout=subprocess.PIPE, stderr=log, text=True, stdin=subprocess.DEVNULL,
            env={**environment(h, entry_points(h), os.path.dirname(RUNS)), **SETTINGS, **(env or {})}) as process:
        limit = threading.Timer(PATIENCE, process.kill)
        limit.start()
        for line in process.stdout:
            if line.startswith("RESULT "):
                found.append(json.loads(line[len("RESULT "):]))
                if after:
                    after(len(found) - 1)
        limit.cancel()
    assert len(found) == len(runs), h.log_tail(engine)
    return found


def llama(h, engine, seed=1):
    """Tensors of some MiB, so that ranks read parts of them."""
    folder = h.directory(f"wide-llama-{seed}")
    if not os.path.exists(os.path.join(folder, "config.json")):
        subprocess.run([python_of(engine), "-W", "ignore", MODELS, "wide-llama", folder, str(seed)], check=True, capture_output=True,
                       env=environment(h), timeout=PATIENCE)
    return folder, os.path.getsize(os.path.join(folder, "model.safetensors"))


def in_bucket(store, folder):
    store.make_bucket(BUCKET)
    put_folder(store, folder, "wide-llama/")
    return {"uri": f"s3://{BUCKET}/wide-llama/"}


def small_part(h, folder, name):
    """A folder with all but the weights: they must come from elsewhere."""
    place = h.directory(name)
    for each in os.listdir(folder):
        if each.endswith(".json"):
            with open(os.path.join(folder, each), "rb") as source, open(os.path.join(place, each), "wb") as copy:
                copy.write(source.read())
    return place


def without(folder, place, lacking):
    """The model's weights but for one tensor."""
    with open(os.path.join(folder, "model.safetensors"), "rb") as file:
        head = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    begin, end = head.pop(lacking)["data_offsets"]
    for row in head.values():
        if "data_offsets" in row and row["data_offsets"][0] >= end:
            row["data_offsets"] = [each - (end - begin) for each in row["data_offsets"]]
    text = json.dumps(head).encode()
    with open(os.path.join(place, "model.safetensors"), "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + data[:begin] + data[end:])


def same(found, wanted):
    for number, each in enumerate(found):
        assert each == wanted, f"start {number}: {each}, not {wanted}"


@check("versitygw", alone=True)
def vllm_loads_from_everywhere(h, store):
    """Real vLLM on the processor: from a directory, a bucket and the pool, twice, it has the weights and the tokens of its own loader. The
    bucket sends the file once to each start and once to the pool. A weight that a file lacks is refused, or told where vLLM goes on."""
    python_of("vllm")
    folder, size = llama(h, "vllm")
    line, extra = Line(store.port), in_bucket(store, folder)
    bare, lacking, silent = (small_part(h, folder, name) for name in ("bare-llama", "lacking-llama", "silent-llama"))
    without(folder, lacking, "model.norm.weight")
    without(folder, silent, "model.layers.1.mlp.down_proj.weight")  # vLLM's own loader goes on
    pool = FilePool(h, extra["uri"], env=line.env(store))
    for_pool = line.taken()
    from_pool, sent = {"model": "m", "socket": pool.path}, []
    runs = [{"path": folder, "format": "auto"}, {"path": folder, "format": "sluice"}, {"path": bare, "format": "sluice", "extra": extra},
            {"path": bare, "format": "sluice", "extra": from_pool}, {"path": bare, "format": "sluice", "extra": from_pool},
            {"path": lacking, "format": "sluice"}, {"path": silent, "format": "sluice"}]
    found = starts(h, "vllm", runs, line.env(store), lambda _: sent.append(line.taken()))
    pool.end()
    assert len(found[0].get("tokens", ())) == 12 and found[0]["numbers"] == [27268096], found[0]
    same(found[1:5], found[0])
    assert "not initialized" in found[5]["error"] and "model.norm.weight" in found[5]["error"], found[5]
    with open(os.path.join(h.logs, "vllm.log"), errors="replace") as log:
        said = [row for row in log if "vLLM goes on without weights" in row]
    assert any("layers.1.mlp.down_proj" in row for row in said), said
    assert size <= for_pool <= 1.02 * size and size <= sent[2] <= 1.02 * size, (size, for_pool, sent)
    assert sum(sent) == sent[2], f"only one start asks the bucket: {sent}"
    return f"bytes of the file {size}; the bucket sent {sent[2]} to a start, {for_pool} to the pool, none to two starts from it"


@check("hub", alone=True)
def vllm_finds_a_model_of_the_hub_by_its_name(h, hub):
    """Real vLLM, offline and with its own loader, starts "org/wide" from what was published with layout hf-cache."""
    python_of("vllm")
    folder, _ = llama(h, "vllm")
    to = in_hub_cache(h, hub, folder, "org/wide")
    found = starts(h, "vllm", [{"path": folder, "format": "auto"}, {"path": "org/wide", "format": "auto"}], {"HF_HUB_CACHE": to})
    assert len(found[0].get("tokens", ())) == 12, found[0]
    same(found[1:], found[0])


@check(alone=True)
def vllm_starts_from_a_deposit(h):
    """The first start of real vLLM keeps what it loaded in the pool; the second has the same weights and tokens, and asks for none of the model's."""
    python_of("vllm")
    folder, _ = llama(h, "vllm")
    bare, pool = small_part(h, folder, "bare-llama"), FilePool(h, f"file://{folder}/")
    extra = {"model": "m", "socket": pool.path, "deposit": True}
    started = {"path": bare, "format": "sluice", "extra": extra, "count": True}
    found = starts(h, "vllm", [{"path": folder, "format": "auto"}, started, started])
    keys = pool.keys()
    pool.end()
    assert len(found[0].get("tokens", ())) == 12, found[0]
    assert found[1] == {**found[0], "asked": 1}, (found[1], h.log_tail("vllm"))
    assert found[2] == {**found[0], "asked": 0}, (found[2], h.log_tail("vllm"))
    assert len(keys) == 1 and keys[0].startswith("vllm-"), keys
    return keys[0]


@check("versitygw", alone=True)
def vllm_ranks_read_their_parts(h, store):
    """Two tensor-parallel ranks of real vLLM together fetch little more than the file; weights and tokens are those of its own loader with two
    ranks."""
    python_of("vllm")
    folder, size = llama(h, "vllm")
    line, extra, sent = Line(store.port), in_bucket(store, folder), []
    bare = small_part(h, folder, "bare-llama")
    runs = [{"path": folder, "format": "auto", "ranks": 2}, {"path": bare, "format": "sluice", "extra": extra, "ranks": 2}]
    found = starts(h, "vllm", runs, line.env(store), lambda _: sent.append(line.taken()))
    assert len(set(found[0].get("digests", ()))) == 2, found[0]
    same(found[1:2], found[0])
    # Parts by columns of so small tensors are rows of a few KiB: both ranks read those tensors whole.
    assert sent[1] <= 1.25 * size, (sent, size)
    return f"two ranks fetched {sent[1]} bytes of a file of {size}, {sent[1] / size:.3f} of it"


@check("versitygw", alone=True)
def vllm_reads_what_it_saved_of_each_rank(h, store):
    """What real vLLM saved of two ranks, read by each rank from a bucket: its own file alone; weights and tokens are the same. vLLM cannot read it back
    by itself on a processor, where it saves after packing; so it is saved before."""
    python_of("vllm")
    folder, size = llama(h, "vllm")
    saved, line, sent = small_part(h, folder, "saved-llama"), Line(store.port), []
    found = starts(h, "vllm", [{"path": folder, "format": "auto", "ranks": 2}], {"SLUICE_SAVE_RANKS": saved})
    assert len(found[0].get("tokens", ())) == 12, found[0]
    store.make_bucket(BUCKET)
    put_folder(store, saved, "saved-llama/")
    files = sum(os.path.getsize(os.path.join(saved, f"model-rank-{rank}-part-0.safetensors")) for rank in range(2))
    run = {"path": small_part(h, folder, "bare-llama"), "format": "sluice", "ranks": 2, "extra": {"uri": f"s3://{BUCKET}/saved-llama/", "sharded_state": True}}
    found += starts(h, "vllm", [run], line.env(store), lambda _: sent.append(line.taken()))
    same(found[1:], found[0])
    assert files <= sent[0] <= 1.02 * files, (sent, files)
    return f"two ranks fetched {sent[0]} bytes of their files' {files}; the model has {size}"


@check("versitygw", alone=True)
def vllm_reloads_in_place(h, store):
    """Real vLLM sleeps, wakes and reloads: the same version, and the next one, from a directory, the pool and a bucket, twice, and on two ranks. Its tokens
    are those of a fresh start of that version. On a processor vLLM's sleep does nothing. vLLM reloads nothing more after a reload that failed."""
    python_of("vllm")
    (first, _), (second, _) = llama(h, "vllm"), llama(h, "vllm", 2)
    bare, weights = small_part(h, first, "bare-llama"), os.path.join(second, "model.safetensors")
    places = [small_part(h, first, f"current-{name}") for name in ("directory", "pool")]
    for place in places:
        shutil.copy(os.path.join(first, "model.safetensors"), place)
    pool = FilePool(h, f"file://{places[1]}/")
    in_bucket(store, first)
    put_folder(store, second, "next-llama/")

    def next_version(place, *then):
        made = os.path.join(place, "model.safetensors")
        return {"before": ["bash", "-ec", 'cp "$1" "$2.new"; mv "$2.new" "$2"; shift 2; "${@:-true}"', "next", weights, made, *then]}

    load = [h.program, "node", "load", "m", "--watch", "--socket", pool.node.control]
    in_next = {"weights_path": f"s3://{BUCKET}/next-llama/"}
    runs = [{"path": first, "format": "auto"}, {"path": second, "format": "auto"},
            {"path": places[0], "format": "sluice", "reloads": [{}, next_version(places[0]), {}]},
            {"path": bare, "format": "sluice", "extra": {"model": "m", "socket": pool.path}, "reloads": [{}, next_version(places[1], *load), {}]},
            {"path": bare, "format": "sluice", "extra": {"uri": f"s3://{BUCKET}/wide-llama/"}, "reloads": [{}, in_next, {}]}]
    bucket = {**runs[-1], "ranks": 2, "reloads": [{}, in_next]}
    broken = {**runs[-1], "reloads": [{"weights_path": f"s3://{BUCKET}/nowhere/"}, {}]}
    runs += [bucket, {"path": second, "format": "auto", "ranks": 2}, broken]
    found = starts(h, "vllm", runs, store.env())
    pool.end()
    old, new = found[0]["tokens"], found[1]["tokens"]
    assert len(old) == len(new) == 12 and old != new, (old, new)
    for each in found[2:5]:
        assert each == {**found[0], "reloaded": [old, new, new]}, (each, old, new)
    assert found[5]["reloaded"] == [found[5]["tokens"], found[6]["tokens"]], found[5:7]
    first, again = found[7]["reloaded"]
    assert "NOT_FOUND" in first or "no object" in first, first
    assert "start the engine again" in again, again
    return "three reloads from a directory, the pool and a bucket, two of two ranks; none after one that failed"


@check("versitygw", alone=True)
def vllm_takes_adapters_by_name(h, store):
    """Real vLLM with a LoRA adapter that its resolver fetched from a bucket says the tokens that it says with the same adapter of a folder."""
    python_of("vllm")
    folder, _ = llama(h, "vllm")
    adapter, kept = h.directory("adapter"), h.directory("adapters")
    subprocess.run([python_of("vllm"), "-W", "ignore", MODELS, "adapter", adapter, folder], check=True, capture_output=True, env=environment(h), timeout=PATIENCE)
    store.make_bucket(BUCKET)
    put_folder(store, adapter, "adapters/sql/")
    found, = starts(h, "vllm", [{"path": folder, "format": "auto", "adapter": {"path": adapter, "name": "sql"}}],
                    {**store.env(), "SLUICE_LORA": f"s3://{BUCKET}/adapters/", "SLUICE_LORA_DIR": kept})
    plain, (by_path, by_name) = found.get("tokens"), found.get("adapter", (None, None))
    assert by_path == by_name and len(by_path) == 12 and by_path != plain, (found, h.log_tail("vllm"))
    assert os.listdir(os.path.join(kept, "sql")), kept
    return f"tokens {by_name[:3]}…, without it {plain[:3]}…"


def small_config(h):
    """A folder with a config.json that SGLang takes."""
    folder = h.directory("sglang")
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
                   "intermediate_size": 128, "vocab_size": 100}, file)
    return folder


@check(alone=True)
def sglang_takes_the_plugin(h):
    """Real SGLang, as far as it goes without its kernels: it finds the plugin, takes the format on its command line, and its own functions load a small module
    with our loader."""
    python = python_of("sglang")
    folder = small_config(h)
    path = os.path.join(folder, "m.safetensors")
    head = json.dumps({name: {"dtype": "F32", "shape": [2, 2], "data_offsets": [at, at + 16]} for name, at in (("q", 0), ("k", 16))}).encode()
    with open(path, "wb") as file:
        file.write(len(head).to_bytes(8, "little") + head + struct.pack("<8f", *[1.0] * 4, *[2.0] * 4))
    program = os.path.join(os.path.dirname(RUNS), "sglang_loader.py")
    done = subprocess.run([python, "-W", "ignore", program, folder, path], capture_output=True, text=True, env={**environment(h, entry_points(h)), **SETTINGS},
                          stdin=subprocess.DEVNULL, timeout=PATIENCE)
    assert "RESULT " in done.stdout, (done.stdout + done.stderr)[-3000:]
    found = json.loads(done.stdout.rsplit("RESULT ", 1)[1])
    assert found == {"loader": "SluiceModelLoader", "is": True, "qk": [[1.0, 1.0], [1.0, 1.0], [2.0, 2.0], [2.0, 2.0]], "drafts": [False, True]}, found
    return "registration, command line, loader; never started"


@check("versitygw", alone=True)
def sglang_takes_adapters_by_path(h, store):
    """What its route is told of an adapter in a bucket: SGLang's own classes read the folder, every tensor as it was written."""
    python, folder, base = python_of("sglang"), h.directory("sglang-adapter"), small_config(h)
    front = "base_model.model.model.layers.0.mlp.down_proj"
    written = {f"{front}.lora_A.weight": [1.0] * 8, f"{front}.lora_B.weight": [2.0] * 8}
    head = json.dumps({name: {"dtype": "F32", "shape": [1, 8] if "lora_A" in name else [8, 1], "data_offsets": [at * 32, at * 32 + 32]}
                       for at, name in enumerate(written)}).encode()
    with open(os.path.join(folder, "adapter_model.safetensors"), "wb") as file:
        file.write(len(head).to_bytes(8, "little") + head + b"".join(struct.pack("<8f", *values) for values in written.values()))
    with open(os.path.join(folder, "adapter_config.json"), "w") as file:
        json.dump({"peft_type": "LORA", "r": 1, "lora_alpha": 2, "target_modules": ["down_proj"], "base_model_name_or_path": base}, file)
    store.make_bucket(BUCKET)
    put_folder(store, folder, "adapters/sql/")
    program = os.path.join(os.path.dirname(RUNS), "sglang_adapter.py")
    done = subprocess.run([python, "-W", "ignore", program, f"s3://{BUCKET}/adapters/", h.directory("sglang-adapters"), "sql", base],
                          capture_output=True, text=True, env={**environment(h, entry_points(h)), **SETTINGS, **store.env()}, stdin=subprocess.DEVNULL,
                          timeout=PATIENCE)
    assert "RESULT " in done.stdout, (done.stdout + done.stderr)[-3000:]
    found = json.loads(done.stdout.rsplit("RESULT ", 1)[1])
    assert found == {"name": "sql", "rank": 1, "sums": {name: sum(values) for name, values in written.items()}}, found
    return "its route's request, configuration and reader of adapters; never started"
