"""Signed models: the package model-signing verifies what is signed here, and what it signs is read here."""
import json
import os
import subprocess

from checks_hf import python_with
from harness import ROOT, check, fixture

ROOMS = ("model/signing",)
PACKAGES = ("model-signing==1.1.1", "pyopenssl")
PROGRAM = os.path.join(ROOT, "e2e", "reference_signer.py")
BUCKET = "signed"
FILES = {"config.json": b"{}\n", "model.safetensors": bytes(range(256)) * 1200, "empty.bin": b"", "a-b/one": b"one\n", "a/two": b"two\n",
         "a/b.c/three": b"three\n", "naïve – 模型.txt": b"text\n", ".git/config": b"not signed\n"}
REFUSED = 3


class Signer:
    """The reference, and keys that it made."""

    def __init__(self, python, folder):
        self.python, self.folder = python, folder
        self.run("keys", folder)

    def path(self, name):
        return os.path.join(self.folder, name + ".pem")

    def call(self, *arguments):
        return subprocess.run([self.python, PROGRAM, *arguments], capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)

    def run(self, *arguments):
        done = self.call(*arguments)
        assert done.returncode == 0, f"{' '.join(arguments)}: {done.stderr.strip()[-600:]}"

    def command(self, *arguments):
        """Its own command line, which hashes whole files."""
        done = subprocess.run([os.path.join(os.path.dirname(self.python), "model_signing"), *arguments], capture_output=True, text=True,
                              timeout=300, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, f"{' '.join(arguments)}: {(done.stderr or done.stdout).strip()[-600:]}"

    def refuses(self, *arguments):
        done = self.call(*arguments)
        assert done.returncode == REFUSED, f"{' '.join(arguments)}: exit code {done.returncode}: {done.stderr.strip()[-600:]}"


@fixture("model_signing", expensive=True)
def model_signing(h):
    return Signer(python_with("signing-venv", "model_signing, OpenSSL", PACKAGES), h.directory("signing-keys"))


def model(h, name):
    folder = h.directory(name)
    for path, data in FILES.items():
        os.makedirs(os.path.dirname(os.path.join(folder, path)), exist_ok=True)
        with open(os.path.join(folder, path), "wb") as file:
            file.write(data)
    return folder


@check("model_signing")
def the_reference_verifies_models_signed_here(h, signer):
    """By keys of three curves and by a certificate, whole files and ranges; a changed byte and a new file are refused."""
    folder = model(h, "signed-here")
    signature = os.path.join(folder, "model.sig")

    def write(path, data):
        with open(os.path.join(folder, path), "wb") as file:
            file.write(data)
    h.sluice("sign", folder).expect(0)  # sidecars beside the files are ignored
    for shards, curve in (("0", "p384"), ("1000", "p521"), ("16Mi", "p256")):
        h.sluice("sign", "--format", "oms", "--key", signer.path(curve + ".key"), "--shard-bytes", shards, folder).expect(0)
        signer.run("verify", folder, signature, signer.path(curve + ".pub"))
    signer.refuses("verify", folder, signature, signer.path("p384.pub"))
    for shards in ("0", "1000"):
        h.sluice("sign", "--format", "oms", "--key", signer.path("leaf.key"), "--certificate", signer.path("leaf.cert"), "--chain",
                 signer.path("intermediate.cert"), "--shard-bytes", shards, folder).expect(0)
        signer.run("verify-certificate", folder, signature, signer.path("root.cert"))
        write("a/two", b"tvo\n")
        signer.refuses("verify-certificate", folder, signature, signer.path("root.cert"))
        write("a/two", FILES["a/two"])
        write("new", b"new\n")
        signer.refuses("verify-certificate", folder, signature, signer.path("root.cert"))
        os.remove(os.path.join(folder, "new"))
    h.sluice("sign", "--format", "oms", "--key", signer.path("p256.key"), folder).expect(0)
    signer.command("verify", "key", folder, "--signature", signature, "--public_key", signer.path("p256.pub"))


@check("model_signing")
def one_file_is_signed_as_the_reference_does(h, signer):
    """A model that is one file has the name that the reference gives it."""
    path = os.path.join(model(h, "one-signed"), "model.safetensors")
    h.sluice("sign", "--format", "oms", "--key", signer.path("p256.key"), path).expect(0, "1 file")
    signer.run("verify", path, path + ".sig", signer.path("p256.pub"))
    signer.command("verify", "key", path, "--signature", path + ".sig", "--public_key", signer.path("p256.pub"))


@check("model_signing", "versitygw")
def a_bucket_is_signed(h, signer, store):
    """The signature that is written into a bucket is right for a copy of its objects."""
    folder = model(h, "signed-bucket")
    store.make_bucket(BUCKET)
    for path in FILES:
        if path.isascii() and not path.startswith("."):
            store.put(BUCKET, "m/" + path, FILES[path])
        else:
            os.remove(os.path.join(folder, path))
    h.sluice("sign", "--format", "oms", "--key", signer.path("p384.key"), "--shard-bytes", "64Ki", f"s3://{BUCKET}/m/",
             env=store.env()).expect(0, f"s3://{BUCKET}/m/model.sig", "6 files, 9 ranges")
    signature = os.path.join(folder, "model.sig")
    with open(signature, "wb") as file:
        file.write(store.request("GET", BUCKET, "m/model.sig")[1])
    signer.run("verify", folder, signature, signer.path("p384.pub"))


def believed(h, folder, trusted, *how):
    """A load by this key or authority takes the folder, and no other byte of it: `how` ends in a flag, or in what is set."""
    words = (*how, trusted) if how[-1].startswith("--") else (*how[:-1], how[-1] + trusted)
    words = (*words, "--set", "source.asIs=*")
    h.sluice("load", folder + "/", "--to", h.fresh(), *words).expect(0, "signed by")
    h.sluice("verify", folder + "/", *words).expect(0, "signature of the model")
    changed = os.path.join(folder, "a", "two")
    with open(changed, "wb") as file:
        file.write(b"tvo\n")
    h.sluice("load", folder + "/", "--to", h.fresh(), *words).expect(5, "a/two")
    with open(changed, "wb") as file:
        file.write(FILES["a/two"])


@check("model_signing")
def signatures_of_the_reference_are_read(h, signer):
    """What the reference signed by key and by certificate, files, ranges, and another hash: `inspect` shows it, `load` and `verify` believe it."""
    folder = model(h, "signed-there")
    signature = os.path.join(folder, "model.sig")
    for how, said in (("files", {"files": 7, "resources": 7, "hashes": ["sha256"]}),
                      ("shards:100000", {"files": 6, "resources": 9, "shard_bytes": 100000, "bytes": 307222, "hashes": ["sha256"]}),
                      ("blake2", {"files": 7, "resources": 7, "hashes": ["blake2b512"]})):
        signer.run("sign", how, folder, signature, signer.path("p256.key"))
        found = json.loads(h.sluice("inspect", "--json", signature).expect(0).out)
        assert found["method"] == "key" and not found["verified"], found
        assert {key: found.get(key) for key in said} == said, f"{how}: {found}"
        believed(h, folder, signer.path("p256.pub"), "--signed-by")
    signer.run("sign", "files", folder, signature, signer.path("leaf.key"), signer.path("leaf.cert"), signer.path("intermediate.cert"))
    found = json.loads(h.sluice("inspect", "--json", signature).expect(0).out)
    assert (found["method"], found["subject"], found["issuer"]) == ("certificate", "CN=signer", "CN=intermediate"), found
    believed(h, folder, signer.path("root.cert"), "--set", "verify.modelSigning.certificates.caFile=")
