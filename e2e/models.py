"""What the stores hold: a real model, one large object, many small ones, keys with odd characters."""
import hashlib
import json
import os
import shutil
import subprocess
import sys

from harness import CACHE, ROOT, Skip, fixture, one_at_a_time, run_client, sha256_file

BIG_BYTES, MEDIUM_BYTES = 2 << 30, 256 << 20
SMALL_COUNT = 2000
# Each is legal in S3 and in a file system, and each breaks a client that encodes it once too often or too rarely.
ODD_KEYS = ["a b.bin", "plus+plus.bin", "100%.bin", "%2F.bin", "%41.bin", "ünï-cødé-模型.bin", "q?x=1&y=2.bin", "h#ash.bin",
            "paren(1)'s!*.bin", "semi;colon,comma=eq@at:colon.bin", "tilde~.bin", "sub dir+/in ner%20.bin", "..dots..",
            "quote\".bin", "[brackets]{braces}.bin", "back^tick`.bin"]
# nginx cannot be asked for these by URL without its own rules in the way; S3 stores can.


class Objects:
    """Files in a directory and their digests, relative names."""

    def __init__(self, directory, names=None):
        self.directory = directory
        self.names = names or sorted(
            os.path.relpath(os.path.join(parent, name), directory)
            for parent, _, files in os.walk(directory) for name in files)
        self.sha256 = {name: sha256_file(os.path.join(directory, name)) for name in self.names}

    def put(self, store, bucket, prefix):
        for name in self.names:
            path = os.path.join(self.directory, name)
            store.put_file(bucket, prefix + name, path, self.sha256[name])

    def compare(self, published):
        """Exactly these files, with these bytes, lie in the published directory."""
        found = sorted(os.path.relpath(os.path.join(parent, name), published)
                       for parent, folders, files in os.walk(published)
                       if folders.sort() is None for name in files
                       if os.path.relpath(parent, published).split(os.sep)[0] != ".sluice")
        assert found == sorted(self.names), f"published {found[:20]}, not {sorted(self.names)[:20]}"
        for name in self.names:
            digest = sha256_file(os.path.join(published, name))
            assert digest == self.sha256[name], f"{name} has sha256 {digest}, not {self.sha256[name]}"


@fixture("minilm")
@one_at_a_time("model")
def minilm(h):
    done = subprocess.run([sys.executable, os.path.join(ROOT, "scripts", "get-model"), "--no-synthetic"],
                          capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise Skip(f"the model cannot be fetched: {done.stderr.strip()[-200:]}")
    return Objects(done.stdout.strip())


@fixture("odd")
def odd(h):
    directory = h.directory("odd")
    for number, name in enumerate(ODD_KEYS):
        path = os.path.join(directory, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(f"{number}: {name}\n".encode() * (1 + 500 * number))
    with open(os.path.join(directory, "empty.json"), "wb"):
        pass
    return Objects(directory)


@fixture("small")
def small(h, count=SMALL_COUNT, size=64 * 1024):
    directory = h.directory("small")
    for number in range(count):
        folder = os.path.join(directory, f"part-{number % 10}")
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, f"object-{number:05}.bin"), "wb") as file:
            file.write(hashlib.shake_128(str(number).encode()).digest(64) * (size // 64) + bytes(number % 7))
    return Objects(directory)


def write_big(path, size=BIG_BYTES, tensors=16):
    """A safetensors file of `size` bytes and a little, random data; its SHA-256."""
    each = size // tensors
    header = {f"layers.{i}.weight": {"dtype": "U8", "shape": [each // 4096, 4096], "data_offsets": [i * each, (i + 1) * each]}
              for i in range(tensors)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    with open(path, "wb") as file:
        def write(data):
            file.write(data)
            digest.update(data)
        write(len(text).to_bytes(8, "little") + text)
        left = each * tensors
        while left:
            block = os.urandom(min(left, 8 << 20))
            write(block)
            left -= len(block)
    return digest.hexdigest()


class Big:
    """One file of random tensors."""

    def __init__(self, h, name="big", size=BIG_BYTES):
        if shutil.disk_usage(h.memory).free < 2 * size or shutil.disk_usage(h.disk).free < 3 * size:
            raise Skip(f"less than {2 * size >> 20} MiB free on the tmpfs or {3 * size >> 20} MiB on disk")
        self.path = os.path.join(h.directory(name), "model.safetensors")
        self.sha256 = write_big(self.path, size)
        self.bytes = os.path.getsize(self.path)

    def compare(self, published):
        digest = sha256_file(published)
        assert digest == self.sha256, f"sha256 {digest}, not {self.sha256}"


@fixture("big", expensive=True)
def big(h):
    return Big(h)


@fixture("medium")
def medium(h):
    return Big(h, "medium", MEDIUM_BYTES)


@fixture("python")
@one_at_a_time("python")
def python(h):
    """A Python with safetensors, numpy and jsonschema: found, or made in the cache from PyPI."""
    own = os.path.join(CACHE, "venv", "bin", "python")
    probe = "import safetensors, numpy, jsonschema"
    for program in (sys.executable, own):
        if os.access(program, os.X_OK) and subprocess.run([program, "-c", probe], capture_output=True).returncode == 0:
            return program
    for command in ([sys.executable, "-m", "venv", os.path.join(CACHE, "venv")],
                    [own, "-m", "pip", "install", "-q", "safetensors==0.8.0", "numpy", "jsonschema"]):
        done = run_client(command, timeout=600)
        if done.returncode:
            raise Skip(f"{' '.join(command[:4])}: {(done.stderr or done.stdout).strip()[-200:]}")
    return own
