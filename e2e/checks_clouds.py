"""Google's and Azure's stores: fake-gcs-server and Azurite. Neither looks at Google's tokens; Azurite checks keys and SAS."""
import base64
import email.utils
import hashlib
import hmac
import json
import os
import urllib.parse
import urllib.request

import models
from checks_upload import convert, digests
from harness import CACHE, Skip, check, fixture, free_port, need_program, one_at_a_time, run_client
from servers import go_program

ROOMS = ("storage/cloud", "storage/gs", "storage/az", "storage/upload")
FAKE_GCS = "github.com/fsouza/fake-gcs-server@v1.56.1"
AZURITE = "azurite@3.37.0"
# Azurite's own, known to everybody
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
BYTES = 40 << 20


@fixture("cloud_model")
def small_cloud_model(h):
    """A safetensors file of a few chunks."""
    path = os.path.join(h.directory("cloud"), "model.safetensors")
    models.write_big(path, BYTES)
    return path


def send(method, url, data=None, headers=None):
    request = urllib.request.Request(url, method=method, data=data, headers=headers or {})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.status


@fixture("google", expensive=True)
class Google:
    """fake-gcs-server with a bucket `models`."""

    def __init__(self, h):
        self.port = free_port()
        h.serve("fake-gcs", [go_program("fake-gcs-server", FAKE_GCS), "-scheme", "http", "-host", "127.0.0.1", "-port", str(self.port),
                             "-backend", "memory", "-public-host", f"127.0.0.1:{self.port}"], self.port)
        send("POST", f"http://127.0.0.1:{self.port}/storage/v1/b?project=p", json.dumps({"name": "models"}).encode(),
             {"Content-Type": "application/json"})

    def env(self):
        return {"STORAGE_EMULATOR_HOST": f"127.0.0.1:{self.port}", "NO_GCE_CHECK": "true"}


@fixture("azure", expensive=True)
class Azure:
    """Azurite with a container `models`."""

    def __init__(self, h):
        self.port = free_port()
        node = need_program("node")
        h.serve("azurite", [node, self.program(), "--blobHost", "127.0.0.1", "--blobPort", str(self.port), "--location",
                            h.directory("azurite"), "--skipApiVersionCheck"], self.port)
        self.url = f"http://127.0.0.1:{self.port}/{ACCOUNT}"
        self.make_container("models")

    @staticmethod
    @one_at_a_time("azurite")
    def program():
        folder = os.path.join(CACHE, "azurite")
        own = os.path.join(folder, "node_modules", ".bin", "azurite-blob")
        if not os.path.exists(own):
            npm = need_program("npm")
            os.makedirs(folder, exist_ok=True)
            done = run_client([npm, "install", "--no-audit", "--no-fund", "--prefix", folder, AZURITE], timeout=900)
            if done.returncode or not os.path.exists(own):
                raise Skip(f"npm install {AZURITE}: {done.stderr.strip()[-200:]}")
        return own

    def make_container(self, name):
        """Signed by SharedKey, which sluice does not use."""
        date = email.utils.formatdate(usegmt=True)
        text = ("PUT" + "\n" * 12 + f"x-ms-date:{date}\nx-ms-version:2023-11-03\n"
                f"/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container")
        digest = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()
        send("PUT", f"{self.url}/{name}?restype=container", None,
             {"Content-Length": "0", "x-ms-date": date, "x-ms-version": "2023-11-03",
              "Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"})

    def set_md5(self, name, digest):
        """Of a blob that is there; Azure takes any."""
        send("PUT", f"{self.url}/models/{name}?comp=properties&{self.sas('models', rights='rw')}", b"",
             {"x-ms-version": "2023-11-03", "x-ms-blob-content-md5": base64.b64encode(digest).decode()})

    def sas(self, container, end="2999-01-01T00:00:00Z", rights="rl"):
        text = "\n".join([rights, "", end, f"/blob/{ACCOUNT}/{container}", "", "", "", "2023-11-03", "c"] + [""] * 7)
        digest = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()
        return f"sv=2023-11-03&sr=c&sp={rights}&se={end}&sig=" + urllib.parse.quote(base64.b64encode(digest).decode(), "")

    def env(self, key=KEY):
        return {"AZURE_STORAGE_CONNECTION_STRING": f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={key};"
                                                   f"BlobEndpoint={self.url};"}


def round_trip(h, base, env, model):
    """Written, refused, replaced, read back; planned and loaded by prefix and by name."""
    expected = digests(h, model)
    name = f"{base}/odd dir+%/a b.safetensors"
    convert(h, model, name, env=env).expect(0)
    convert(h, model, f"{base}/m/m.tensors", env=env).expect(0)
    for uri in (name, f"{base}/m/m.tensors"):
        assert digests(h, uri, env) == expected, uri
    convert(h, model, name, env=env).expect(2, "exists")
    convert(h, model, name, "--replace", env=env).expect(0)
    assert digests(h, name, env) == expected
    planned = h.sluice("plan", f"{base}/m/", "--to", h.fresh(), env=env).expect(0)
    assert "m.tensors" in planned.out, planned.out
    for uri in (f"{base}/m/", f"{base}/m/m.tensors"):
        to = h.fresh()
        h.load(uri, to, env=env).expect(0)
        assert digests(h, os.path.join(to, "m.tensors")) == expected
    h.load(f"{base}/nothing/", h.fresh(), env=env).expect(4, "check the prefix")
    h.load(f"{base}/nothing.bin", h.fresh(), env=env).expect(4)


@check("google", "cloud_model", smoke=True)
def cloud_google(h, google, model):
    """gs:// against fake-gcs-server: resumable uploads, generations, listing, CRC32C of whole objects required."""
    env = google.env()
    round_trip(h, "gs://models", env, model)
    to = h.fresh()
    h.load("gs://models/odd dir+%/", to, "--set", "sink.tmpfs.layout=verbatim", "--set", "verify.hashes=require",
           env=env).expect(0)
    bad = os.path.join(h.directory("cloud"), "bad.json")
    with open(bad, "w", encoding="utf-8") as file:
        json.dump({"type": "service_account", "client_email": "a@b", "private_key_id": "k", "private_key": "hush"}, file)
    refused = h.load("gs://models/m/", h.fresh(), env=dict(env, GOOGLE_APPLICATION_CREDENTIALS=bad))
    refused.expect(3, "private_key")
    assert "hush" not in refused.err + refused.out


@check("azure", "cloud_model")
def cloud_azure(h, azure, model):
    """az:// against Azurite: a SAS from the account's key, blocks, ETags, listing, MD5; a wrong key and a wrong SAS refused."""
    env = azure.env()
    round_trip(h, "az://models", env, model)
    name, verbatim = "one/model.safetensors", ("--set", "sink.tmpfs.layout=verbatim")
    convert(h, model, f"az://models/{name}", env=env).expect(0)
    to, required = h.fresh(), (*verbatim, "--set", "verify.hashes=require")
    h.load(f"az://models/{name}", to, *verbatim, env=env).expect(0)
    with open(os.path.join(to, "model.safetensors"), "rb") as file:
        azure.set_md5(name, hashlib.md5(file.read(), usedforsecurity=False).digest())
    for uri in (f"az://models/{name}", "az://models/one/"):
        h.load(uri, h.fresh(), *required, env=env).expect(0)
    azure.set_md5(name, b"0123456789abcdef")
    for uri in (f"az://models/{name}", "az://models/one/"):
        h.load(uri, h.fresh(), *verbatim, env=env).expect(5, "its md5 is")
    wrong = base64.b64encode(b"wrong" * 8).decode()
    refused = h.load("az://models/m/", h.fresh(), env=azure.env(wrong))
    refused.expect(3, "the account key of AZURE_STORAGE_CONNECTION_STRING")
    assert wrong not in refused.err + refused.out
    bare = {"AZURE_STORAGE_ENDPOINT": azure.url}
    sas, to = azure.sas("models"), h.fresh()
    signature = sas[sas.index("sig=") + 4:][:20]
    for done in (h.sluice("plan", f"az://models/m/m.tensors?{sas}", "--to", to, env=bare),
                 h.sluice("load", f"az://models/m/m.tensors?{sas}", "--to", to, "--log-level", "trace", env=bare)):
        done.expect(0)
        assert signature not in done.out + done.err, "a signature is shown"
    for parent, _, names in os.walk(to):
        for name in names:
            with open(os.path.join(parent, name), "rb") as file:
                assert signature.encode() not in file.read(), f"a signature lies in {name}"
    h.sluice("plan", f"az://models/m/?{azure.sas('others')}", "--to", to, env=bare).expect(3, "the SAS of the URI")
    refused = h.load("az://models/m/m.tensors?sv=2023-11-03&sr=c&sp=r&sig=hush", h.fresh(), env=bare)
    refused.expect(3, "the SAS of the URI")
    assert "hush" not in refused.err + refused.out
