"""Models in OCI registries: a real one, and a strict one for what it does not look at."""
import base64
import bz2
import gzip
import hashlib
import io
import json
import os
import random
import struct
import subprocess
import tarfile
import threading
import time
import urllib.request

import oci_registry
from checks_hf import files_of, hashes
from harness import CACHE, Skip, check, fixture, free_port, need_program, pinned
from oci_registry import INDEX, OCI, RAW, TITLE, Registry

ROOMS = ("storage/oci", "core/packing")
CONFIG = "version: 0.1\nstorage: {{filesystem: {{rootdirectory: {root}}}}}\nhttp: {{addr: '127.0.0.1:{port}'}}\nlog: {{level: error}}\n"
GGUF = b"GGUF" + struct.pack("<IQQ", 3, 0, 0)
NAMED = {name: data for name, (data, _) in files_of(3).items() if data}


def start_registry(h, name, program):
    port, place = free_port(), h.directory(name)
    with open(os.path.join(place, "config.yml"), "w") as file:
        file.write(CONFIG.format(root=os.path.join(place, "data"), port=port))
    h.serve(name, [program, "serve", os.path.join(place, "config.yml")], port)
    return f"127.0.0.1:{port}"


@fixture("docker_registry")
def docker_registry(h):
    """Distribution's own server, version 2, as the system has it."""
    return start_registry(h, "docker-registry", need_program("docker-registry", "/usr/bin/docker-registry"))


@fixture("distribution")
def distribution(h):
    """The same, version 3. It takes minutes to build, so it is built by hand."""
    program = os.path.join(CACHE, "bin", "registry")
    if not os.access(program, os.X_OK):
        raise Skip("no registry of distribution 3: docs/development.md says how to build it")
    return start_registry(h, "distribution", program)


def send(method, url, data, media="application/octet-stream"):
    request = urllib.request.Request(url, method=method, data=data, headers={"Content-Type": media})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.headers


def upload(host, repo, data):
    digest = oci_registry.digest_of(data)
    place = send("POST", f"http://{host}/v2/{repo}/blobs/uploads/", b"")["Location"]
    send("PUT", f"{place}{'&' if '?' in place else '?'}digest={digest}", data)
    return digest


def push(host, repo, tag, files):
    layers = [{"mediaType": RAW, "digest": upload(host, repo, data), "size": len(data), "annotations": {TITLE: name}}
              for name, data in files.items()]
    config = {"mediaType": "application/vnd.oci.empty.v1+json", "digest": upload(host, repo, b"{}"), "size": 2}
    text = json.dumps({"schemaVersion": 2, "mediaType": OCI, "config": config, "layers": layers}).encode()
    send("PUT", f"http://{host}/v2/{repo}/manifests/{tag}", text, OCI)
    return oci_registry.digest_of(text)


IMAGE_LAYER = "application/vnd.oci.image.layer.v1.tar"


def tar_of(files, tar_format=tarfile.PAX_FORMAT):
    """{name: bytes, a link's target, None for a folder}."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tar_format) as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.type = tarfile.REGTYPE if isinstance(data, bytes) else tarfile.SYMTYPE if data else tarfile.DIRTYPE
            entry.size = len(data) if isinstance(data, bytes) else 0
            entry.linkname = data if isinstance(data, str) else ""
            tar.addfile(entry, io.BytesIO(data) if isinstance(data, bytes) else None)
    return out.getvalue()


def push_image(host, repo, tag, layers, media=IMAGE_LAYER):
    """An image of these tars, as `docker buildx` pushes it without compression."""
    found = [{"mediaType": media, "digest": upload(host, repo, data), "size": len(data)} for data in layers]
    config = json.dumps({"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": [layer["digest"] for layer in found]}}).encode()
    text = json.dumps({"schemaVersion": 2, "mediaType": OCI, "layers": found,
                       "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": upload(host, repo, config), "size": len(config)}}).encode()
    send("PUT", f"http://{host}/v2/{repo}/manifests/{tag}", text, OCI)
    return oci_registry.digest_of(text)


def expected(files):
    return {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}


def load(h, uri, *more, **env):
    to = h.fresh()
    done = h.sluice("load", uri, "--to", to, "--set", "source.include=[\"*\"]", *more, env={"HOME": "/nonexistent", **env})
    return to, done


def docker_config(h, host, **entry):
    path = os.path.join(h.directory("login"), f"config-{random.randrange(1 << 40)}.json")
    with open(path, "w") as file:
        json.dump({"auths": {f"https://{host}/v1/": entry}}, file)
    return path


@check("docker_registry", smoke=True)
def oci_loads_from_a_registry(h, host):
    """By tag, by digest, one file alone; the manifest names each blob."""
    digest = push(host, "org/model", "v1", NAMED)
    for reference in (":v1", f"@{digest}", f":v1@{digest}"):
        to, done = load(h, f"oci://{host}/org/model{reference}")
        done.expect(0)
        assert hashes(to) == expected(NAMED), reference
        with open(os.path.join(to, ".sluice", "manifest.json")) as file:
            assert oci_registry.digest_of(NAMED["model.safetensors"]) in file.read()
    to, done = load(h, f"oci://{host}/org/model:v1/model.safetensors")
    done.expect(0)
    assert list(hashes(to)) == ["model.safetensors"]
    h.sluice("load", f"oci://{host}/org/none:v1", "--to", h.fresh(), env={"HOME": "/nonexistent"}).expect(4, "org/none", "v1")
    h.sluice("load", f"oci://{host}/org/model:v2", "--to", h.fresh(), env={"HOME": "/nonexistent"}).expect(4, "'v2'")


@check("docker_registry")
def oci_modelcars_are_read_by_ranges(h, host):
    """Layers that are tars: files lie where KServe has them, later layers over earlier ones, small layers checked, large ones without a second copy."""
    big = random.Random(7).randbytes(40 << 20)
    base = tar_of({"bin/sh": b"x" * 5000, "models/": None, "models/config.json": b"old", "models/gone.bin": b"gone"})
    own = tar_of({f"models/{name}": data for name, data in NAMED.items()} | {"models/.wh.gone.bin": b"", "models/latest.bin": "model.safetensors"})
    large = tar_of({"models/" + "deep/" * 30 + "big.bin": big}, tarfile.GNU_FORMAT)
    digest = push_image(host, "org/car", "v1", [base, own, large])
    wanted = expected({**NAMED, "latest.bin": NAMED["model.safetensors"], "deep/" * 30 + "big.bin": big})
    for reference in (":v1", f"@{digest}"):
        to, done = load(h, f"oci://{host}/org/car{reference}", "--set", "sink.tmpfs.layout=verbatim")
        done.expect(0)
        assert hashes(to) == wanted, reference
    to, done = load(h, f"oci://{host}/org/car:v1/model.safetensors")
    done.expect(0)
    assert list(hashes(to)) == ["model.safetensors"]
    load(h, f"oci://{host}/org/car:v1", "--set", "verify.hashes=require")[1].expect(5, "without a hash")
    checked = ("--set", "verify.hashes=require", "--set", "source.oci.checkLayersUpTo=1GiB", "--set", "sink.tmpfs.layout=verbatim")
    to, done = load(h, f"oci://{host}/org/car:v1", *checked)
    done.expect(0)
    assert hashes(to) == wanted
    load(h, f"oci://{host}/org/car:v1", "--set", "source.oci.imageFolder=opt")[1].expect(4, "source.oci.imageFolder")
    to, done = load(h, f"oci://{host}/org/car:v1/sh", "--set", "source.oci.imageFolder=/bin")
    done.expect(0)
    push_image(host, "org/pack", "v1", [tar_of({"sub/w.bin": b"w" * 9000}), tar_of({"config.json": b"{}"})], "application/vnd.cncf.model.weight.v1.tar")
    to, done = load(h, f"oci://{host}/org/pack:v1", "--set", "sink.tmpfs.layout=verbatim")
    done.expect(0)
    assert sorted(hashes(to)) == ["config.json", "sub/w.bin"]


def zstd(data):
    return subprocess.run([need_program("zstd", "/usr/bin/zstd"), "-q", "-c"], input=data, stdout=subprocess.PIPE, check=True).stdout


@check("docker_registry")
def oci_packed_modelcars_are_unpacked(h, host):
    """Layers by gzip and zstd, as most builders make them: the same files, every one with its hash, over a base image."""
    big = bytes(random.Random(7).choices(range(64), k=1 << 20)) * 48
    base = tar_of({"bin/sh": b"x" * 5000, "models/": None, "models/gone.bin": b"gone"})
    own = tar_of({f"models/{name}": data for name, data in NAMED.items()} | {"models/.wh.gone.bin": b"", "models/latest.bin": "model.safetensors", "models/big.bin": big})
    wanted = expected({**NAMED, "latest.bin": NAMED["model.safetensors"], "big.bin": big})
    more = ("--set", "verify.hashes=require", "--set", "sink.tmpfs.layout=verbatim")
    for name, pack in (("gzip", gzip.compress), ("zstd", zstd)):
        push_image(host, f"org/{name}", "v1", [gzip.compress(base), pack(own)], f"{IMAGE_LAYER}+{name}")
        to, done = load(h, f"oci://{host}/org/{name}:v1", *more)
        done.expect(0)
        assert hashes(to) == wanted and f"is packed by {name}" in done.err, (name, done.err)
        again = h.sluice("load", f"oci://{host}/org/{name}:v1", "--to", to, "--set", "source.include=[\"*\"]", *more, env={"HOME": "/nonexistent"})
        again.expect(0, "already")
        shown = h.sluice("plan", f"oci://{host}/org/{name}:v1", env={"HOME": "/nonexistent"})
        shown.expect(0)
        assert f"is packed by {name}" in shown.err, shown.err


@check("distribution")
def oci_loads_from_distribution(h, host):
    """The same from version 3 of the registry: files, layers read by ranges, packed layers."""
    for one in (oci_loads_from_a_registry, oci_modelcars_are_read_by_ranges, oci_packed_modelcars_are_unpacked):
        one(h, host)


@fixture("cosign")
def cosign(h):
    """Who signs with the reference: a function, and where its keys lie. It takes long to build, so it is built by hand."""
    program = os.path.join(CACHE, "bin", "cosign")
    if not os.access(program, os.X_OK):
        raise Skip("no cosign: docs/development.md says how to build it")
    place = h.directory("cosign")

    def run(*args):
        done = subprocess.run([program, *args], cwd=place, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600,
                              env={"PATH": os.environ["PATH"], "HOME": place, "COSIGN_PASSWORD": ""}, check=False)
        assert done.returncode == 0, done.stdout.decode()

    for name in ("mine", "other"):
        run("generate-key-pair", "--output-key-prefix", name)
    return run, place


def get(host, path, media=OCI):
    request = urllib.request.Request(f"http://{host}/v2/{path}", headers={"Accept": media})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.read()


def copy_signed(host, repo, digest):
    """To a registry with referrers: the artifact, and what is in the index that stands for them."""
    server = Registry("token")
    server.referrers = True
    entries = json.loads(get(host, f"{repo}/manifests/{digest.replace(':', '-')}", INDEX))["manifests"]
    for tag, reference in (("v1", digest), *((f"s{i}", entry["digest"]) for i, entry in enumerate(entries))):
        document = json.loads(get(host, f"{repo}/manifests/{reference}"))
        for layer in document["layers"]:
            server.blob(get(host, f"{repo}/blobs/{layer['digest']}"))
        text = get(host, f"{repo}/manifests/{reference}")
        server.manifests[repo, reference], server.tags[repo, tag] = (text, OCI), reference
    return server


@check("docker_registry", "cosign")
def oci_signatures_of_cosign_are_believed(h, host, cosign):
    """By a key: bundles, where a tag or the referrers name them, and what versions before 3 left at another tag. Nothing else is loaded."""
    sign, place = cosign
    mine, other = (("--set", f"verify.modelSigning.publicKeyFile={place}/{name}.pub") for name in ("mine", "other"))
    for name, more in (("bundle", ()), ("simple", ("--new-bundle-format=false",))):
        repo = f"org/{name}"
        uri, digest = f"oci://{host}/{repo}:v1", push(host, repo, "v1", NAMED)
        load(h, uri, *mine)[1].expect(5, "is not signed")
        sign("sign", "--key", "mine.key", "--tlog-upload=false", "--use-signing-config=false", "--yes", *more, f"{host}/{repo}@{digest}")
        to, done = load(h, uri, *mine)
        done.expect(0)
        assert hashes(to) == expected(NAMED) and "signed by key" in done.err, done.err
        verified = h.sluice("verify", uri, "--set", "source.include=[\"*\"]", *mine, env={"HOME": "/nonexistent"}).expect(0, "signed   by      key ")
        assert " 0 wrong" in verified.out, verified.out
        load(h, uri, *other)[1].expect(5, "not one that is asked for")
        if name == "bundle":
            server = copy_signed(host, repo, digest)
            to, done = load(h, f"oci://{server.host}/{repo}:v1", *mine)
            done.expect(0)
            assert hashes(to) == expected(NAMED)
            server.stop()
        push(host, repo, "v1", {**NAMED, "more.json": b"{}"})
        load(h, uri, *mine)[1].expect(5, "is not signed")


class Gate:
    """The blob request of this number is not answered; whoever waits for it is told."""

    def __init__(self, server, number):
        self.come, self.open, seen, asked = threading.Event(), threading.Event(), [], oci_registry.ApiHandler.do_GET

        def hold(handler):
            if "/blobs/" in handler.path:
                with server.lock:
                    seen.append(handler.path)
                    held = len(seen) == number
                if held:
                    self.come.set()
                    self.open.wait(60)
            asked(handler)

        server.api.RequestHandlerClass = type("Held", (oci_registry.ApiHandler,), {"do_GET": hold})


@check(smoke=True)
def oci_layers_go_on_after_a_kill(h):
    """kill -9 in mid-load of a plain tar and of a packed one: the next load keeps what had landed, and all is right."""
    big = bytes(random.Random(9).choices(range(200), k=1 << 20)) * 24
    tar = tar_of({"models/big.bin": big})
    more = ("--set", "source.oci.checkLayersUpTo=1MiB", "--set", "source.include=[\"*\"]", "--set", "sink.tmpfs.layout=verbatim",
            *pinned(connections=1))
    for name, layer in (("plain", tar), ("gzip", gzip.compress(tar, 1))):
        server = Registry("open", redirect=False)
        server.push("m/car", "v1", {"layers": [server.layer(layer, IMAGE_LAYER)]})
        gate, to = Gate(server, 14), h.fresh()
        process = h.start("load", f"oci://{server.host}/m/car:v1", "--to", to, *more, env={"HOME": "/nonexistent"})
        assert gate.come.wait(60), f"{name}: the load asked for fewer ranges"
        process.kill()
        process.wait()
        gate.open.set()
        done = h.load(f"oci://{server.host}/m/car:v1", to, *more, env={"HOME": "/nonexistent"})
        done.expect(0)
        assert json.loads(done.out)["resumed"] > 0, (name, done.out)
        assert hashes(to) == expected({"big.bin": big}), name
        server.stop()


@check()
def oci_registries_without_ranges_are_read_in_order(h):
    """A registry that answers 200 to every range: layers that are files, and one that is a tar."""
    server = Registry("open", redirect=False)
    server.ranges = False
    big = {"a.bin": random.Random(5).randbytes(9 << 20), "b.bin": random.Random(6).randbytes(9 << 20)}
    server.artifact("org/files", "v1", big)
    server.push("org/car", "v1", {"layers": [server.layer(tar_of({f"models/{name}": data for name, data in big.items()}), IMAGE_LAYER)]})
    for name in ("files", "car"):
        to, done = load(h, f"oci://{server.host}/org/{name}:v1", "--set", "sink.tmpfs.layout=verbatim", "--json")
        done.expect(0)
        assert hashes(to) == expected(big) and "whole files where ranges are asked for" in done.err, done.err
        assert done.json()["connections_why"] == "in-order", done.out
    server.stop()


@check()
def oci_hostile_layers_are_refused(h):
    """Names that climb out, links to nowhere, tars that are cut off, and bytes that are not the layer's: nothing is published."""
    server = Registry("open")
    for name, files, says in (("climb", {"models/../../etc/x": b"x"}, "leads out of the archive"), ("link", {"models/a": "/etc/passwd"}, "leads to no file"),
                              ("none", {"etc/x": b"x"}, "source.oci.imageFolder")):
        server.push(f"m/{name}", "v1", {"layers": [server.layer(tar_of(files), IMAGE_LAYER)]})
        to, done = load(h, f"oci://{server.host}/m/{name}:v1")
        assert done.code in (4, 10) and says in done.err, done.err
        assert not os.path.exists(os.path.join(to, ".sluice", "ready")), name
    whole = tar_of({"models/a.bin": b"a" * 3000}).rstrip(b"\0")
    server.push("m/cut", "v1", {"layers": [server.layer(whole[:2500], IMAGE_LAYER)]})
    load(h, f"oci://{server.host}/m/cut:v1")[1].expect(10, "cut off")
    layer = server.layer(tar_of({"models/a.bin": b"a" * 3000}), IMAGE_LAYER)
    server.push("m/wrong", "v1", {"layers": [layer]})
    server.blobs[layer["digest"]] = tar_of({"models/a.bin": b"b" * 3000})
    load(h, f"oci://{server.host}/m/wrong:v1")[1].expect(5, "its bytes are sha256:")
    server.stop()


@check()
def oci_tokens_stay_with_the_registry(h):
    """A token is asked for by what the registry's challenge says, with the login of a file; blobs lie elsewhere and get none of it."""
    server = Registry(login="somebody:pass:w0rd")
    server.artifact("org/model", "latest", NAMED)
    uri = f"oci://{server.host}/org/model"
    load(h, uri)[1].expect(3, "source.oci.dockerConfig")
    good = docker_config(h, server.host, auth=base64.b64encode(b"somebody:pass:w0rd").decode())
    to, done = load(h, uri, "--set", f"source.oci.dockerConfig={good}", *pinned("--log-level", "debug"))
    done.expect(0)
    assert hashes(to) == expected(NAMED) and server.links == len(NAMED), server.requests
    to, done = load(h, uri, DOCKER_CONFIG="/nonexistent", REGISTRY_AUTH_FILE=docker_config(h, server.host, username="somebody", password="pass:w0rd"))
    done.expect(0)
    wrong = load(h, uri, "--set", f"source.oci.dockerConfig={docker_config(h, server.host, username='x', password='wr0ng')}")[1]
    wrong.expect(3, "log in again")
    load(h, uri, "--set", "source.oci.dockerConfig=/nonexistent")[1].expect(4, "source.oci.dockerConfig", "/nonexistent")
    helper = os.path.join(h.directory("login"), "helper.json")
    with open(helper, "w") as file:
        json.dump({"credsStore": "desktop"}, file)
    load(h, uri, REGISTRY_AUTH_FILE=helper)[1].expect(3)
    programs = h.directory("programs")
    with open(os.path.join(programs, "docker-credential-desktop"), "w") as file:
        file.write('#!/bin/sh\nread host\n[ "$host" = "%s" ] && echo \'{"Username": "somebody", "Secret": "pass:w0rd"}\'\n' % server.host)
        os.fchmod(file.fileno(), 0o755)
    path = {"PATH": f"{programs}:{os.environ['PATH']}", "REGISTRY_AUTH_FILE": helper}
    load(h, uri, **path)[1].expect(3, "source.oci.credentialHelpers")
    to, kept = load(h, uri, "--set", "source.oci.credentialHelpers=true", "--log-level", "debug", **path)
    kept.expect(0)
    assert hashes(to) == expected(NAMED)
    server.identity = "identity-t0ken"
    load(h, uri, "--set", f"source.oci.dockerConfig={docker_config(h, server.host, identitytoken='identity-t0ken')}")[1].expect(0)
    assert any(line.startswith("POST /token") for line in server.requests)
    for run in (done, wrong, kept):
        for secret in ("pass:w0rd", "wr0ng", "t0ken-", "s3cret", base64.b64encode(b"somebody:pass:w0rd").decode()):
            assert secret not in run.out + run.err, f"{secret} is shown"
    assert not server.leaked, server.leaked
    server.stop()


@check()
def oci_asks_for_logins_as_registries_do(h):
    """Basic instead of tokens; nothing at all where none is wanted."""
    for mode, login, redirect in (("basic", "u:p", True), ("open", None, False), ("token", None, True)):
        server = Registry(mode, login, redirect)
        server.artifact("a/b/c", "x", NAMED)
        more = ("--set", f"source.oci.dockerConfig={docker_config(h, server.host, username='u', password='p')}") if login else ()
        to, done = load(h, f"oci://{server.host}/a/b/c:x", *more)
        done.expect(0)
        assert hashes(to) == expected(NAMED), mode
        assert not server.leaked
        if mode == "basic":
            load(h, f"oci://{server.host}/a/b/c:x")[1].expect(3, "a user and a password")
        server.stop()


@check()
def oci_names_come_from_every_packer(h):
    """ModelPack, Docker Model Runner, Ollama, an index of platforms; packed archives are refused with a sentence."""
    server = Registry("open")
    server.artifact("m/pack", "v1", {"sub/weights.bin": b"w" * 1000, "config.json": b"{}"}, "org.cncf.model.filepath")
    ai, ollama = "application/vnd.docker.ai.", "application/vnd.ollama.image."
    server.push("ai/one", "v1", {"layers": [server.layer(GGUF, ai + "gguf.v3"), server.layer(b"free", ai + "license")]})
    server.push("ai/two", "v1", {"layers": [server.layer(GGUF, ai + "gguf.v3"), server.layer(GGUF, ai + "gguf.v3")]})
    server.push("library/o", "7b", {"layers": [server.layer(GGUF, ollama + "model"), server.layer(b"{}", ollama + "params")]},
                oci_registry.DOCKER)
    digest = server.tags["m/pack", "v1"]
    server.push("m/index", "v1", {"manifests": [
        {"mediaType": OCI, "digest": "sha256:" + "0" * 64, "size": 1, "platform": {"os": "unknown", "architecture": "unknown"}},
        {"mediaType": OCI, "digest": digest, "size": 1}]}, INDEX)
    server.manifests["m/index", digest] = server.manifests["m/pack", digest]
    wanted = {"m/pack:v1": ["config.json", "sub/weights.bin"], "ai/one:v1": ["LICENSE", "model.gguf"],
              "ai/two:v1": ["model-00001-of-00002.gguf", "model-00002-of-00002.gguf"],
              "library/o:7b": ["model.gguf", "params.json"], "m/index:v1": ["config.json", "sub/weights.bin"]}
    for name, names in wanted.items():
        to, done = load(h, f"oci://{server.host}/{name}", "--set", "sink.tmpfs.layout=verbatim")
        done.expect(0)
        assert sorted(hashes(to)) == names, name
    server.push("m/car", "v1", {"layers": [server.layer(bz2.compress(b"tar"), "application/vnd.oci.image.layer.v1.tar+bzip2")]})
    load(h, f"oci://{server.host}/m/car:v1")[1].expect(10, "packed by bzip2", "force-compression=true", "one by one")
    server.push("m/oras", "v1", {"layers": [server.layer(b"{}", IMAGE_LAYER, **{oci_registry.TITLE: "config.json"})]})
    to, done = load(h, f"oci://{server.host}/m/oras:v1")
    done.expect(0)
    assert list(hashes(to)) == ["config.json"], "a file as oras push calls it by default"
    server.push("m/signed", "v1", {"layers": [server.layer(b"{}", "application/vnd.dev.cosign.simplesigning.v1+json")]})
    load(h, f"oci://{server.host}/m/signed:v1")[1].expect(10, "none of its 1 layers")
    server.artifact("m/evil", "v1", {"../../etc/passwd": b"x"})
    assert load(h, f"oci://{server.host}/m/evil:v1")[1].code in (5, 10)
    server.stop()


@check()
def oci_wrong_bytes_are_refused(h):
    """A manifest or a blob that is not what its digest says; a registry that refuses, slowly or for good."""
    server = Registry("open")
    digest = server.artifact("org/model", "v1", NAMED)
    uri = f"oci://{server.host}/org/model:v1"
    server.refuse = [(429, {"Retry-After": "1"}, b""), (503, {}, b""), (500, {}, b"")]
    to, done = load(h, uri)
    done.expect(0)
    assert hashes(to) == expected(NAMED)
    weights = oci_registry.digest_of(NAMED["model.safetensors"])
    right, server.blobs[weights] = server.blobs[weights], NAMED["model.safetensors"][:-1] + b"!"
    to, done = load(h, uri)
    done.expect(5)
    assert not os.path.exists(os.path.join(to, ".sluice", "ready")), "wrong bytes were published"
    server.blobs[weights] = right
    text, media = server.manifests["org/model", digest]
    server.manifests["org/model", digest] = (text + b" ", media)
    load(h, uri)[1].expect(5, "its manifest is sha256:")
    server.manifests["org/model", digest] = (text, media)
    del server.blobs[weights]
    load(h, uri)[1].expect(4, "has lost a file")
    server.stop()


@check()
def oci_links_and_tokens_are_renewed(h):
    """Both expire at once in the middle of a load: the token by its own clock, the links before their time."""
    server = Registry()
    server.lifetime = 1
    big = {"model.bin": random.Random(5).randbytes(24 << 20)}
    server.artifact("org/big", "v1", big)
    asked, seen = oci_registry.CdnHandler.do_GET, []

    def expire(handler):
        with server.lock:  # the others wait, too
            seen.append(handler.path)
            if len(seen) == 3:
                time.sleep(1.2)
                server.oldest_token, server.oldest_link = server.given + 1, server.links + 1
        asked(handler)

    server.cdn.RequestHandlerClass = type("Expiring", (oci_registry.CdnHandler,), {"do_GET": expire})
    to, done = load(h, f"oci://{server.host}/org/big:v1", *pinned(range_bytes=2 << 20))
    done.expect(0)
    assert hashes(to) == expected(big)
    assert server.links > 1 and server.given > 1 and not server.leaked, (server.links, server.given, seen[:5], server.requests)
    server.stop()
