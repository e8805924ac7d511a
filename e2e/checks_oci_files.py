"""Files of OCI layers where they meet what else sluice does: sidecars beside them, and a daemon that knows one version by two names."""
import gzip
import json
import os
import random

import oci_registry
from checks_hf import hashes
from checks_oci import IMAGE_LAYER, NAMED, expected, tar_of, zstd
from checks_serve import Node, model
from harness import check, wait_for
from oci_registry import Registry

ROOMS = ("storage/oci", "core/packing", "node/node")
SIGNED_RANGE = 64 << 10
HOME = {"HOME": "/nonexistent"}
PACKS = {"plain": bytes, "gzip": lambda data: gzip.compress(data, 1), "zstd": zstd}


def noise(size, seed):
    return bytes(random.Random(seed).choices(range(64), k=size))


def signed(h, files):
    """These and their sidecars, by name."""
    place = h.directory(f"signed-{random.randrange(1 << 40)}")
    for name, data in files.items():
        with open(os.path.join(place, name), "wb") as file:
            file.write(data)
    h.sluice("sign", place + "/", "--range-bytes", "64KiB").expect(0)
    found = {}
    for name in os.listdir(place):
        with open(os.path.join(place, name), "rb") as file:
            found[name] = file.read()
    return found


def push(server, repo, files, pack):
    layer = pack(tar_of({f"models/{name}": data for name, data in files.items()}))
    return server.push(repo, "v1", {"layers": [server.layer(layer, IMAGE_LAYER)]})


def load(h, server, repo, *more):
    to = h.fresh()
    return to, h.load(f"oci://{server.host}/{repo}:v1", to, "--set", "source.include=[\"*\"]", "--set", "sink.tmpfs.layout=verbatim",
                      "--set", "source.oci.checkLayersUpTo=64KiB", *more, env=HOME)


def flip_once(server, offset):
    """The first answer about this byte of a blob brings another one."""
    ranged, state = oci_registry.ApiHandler.ranged, {"flipped": 0}

    def spoiled(handler, data, headers):
        first, _, last = (handler.headers.get("Range") or "bytes=0-0").split("=")[1].partition("-")
        if "/blobs/" in handler.path and int(first) <= offset <= int(last):
            with server.lock:
                state["flipped"] += 1
                if state["flipped"] == 1:
                    data = data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1:]
        return ranged(handler, data, headers)

    server.api.RequestHandlerClass = type("Spoiled", (oci_registry.ApiHandler,), {"ranged": spoiled})


@check()
def oci_sidecars_lie_in_layers(h):
    """A sidecar beside a file of a plain or packed tar: used, not published, and what it refuses is refused."""
    files = {"a.bin": noise(1 << 20, 1), "b.bin": noise(300000, 2)}
    whole = signed(h, files)
    assert sorted(whole) == ["a.bin", "a.bin.sluice.json", "b.bin", "b.bin.sluice.json"]
    wrong = {**whole, "a.bin": files["a.bin"][:500000] + b"!" + files["a.bin"][500001:]}
    for name, pack in PACKS.items():
        server = Registry("open", redirect=False)
        push(server, "m/right", whole, pack)
        push(server, "m/wrong", wrong, pack)
        to, done = load(h, server, "m/right", "--set", "verify.sidecar=require")
        done.expect(0)
        assert json.loads(done.out)["sidecars"] == 2, (name, done.out)
        assert hashes(to) == expected(files), name
        to, done = load(h, server, "m/wrong")
        done.expect(5, "a.bin", "458752")
        assert not os.path.exists(os.path.join(to, ".sluice", "ready")), name
        to, done = load(h, server, "m/wrong", "--set", "verify.sidecar=off")
        done.expect(0)
        assert sorted(hashes(to)) == sorted(whole), name
        server.stop()


@check()
def oci_ranges_of_layers_that_come_wrong_come_again(h):
    """A byte of a layer that changes on its way: its range alone is fetched once more."""
    files = {"a.bin": noise(4 << 20, 3)}
    server = Registry("open", redirect=False)
    push(server, "m/m", signed(h, files), bytes)
    flip_once(server, 2 << 20)
    to, done = load(h, server, "m/m", "--set", "readers.rangeBytes=1MiB", "--set", "readers.connections=1", "--set", "readers.hedge=off")
    done.expect(0)
    assert hashes(to) == expected(files)
    assert json.loads(done.out)["refetched_ranges"] == 1, done.out
    server.stop()


@check()
def oci_tag_and_digest_are_two_names(h):
    """A daemon that is asked for an artifact by its tag and by its digest: both are ready, and each says where it comes from."""
    server, node = Registry("open", redirect=False), Node(h)
    path = os.path.join(node.place, "pool.sock")
    digest = push(server, "m/car", NAMED, bytes)
    uris = {"tag": f"oci://{server.host}/m/car:v1", "digest": f"oci://{server.host}/m/car@{digest}"}
    node.configure(f"pool: {{socket: {path}}}\n", budget="64MiB")
    node.start(env=HOME)
    for name, uri in uris.items():
        assert node.ask("POST", "/v1/loads", model(name, uri) + "sink: {pool: {}}\n")[0] == 202
    for name in uris:
        wait_for(f"the end of {name}", lambda: node.model(name)["state"] in ("ready", "failed"), seconds=60)
    found = {one["name"]: one for one in node.get("/v1/models")[1]["models"]}
    assert {name: one["state"] for name, one in found.items()} == {"tag": "ready", "digest": "ready"}, found
    assert {name: one["uri"] for name, one in found.items()} == uris, found
    assert found["tag"]["bytes"] == found["digest"]["bytes"] > 0, found
    assert node.end() == 0
    server.stop()
