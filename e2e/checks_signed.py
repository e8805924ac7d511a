"""Signed models (OpenSSF Model Signing) from a real store: what is signed loads, what is not is never seen, and rules of a node."""
import base64
import hashlib
import json
import os
import subprocess

from checks_serve import Node
from checks_verified import FlippingServer
from harness import check, http_get, need_program, pinned, sha256_file, wait_for

ROOMS = ("model/signing", "model/plan", "node/node")
BUCKET, TYPE, PARENT = "signed", "application/vnd.in-toto+json", "https://model_signing/signature/v1.0"
SHARD_BYTES = 1 << 20


class Signer:
    """A key of P-256, and bundles made by hand and by openssl."""

    def __init__(self, h, name):
        folder, self.openssl = h.directory("signers"), need_program("openssl")
        self.key, self.public = (os.path.join(folder, f"{name}.{end}") for end in ("key", "pub"))
        for command in (["ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", self.key],
                        ["ec", "-in", self.key, "-pubout", "-out", self.public]):
            subprocess.run([self.openssl, *command], check=True, capture_output=True)

    def sign(self, files, shard_bytes=0):
        resources = []
        for name, data in sorted(files.items()):
            parts = [(f"{name}:{at}:{min(at + shard_bytes, len(data))}", data[at:at + shard_bytes])
                     for at in range(0, len(data), shard_bytes)] if shard_bytes else [(name, data)]
            resources += [{"name": part, "algorithm": "sha256", "digest": hashlib.sha256(some).hexdigest()} for part, some in parts]
        root = hashlib.sha256(b"".join(bytes.fromhex(resource["digest"]) for resource in resources)).hexdigest()
        how = {"method": "shards", "shard_size": shard_bytes} if shard_bytes else {"method": "files"}
        payload = json.dumps({"_type": "https://in-toto.io/Statement/v1", "subject": [{"name": "m", "digest": {"sha256": root}}],
                              "predicateType": PARENT, "predicate": {
                                  "serialization": {**how, "hash_type": "sha256", "allow_symlinks": False, "ignore_paths": []},
                                  "resources": resources}}).encode()
        text = f"DSSEv1 {len(TYPE)} {TYPE} {len(payload)} ".encode() + payload
        signature = subprocess.run([self.openssl, "dgst", "-sha256", "-sign", self.key], input=text, check=True, capture_output=True).stdout
        return json.dumps({"mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
                           "verificationMaterial": {"publicKey": {}, "tlogEntries": []},
                           "dsseEnvelope": {"payload": base64.b64encode(payload).decode(), "payloadType": TYPE,
                                            "signatures": [{"sig": base64.b64encode(signature).decode()}]}}).encode()


def model_files():
    return {"model.safetensors": safetensors(4 << 20), "config.json": b"{}", "tokens/vocab.txt": b"a b c"}


def safetensors(size):
    header = json.dumps({"t": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + os.urandom(size)


def put(store, prefix, files):
    store.make_bucket(BUCKET)
    for name, data in files.items():
        store.put(BUCKET, f"{prefix}/{name}", data)
    return f"s3://{BUCKET}/{prefix}/"


@check("versitygw")
def a_signed_model_loads_from_s3(h, store):
    """Files and ranges: it loads and says by whom; status and verify repeat it; another key, a file more, a changed one are refused."""
    signer, other = Signer(h, "one"), Signer(h, "two")
    for method, shard_bytes in (("files", 0), ("shards", SHARD_BYTES)):
        files, to = model_files(), h.fresh()
        uri = put(store, method, {**files, "model.sig": signer.sign(files, shard_bytes)})
        by = ["--signed-by", signer.public]
        result = h.load(uri, to, *by, env=store.env()).expect(0).json()
        assert result["signed"]["by"].startswith("key ") and result["signed"]["resources"] == len(files), result
        assert sorted(name for name in os.listdir(to) if name != ".sluice") == ["config.json", "model.safetensors", "tokens"]
        h.sluice("status", to).expect(0, "signed      key ")
        h.sluice("verify", to).expect(0, "signed   by      key ", "3 right, 0 wrong")
        h.sluice("verify", uri, *by, env=store.env()).expect(0, "signed   by      key ", "signature of the model")
        signature = os.path.join(h.directory("signers"), f"{method}.sig")
        with open(signature, "wb") as file:
            file.write(signer.sign(files, shard_bytes))
        h.sluice("verify", to, *by, "--signature", signature).expect(0, "signature of the model")
        h.sluice("convert", uri, os.path.join(h.directory("signers"), "new.tensors"), *by, env=store.env()).expect(2, "makes another")
        h.remove(to)
        h.load(uri, to, "--signed-by", other.public, env=store.env()).expect(5, "signature 'model.sig'")
        store.put(BUCKET, f"{method}/extra.py", b"import os")
        h.load(uri, to, *by, env=store.env()).expect(5, "does not name 'extra.py'")
        assert store.request("DELETE", BUCKET, f"{method}/extra.py")[0] in (200, 204)
        store.put(BUCKET, f"{method}/config.json", b"[]")
        h.load(uri, to, *by, env=store.env()).expect(5, "'config.json")
        assert not os.path.exists(os.path.join(to, ".sluice", "ready"))
        h.remove(to)


@check()
def a_range_of_a_signed_model_is_fetched_again_alone(h):
    """One bit wrong in one answer: its range alone comes twice, what is published is what was signed."""
    signer, data = Signer(h, "ranges"), os.urandom(64 << 20)
    server, to = FlippingServer(data, b"", [33_333_333], 1), h.fresh()
    server.objects["/model.sig"] = signer.sign({"big.bin": data}, SHARD_BYTES)
    result = h.load(server.url, to, *pinned(range_bytes=SHARD_BYTES), "--signed-by", signer.public).expect(0, "checksum mismatch").json()
    server.expect_found(result)
    assert sha256_file(os.path.join(to, "big.bin")) == hashlib.sha256(data).hexdigest()
    again = server.again()
    assert again <= SHARD_BYTES + (1 << 19), f"{again} bytes were sent twice: {result}"
    h.remove(to)
    return f"{again / 1e6:.1f} MB fetched twice for a bit"


@check("versitygw")
def a_node_loads_only_what_its_rules_allow(h, store):
    """A rule for a bucket's folder: what is signed there loads, what is not does not, whatever the request says; elsewhere all does."""
    signer, files = Signer(h, "rule"), model_files()
    good = put(store, "prod/good", {**files, "model.sig": signer.sign(files)})
    bare, free = put(store, "prod/bare", files), put(store, "free", files)
    node = Node(h)
    node.configure(f"signing: [{{prefix: \"s3://{BUCKET}/prod/\", modelSigning: {{publicKeyFile: {signer.public}}}}}]\n")
    node.start(env=store.env())
    head = "apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: %s}\nsource: {uri: \"%s\"}\n"
    for name, uri, right in (("good", good, True), ("bare", bare, False), ("free", free, True)):
        status, answer = node.ask("POST", "/v1/loads", head % (name, uri))
        assert status == 202, answer
        wait_for(f"the end of '{name}'", lambda: node.model(name)["state"] == "ready" or "error" in node.model(name))
        state = node.model(name)
        assert (state["state"] == "ready") == right and (right or "not signed" in state["error"]["message"]), state
    status, listing = node.ask("GET", "/v1/models")
    signed = {model["name"]: [version.get("signed") for version in model["versions"]] for model in listing["models"]}
    assert signed["good"][0]["by"].startswith("key ") and signed["free"] == [None], signed
    loads = {load["name"]: load["signed"] for load in node.get("/v1/loads")[1]["loads"]}
    assert loads["good"]["resources"] == len(files) and loads["free"] is None, loads
    assert 'sluice_signatures_refused_total' in http_get(f"http://127.0.0.1:{node.port}/metrics")[1].decode()
    assert node.end() == 0
