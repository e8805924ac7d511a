"""Mirrors of OCI registries: a real one beside a real origin, and strict ones for what goes wrong."""
import gzip
import json
import os
import random
import urllib.request

import oci_registry
from checks_oci import CONFIG, IMAGE_LAYER, NAMED, Gate, docker_config, expected, load, push, tar_of
from checks_hf import hashes
from harness import check, free_port, need_program, pinned, wait_for
from oci_registry import Registry

ROOMS = ("storage/oci", "storage/net")


def docker_mirror(h, origin):
    """Distribution's own server as a cache of another one."""
    program, port = need_program("docker-registry", "/usr/bin/docker-registry"), free_port()
    place = h.directory("oci-mirror")
    with open(os.path.join(place, "config.yml"), "w") as file:
        file.write(CONFIG.format(root=os.path.join(place, "data"), port=port) + f"proxy: {{remoteurl: 'http://{origin}'}}\n")
    h.serve("docker-mirror", [program, "serve", os.path.join(place, "config.yml")], port)
    return f"127.0.0.1:{port}"


def ranged(url, size):
    request = urllib.request.Request(url, headers={"Range": f"bytes=0-{size // 2}"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.read()
        return answer.status == 206


def through(*mirrors):
    return ("--json", "--progress", "none", "--set", f"source.oci.mirrors={','.join(mirrors)}")


@check("docker_registry")
def oci_mirror_is_a_real_cache(h, origin):
    """A pull-through cache sends what is checked; the origin says what the tag means; plan and doctor name both."""
    digest = push(origin, "org/mirrored", "v1", NAMED)
    mirror = docker_mirror(h, origin)
    for data in NAMED.values():  # what it has not got yet it sends whole, whatever range is asked for
        blob = f"http://{mirror}/v2/org/mirrored/blobs/{oci_registry.digest_of(data)}"
        wait_for("the cache has it", lambda blob=blob, data=data: ranged(blob, len(data)))
    for reference in (":v1", f"@{digest}"):
        to, done = load(h, f"oci://{origin}/org/mirrored{reference}", *through(mirror))
        done.expect(0)
        assert hashes(to) == expected(NAMED), reference
        assert done.json()["mirrored"] >= len(NAMED["model.safetensors"]), done.out
    to, done = load(h, f"oci://{origin}/org/mirrored:v1", *through("127.0.0.1:1", mirror))
    done.expect(0, "mirror '127.0.0.1:1' is not asked any more")
    assert done.json()["mirrored"] >= len(NAMED["model.safetensors"]), done.out
    shown = h.sluice("doctor", f"oci://{origin}/org/mirrored:v1", "--set", f"source.oci.mirrors={mirror}", env={"HOME": "/nonexistent"})
    assert f"http://{origin}" in shown.out and f"http://{mirror}" in shown.out, shown.out + shown.err
    planned = h.sluice("plan", f"oci://{origin}/org/mirrored:v1", "--set", f"source.oci.mirrors={mirror}", env={"HOME": "/nonexistent"})
    planned.expect(0)
    assert f"http://{mirror}" in planned.out, planned.out


def copy_of(server, mode="open", **more):
    other = Registry(mode, **more)
    other.blobs, other.manifests, other.tags = dict(server.blobs), dict(server.manifests), dict(server.tags)
    return other


@check()
def oci_mirror_that_lies_is_left(h):
    """Files, a packed layer and a checked one whose bytes at the mirror are wrong: read again from the registry, with one warning."""
    server = Registry("open", redirect=False)
    server.artifact("org/files", "v1", NAMED)
    tar = tar_of({f"models/{name}": data for name, data in NAMED.items()})
    for name, layer in (("tar", tar), ("gzip", gzip.compress(tar))):
        server.push(f"org/{name}", "v1", {"layers": [server.layer(layer, IMAGE_LAYER)]})
    for name in ("files", "tar", "gzip"):
        liar = copy_of(server, redirect=False)
        for digest, data in server.blobs.items():
            liar.blobs[digest] = data[:-1] + bytes([data[-1] ^ 1])
        to, done = load(h, f"oci://{server.host}/org/{name}:v1", *through(liar.host), "--set", "sink.tmpfs.layout=verbatim")
        done.expect(0)
        assert hashes(to) == expected(NAMED), name
        assert done.err.count(f"mirror '{liar.host}'") == 1, done.err
        assert any("/blobs/" in request for request in liar.requests), liar.requests
        liar.stop()
    server.stop()


@check()
def oci_mirror_has_its_own_login(h):
    """Registry and mirror each want a token for a login: neither sees the other's, and nobody's is shown."""
    server = Registry(login="somebody:0rigin")
    server.artifact("org/model", "v1", NAMED)
    mirror = copy_of(server, "token", login="other:m1rror")
    path = docker_config(h, server.host, username="somebody", password="0rigin")
    with open(path) as file:
        both = json.load(file)
    both["auths"][mirror.host] = {"username": "other", "password": "m1rror"}
    with open(path, "w") as file:
        json.dump(both, file)
    to, done = load(h, f"oci://{server.host}/org/model:v1", *through(mirror.host), "--set", f"source.oci.dockerConfig={path}", "--log-level", "debug")
    done.expect(0)
    assert hashes(to) == expected(NAMED) and done.json()["mirrored"] > 0, done.out
    assert server.given and mirror.given and not server.leaked and not mirror.leaked
    assert not any(secret in done.err + done.out for secret in ("0rigin", "m1rror", "t0ken-", "s3cret-")), done.err
    server.stop()
    mirror.stop()


@check()
def oci_mirror_may_go_between_two_loads(h):
    """kill -9 in mid-load from a mirror, which is gone afterwards: the next load keeps what had landed."""
    big = {"model.bin": random.Random(3).randbytes(24 << 20)}
    server = Registry("open", redirect=False)
    server.artifact("org/big", "v1", big)
    mirror, to = copy_of(server, redirect=False), h.fresh()
    gate = Gate(mirror, 14)
    more = ("--set", f"source.oci.mirrors={mirror.host}", "--set", "source.include=[\"*\"]", *pinned(connections=1))
    process = h.start("load", f"oci://{server.host}/org/big:v1", "--to", to, *more, env={"HOME": "/nonexistent"})
    assert gate.come.wait(60), "the load asked for fewer ranges"
    process.kill()
    process.wait()
    gate.open.set()
    mirror.stop()
    done = h.load(f"oci://{server.host}/org/big:v1", to, *more, env={"HOME": "/nonexistent"})
    done.expect(0, f"mirror '{mirror.host}' is not asked any more")
    assert json.loads(done.out)["resumed"] > 0, done.out
    assert hashes(to) == expected(big)
    server.stop()
