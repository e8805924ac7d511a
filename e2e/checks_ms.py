"""Repositories of ModelScope: what sluice loads is what the hub's own client loads, and its token stays with the hub."""
import os

from checks_hf import COPIES, client, files_of, hashes, python_with
from harness import check, fixture, pinned
from ms_hub import Hub

ROOMS = ("storage/hf", "storage/ms")
PACKAGES = ("modelscope-hub",)
SNAPSHOT = """
import sys
from modelscope_hub.compat.snapshot_download import snapshot_download
snapshot_download("org/name", revision=sys.argv[1] or None, local_dir=sys.argv[2], token=sys.argv[3] or None)
"""


@fixture("ms_hub")
def ms_hub(_):
    server = Hub()
    server.put("org/name", {**files_of(1), **COPIES, ".gitattributes": (b"*.bin lfs", False)})
    return server


@fixture("ms_python", expensive=True)
def ms_python(_):
    """A Python with the hub's own client."""
    return python_with("ms-venv", "modelscope_hub", PACKAGES)


def fresh(server):
    """As it was before any check."""
    server.token, server.requests, server.oldest = None, [], 0
    assert not server.leaked, f"a token went to another host: {server.leaked}"


def env_of(server, **more):
    return {"MODELSCOPE_ENDPOINT": server.url, "HOME": "/nonexistent", **more}


@check("ms_hub", "ms_python")
def modelscope_loads_what_the_client_loads(h, hub, python):
    """The same files and bytes; a branch and a tag; with a token, which the client's cookie and header carry, too."""
    fresh(hub)
    hub.put("org/name", files_of(7), "v1.0")
    for revision, token in (("", ""), ("master", "ms-secret"), ("v1.0", "")):
        hub.token = token or None
        theirs, to = h.fresh("theirs"), h.fresh()
        client(python, SNAPSHOT, revision, theirs, token, MODELSCOPE_ENDPOINT=hub.url)
        more = {"MODELSCOPE_API_TOKEN": token} if token else {}
        at = f"ms://org/name@{revision}" if revision else "modelscope://org/name"
        h.sluice("load", at, "--to", to, "--set", "source.include=[\"*\"]", env=env_of(hub, **more)).expect(0)
        wanted = {name: value for name, value in hashes(theirs).items()
                  if not name.startswith(".") and not name.endswith((".gitattributes", ".gitignore"))}
        assert hashes(to) == wanted, f"{revision}: {sorted(hashes(to))} is not {sorted(wanted)}"
    fresh(hub)


@check("ms_hub")
def modelscope_refuses_and_keeps_its_token(h, hub):
    """Weights once; a private repository says what to do; no token in any output; a changed file is not published; links expire."""
    fresh(hub)
    to = h.fresh()
    h.sluice("load", "ms://org/name", "--to", to, *pinned(), env=env_of(hub)).expect(0)
    assert sorted(hashes(to)) == sorted(files_of(1))
    requests = len(hub.requests)
    h.sluice("load", "ms://org/name", "--to", to, *pinned(), env=env_of(hub)).expect(0)
    assert len(hub.requests) == requests + 1, f"what is there was loaded again: {hub.requests[requests:]}"
    hub.token = "ms-verysecret"
    h.sluice("load", "ms://org/name", "--to", h.fresh(), env=env_of(hub)).expect(4, "MODELSCOPE_API_TOKEN")
    hub.oldest = hub.links + 2
    done = h.sluice("load", "ms://org/name", "--to", h.fresh(), *pinned("--log-level", "trace"), env=env_of(hub, MODELSCOPE_API_TOKEN=hub.token))
    done.expect(0)
    for secret in ("verysecret", "s3cret"):
        assert secret not in done.out + done.err, f"{secret} was told"
    fresh(hub)
    for path in ("model.safetensors", "README.md"):
        hub.put("org/wrong", files_of(3))
        file = hub.repos["org/wrong"]["master"][path]
        file.data = file.data[:-1] + bytes([file.data[-1] ^ 1])
        to = h.fresh()
        h.sluice("load", "ms://org/wrong", "--to", to, env=env_of(hub)).expect(5)
        assert not os.path.exists(os.path.join(to, ".sluice", "ready"))
