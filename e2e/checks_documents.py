"""The blocks of the documents as they are written, with stand-ins for stores and hubs. document_blocks.py says which, and why each other
one is not run; scripts/check-docs holds that none is in neither list, and that commands, flags, files and specs of all exist."""
import os
import re
import shutil
import signal
import subprocess
import sys

from checks_hf import files_of
from checks_serve import Node
from document_blocks import blocks_of, lines_of
from harness import check, free_port, wait_for

ROOMS = ("tools/cli", "node/node")
REPOSITORY = "Qwen/Qwen2.5-0.5B-Instruct"
FILES = {name: data for name, (data, _) in files_of(2).items() if data and "%" not in name}


class Reader:
    """Somebody who types blocks: in a folder of their own, with folders of shared memory in the place of those that the documents name."""

    def __init__(self, h, name, env=None, words=None):
        self.place, self.memory = h.fresh(name), os.path.join(h.memory, name)
        os.makedirs(os.path.join(self.place, "bin"))
        os.makedirs(self.memory)
        os.symlink(sys.executable, os.path.join(self.place, "bin", "python"))
        path = ":".join((os.path.join(self.place, "bin"), os.path.dirname(os.path.abspath(h.program)), os.environ["PATH"]))
        self.env = h.environment({"PATH": path, **(env or {})})
        self.words = {" /models": f" {self.memory}/models", "/dev/shm/": self.memory + "/", "/run/sluice/": self.memory + "/", **(words or {})}

    def put(self, name, data, mode=0o644):
        path = os.path.join(self.place, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)
        os.chmod(path, mode)

    def run(self, command):
        for word, mine in self.words.items():
            command = command.replace(word, mine)
        done = subprocess.run(["sh", "-e", "-c", command], env=self.env, cwd=self.place, capture_output=True, text=True, stdin=subprocess.DEVNULL,
                              timeout=300)
        assert done.returncode == 0, f"{command}: {done.returncode}: {(done.stdout + done.stderr)[-900:]}"
        return done.stdout + done.stderr

    def blocks(self, page, *numbers, before=None):
        """Each line of them; `before` has what this check does first, by words of the line. Returns all that was said."""
        said = ""
        for line in (line for number in numbers for line in lines_of(page, number)):
            for words, command in (before or {}).items():
                if words in line:
                    self.run(command)
            said += self.run(line)
        return said


@check("versitygw")
def blocks_that_name_a_bucket_work(h, versitygw):
    """Loading, converting, encrypting, signing and finding public models, against a real store."""
    store = versitygw
    bucket = os.path.join(store.root, "bucket")
    store.make_bucket("bucket")
    for name, data in FILES.items():
        if "/" not in name:
            store.put("bucket", "model/" + name, data)
    weights = FILES["model.safetensors"]
    reader = (lambda name: Reader(h, "reader-" + name, {**store.env(), "PASSPHRASE": "correct horse battery", "BUCKET": bucket}))
    said = reader("load").blocks("docs/load.md", 0)
    assert "ok    listing" in said and "kind: Pod" in said and "published" in said, said
    one = reader("convert")
    one.put("model.safetensors", weights)
    one.put("hf-model/model.safetensors", weights)
    one.put("hf-model/config.json", FILES["config.json"])
    one.put("phrase", b"correct horse battery", 0o600)
    one.blocks("docs/convert.md", 0, 1)
    one = reader("encryption")
    one.put("model.safetensors", weights)
    one.run("sluice convert model.safetensors model.tensors")
    one.blocks("docs/encryption.md", 0, before={
        "--key-file model.key s3:": "cp sealed.tensors $BUCKET/",
        "--passphrase-file passphrase s3:": "sluice encrypt model.tensors other.tensors --passphrase-file passphrase && cp other.tensors $BUCKET/"})
    reader("sidecars").blocks("docs/sidecars.md", 0)
    reader("signing").blocks("docs/signing.md", 0)
    assert "kind: Model" in reader("models").blocks("docs/models.md", 0)


@check("hub", "ms_hub")
def blocks_that_name_a_hub_work(h, hub, ms_hub):
    """Hugging Face and ModelScope, with stand-ins for the hubs."""
    hub.commit("Qwen/Qwen2.5-7B-Instruct", {name: (data, name == "model.safetensors") for name, data in FILES.items()})
    Reader(h, "reader-hf", {"HF_ENDPOINT": hub.url}).blocks("docs/huggingface.md", 0)
    ms_hub.put("Qwen/Qwen2.5-7B-Instruct", {name: (data, name == "model.safetensors") for name, data in FILES.items()})
    Reader(h, "reader-ms", {"MODELSCOPE_ENDPOINT": ms_hub.url}).blocks("docs/modelscope.md", 0)


@check("redis")
def blocks_that_name_a_redis_work(h, redis):
    """Writing, reading and checking a model in a real server."""
    one = Reader(h, "reader-redis", words={"cache.local": f"127.0.0.1:{redis.port}"})
    one.put("model.safetensors", FILES["model.safetensors"])
    one.blocks("docs/redis.md", 0)


@check()
def blocks_that_name_a_daemon_work(h):
    """What `sluice node` and `sluice pool` are told to do, of a daemon with a pool."""
    node = Node(h)
    pool = os.path.join(node.place, "pool.sock")
    node.configure(f"pool: {{socket: {pool}}}\n")
    node.start()
    one = Reader(h, "reader-node", {"SLUICE_CONTROL_SOCKET": node.control, "SLUICE_POOL_SOCKET": pool})
    one.put("gpt/model.safetensors", FILES["model.safetensors"])
    one.put("serve.py", b"print('served')\n")
    one.put("model.yaml", f"apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {{name: gpt-j-6b}}\n"
                          f"source: {{uri: \"{one.place}/gpt/\"}}\nsink: {{pool: {{}}}}\n".encode())
    one.blocks("docs/serve.md", 1)
    said = one.blocks("docs/pool.md", 0, before={"pool evict": "sluice node unpin gpt-j-6b"})
    assert "served" in said and "gpt-j-6b" in said, said
    assert node.end() == 0


@check("hub")
def the_tour_works_and_leaves_nothing(h, hub):
    """README's one command, then each block of docs/tour.md in its order, in one folder, with a stand-in for the hub; folders of shared
    memory and the port are this check's own, the daemon runs beside. At the end nothing is left of it."""
    hub.commit(REPOSITORY, {name: (data, name == "model.safetensors") for name, data in FILES.items()})
    port = free_port()
    one = Reader(h, "tour", {"HF_ENDPOINT": hub.url}, {"9464": str(port), "8GiB": "1GiB"})
    shutil.rmtree(os.path.join(one.place, "bin"))
    place, memory, env, run = one.place, one.memory, one.env, one.run
    run(blocks_of("README.md")[0])
    load, look, node, remove = blocks_of("docs/tour.md")
    assert "this version is there already" in run(load)
    looked = run(look)
    assert "published" in looked and " wrong" in looked and "model." in looked, looked
    config, serve, models = re.fullmatch(r"(.*?^END\n)(sluice serve [^\n]*\n)(sluice node [^\n]*\n)", node, re.MULTILINE | re.DOTALL).groups()
    run(config)
    with open(os.path.join(h.logs, "tour"), "wb") as log:
        # Whoever runs this in the background may have had SIGINT ignored, which the daemon would go on doing.
        daemon = subprocess.Popen(["sh", "-c", "exec " + serve], env=env, cwd=place, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                  preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    wait_for("the model", lambda: os.path.exists(os.path.join(memory, "sluice-models", "qwen", "current", "model.safetensors")))
    assert "ready" in run(models)
    daemon.send_signal(signal.SIGINT)
    assert daemon.wait(60) in (0, 130)
    run(remove)
    assert os.listdir(memory) == [] and os.listdir(place) == [], (os.listdir(memory), os.listdir(place))
