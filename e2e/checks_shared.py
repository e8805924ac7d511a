"""What sharing costs and who keeps what: the control group's bill, clients that are killed at any moment, evictions."""
import hashlib
import json
import os
import signal
import subprocess
import sys

from checks_pool import (MODEL_BYTES, ROOT, SMALL_BYTES, GatedServer, Pool, User, library_of, memfds, need_memory, own_memory, right_bytes)
from checks_serve import Node, model
from containers import ControlGroup
from harness import check, wait_for

ROOMS = ("node/pool", "node/pool_server", "node/node", "core/sink")
CLIENTS = 16
GROUP_BYTES = 512 << 20
EACH_BYTES = 40 << 20  # of a Python that attaches
DEATHS = 150
LEAK_BYTES = 8 << 20
ROUNDS = 20


def shared_in(group):
    """Bytes of shared memory that the kernel charges to a group."""
    lines = dict(line.split() for line in group.read("memory.stat").splitlines())
    return int(lines.get("total_shmem", lines.get("shmem", 0)))


@check()
def a_control_group_pays_once_for_sixteen_processes(h):
    """The daemon and sixteen clients in one control group, whose limit is less than two copies of the model: nobody is
    killed, and the kernel charges one copy of shared memory."""
    limit = str(GROUP_BYTES * 3 // 2 + CLIENTS * EACH_BYTES)
    server, node = GatedServer(GROUP_BYTES), Node(h)
    server.gate.set()
    path = os.path.join(node.place, "pool.sock")
    node.configure(f"pool: {{socket: {path}}}\n" + model("m", server.url) + "sink: {pool: {}}\n",
                   budget=f"{GROUP_BYTES * 2 >> 20}MiB")
    with ControlGroup("memory", {1: {"memory.limit_in_bytes": limit}, 2: {"memory.max": limit}}) as group:
        inside = ["bash", "-c", f'echo 0 >"{group.path}/cgroup.procs"; exec "$0" "$@"']
        before = shared_in(group)
        node.start([*inside, h.program, "serve", node.config])
        users = [User(h, path, number, inside) for number in range(CLIENTS)]
        assert [user.hear() for user in users] == ["attached"] * CLIENTS
        node.await_state("m")
        for user in users:
            user.tell("hash")
        assert [user.hear() for user in users] == server.digests, "wrong bytes"
        charged, used = shared_in(group) - before, group.used()
        assert GROUP_BYTES <= charged < 1.05 * GROUP_BYTES, f"{charged} bytes of shared memory are charged"
        assert group.kills() == 0
        assert [user.end() for user in users] == [0] * CLIENTS
        assert node.end() == 0
    server.close()
    return (f"{GROUP_BYTES >> 20} MiB, {CLIENTS} clients: {charged / GROUP_BYTES:.3f} copies of shared memory are charged, "
            f"{used >> 20} MiB in all")


def descriptors(pool):
    return len(os.listdir(f"/proc/{pool.node.process.pid}/fd"))


def kill_clients(h, pool, seed):
    env = h.environment({"SLUICE_LIBRARY": library_of(h), "PYTHONPATH": os.path.join(ROOT, "python"),
                         "PYTHONDONTWRITEBYTECODE": "1"})
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pool_mortals.py")
    done = subprocess.run([sys.executable, script, pool.path, "m", str(DEATHS), str(seed)], env=env, capture_output=True,
                          text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@check()
def clients_that_are_killed_at_any_moment_leave_nothing(h):
    """SIGKILL at moments of chance, in mid-load and after it: each lease ends, descriptors and memory are as before, and
    another client is served all the time."""
    pool = Pool(h, SMALL_BYTES)
    user = User(h, pool.path)
    assert user.hear() == "attached"
    right_bytes(pool, [user])
    kill_clients(h, pool, 0)  # whatever the first ones make the daemon keep
    pool.await_leases(1)
    held, own, attached = descriptors(pool), own_memory(pool.node.process.pid), []
    for seed in (1, 2):
        attached.append(kill_clients(h, pool, seed))
        pool.await_leases(1)
        pool.server.gate.set()
        pool.node.await_state("m")
    wait_for(f"{held} descriptors, as before", lambda: descriptors(pool) <= held)
    grown = own_memory(pool.node.process.pid) - own
    assert grown < LEAK_BYTES, f"the daemon has {grown} bytes more"
    right_bytes(pool, [user])
    assert user.end() == 0
    pool.end()
    return f"{2 * DEATHS} killed, {sum(attached)} of them after an attach; {grown >> 10} KiB more memory"


@check()
def what_a_client_has_is_never_evicted(h):
    """A budget for two models of three: while a client has one, the other two take turns, and what does not fit beside it
    is refused with the names of those in the way."""
    server, node = GatedServer(SMALL_BYTES), Node(h)
    server.gate.set()
    path = os.path.join(node.place, "pool.sock")
    node.configure(f"pool: {{socket: {path}}}\n", budget=f"{(2 * SMALL_BYTES >> 20) + 1}MiB")
    node.start()

    def attach(name):
        return h.sluice("pool", "attach", name, "--socket", path, "--", "true")

    def define(name):
        own = server.url.replace("model", name)  # each has its own object
        assert node.ask("POST", "/v1/loads", model(name, own) + "sink: {pool: {}}\n")[0] == 202
        attach(name).expect(0)  # nothing is left to be tried again behind our back

    define("a")
    user = User(h, path, 3, name="a")
    assert user.hear() == "attached"
    define("b")
    define("c")
    right = server.digests[3]
    for _ in range(ROUNDS):
        for name in ("b", "c"):
            attach(name).expect(0)
            assert user.ask("hash") == right, "wrong bytes while others were evicted"
    states = {name: node.model(name) for name in ("a", "b", "c")}
    assert states["a"]["state"] == "ready" and len(states["a"]["versions"]) == 1, states["a"]
    other = User(h, path, 1, name="c")
    assert other.hear() == "attached"
    refused = attach("b")
    assert refused.code != 0 and "cannot be evicted" in refused.err and "'a'" in refused.err, refused.err
    assert node.ask("POST", "/v1/models/a/evict")[0] == 409
    assert user.ask("hash") == right and other.ask("hash") == server.digests[1]
    assert [user.end(), other.end()] == [0, 0]
    wait_for("room", lambda: attach("b").code == 0)
    found = node.get("/v1/models")[1]
    assert found["held_bytes"] <= found["budget_bytes"], found
    assert node.end() == 0
    server.close()
    return f"{2 * ROUNDS} loads beside it"


@check()
def one_version_is_one_copy_whatever_its_names(h):
    """Two names and a URI of one object, asked for at once and in mid-load: its bytes are sent once and are in memory once; a
    name that is evicted takes nothing from the others, and comes back without a byte."""
    need_memory(MODEL_BYTES)
    server, node = GatedServer(MODEL_BYTES), Node(h)
    path, below = os.path.join(node.place, "pool.sock"), server.url.rsplit("/", 1)[0]
    node.configure(f"pool: {{socket: {path}, uriPrefixes: [\"{below}/\"]}}\n", budget=f"{MODEL_BYTES * 3 // 2 >> 20}MiB")
    node.start()
    for name in ("a", "b"):
        assert node.ask("POST", "/v1/loads", model(name, server.url) + "sink: {pool: {}}\n")[0] == 202
    names = ("a", "b", server.url)
    users = [User(h, path, number, name=name) for number, name in enumerate(names)]
    assert [user.hear() for user in users] == ["attached"] * 3
    assert [user.ask("state") for user in users] == ["loading"] * 3
    server.gate.set()
    assert [user.ask("hash") for user in users] == server.digests[:3], "wrong bytes"
    for name in ("a", "b"):
        node.await_state(name)
    share, held = server.sent / MODEL_BYTES, sum(memfds(node.process.pid).values())
    found = node.get("/v1/models")[1]
    assert share < 1.02, f"{share:.3f} times the object was sent"
    assert held < 1.05 * MODEL_BYTES + (4 << 20), f"the daemon holds {held} bytes"
    assert found["held_bytes"] < 1.05 * MODEL_BYTES + (4 << 20), found["held_bytes"]
    assert sorted(map(len, (version["shared_with"] for one in found["models"] for version in one["versions"]))) == [2, 2, 2]
    assert users[0].end() == 0
    wait_for("the eviction of one name", lambda: node.ask("POST", "/v1/models/a/evict")[0] in (200, 202))
    wait_for("its end", lambda: not node.model("a").get("versions"))
    assert [user.ask("hash") for user in users[1:]] == server.digests[1:3], "wrong bytes"
    h.sluice("pool", "attach", "a", "--socket", path, "--", "true").expect(0)
    assert server.sent / MODEL_BYTES < 1.02, "the object was sent again"
    assert [user.end() for user in users[1:]] == [0, 0]
    assert node.end() == 0
    server.close()
    return f"{MODEL_BYTES >> 20} MiB, two names and a URI: {share:.3f} times from the source, {held / MODEL_BYTES:.3f} copies in memory"


def write_safetensors(path, tensors):
    """{name: bytes} as U8."""
    head, data = {}, b""
    for name, content in tensors.items():
        head[name] = {"dtype": "U8", "shape": [len(content)], "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(head).encode()
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + data)


READ_COMPONENTS = """
import hashlib, json, sys
import sluice
model = sluice.attach("pipe", socket=sys.argv[1])
print(json.dumps({name: hashlib.sha256(model[name].memoryview()).hexdigest() for name in model}))
"""


@check()
def components_of_a_pipeline_are_one_model(h):
    """A folder as diffusers keeps it, one component in shards, with tensors of one name in each: one model of the pool."""
    folder, node = h.directory("pipeline"), Node(h)
    parts = {"unet": "diffusion_pytorch_model.safetensors", "vae": "diffusion_pytorch_model.safetensors",
             "text_encoder": "model-00001-of-00002.safetensors"}
    wanted = {}
    for component, name in parts.items():
        content = os.urandom(100_000)
        write_safetensors(os.path.join(folder, component, name), {"conv_in.weight": content})
        wanted[f"{component}/conv_in.weight"] = hashlib.sha256(content).hexdigest()
    content = os.urandom(50_000)
    write_safetensors(os.path.join(folder, "text_encoder", "model-00002-of-00002.safetensors"), {"out.weight": content})
    wanted["text_encoder/out.weight"] = hashlib.sha256(content).hexdigest()
    with open(os.path.join(folder, "text_encoder", "model.safetensors.index.json"), "w") as file:
        json.dump({"weight_map": {"conv_in.weight": parts["text_encoder"],
                                  "out.weight": "model-00002-of-00002.safetensors"}}, file)
    with open(os.path.join(folder, "model_index.json"), "w") as file:
        json.dump({"_class_name": "StableDiffusionPipeline"}, file)
    path = os.path.join(node.place, "pool.sock")
    node.configure(f"pool: {{socket: {path}}}\n" + model("pipe", f"file://{folder}/")
                   + "tensors: {prefix: object}\nsink: {pool: {}}\n")
    node.start()
    node.await_state("pipe")
    env = h.environment({"SLUICE_LIBRARY": library_of(h), "PYTHONPATH": os.path.join(ROOT, "python"), "PYTHONDONTWRITEBYTECODE": "1"})
    done = subprocess.run([sys.executable, "-c", READ_COMPONENTS, path], env=env, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == wanted, done.stdout
    assert node.end() == 0
    return f"{len(wanted)} tensors of {len(parts)} components"


@check()
def clients_ask_for_uris_that_the_config_allows(h):
    """A URI below a prefix of the config is loaded once for two clients; others are refused with a sentence, and SIGHUP
    changes which."""
    server, node = GatedServer(SMALL_BYTES), Node(h)
    server.gate.set()
    path, below = os.path.join(node.place, "pool.sock"), server.url.rsplit("/", 1)[0]
    node.configure(f"pool: {{socket: {path}, uriPrefixes: [\"{below}/\"]}}\n")
    node.start()
    users = [User(h, path, number, name=server.url) for number in range(2)]
    assert [user.hear() for user in users] == ["attached"] * 2
    assert [user.ask("hash") for user in users] == server.digests[:2], "wrong bytes"
    assert node.get("/v1/loads")[1]["load_count"] == 1
    for uri in (below + "-other/model.safetensors", below + "/../x", "/etc/passwd", "file:///etc/passwd"):
        h.sluice("pool", "attach", uri, "--socket", path, "--", "true").expect(3 if ".." not in uri else 2, uri)
    node.configure(f"pool: {{socket: {path}}}\n")
    node.process.send_signal(signal.SIGHUP)
    wait_for("the new config", lambda: node.said("the config was read again"))
    h.sluice("pool", "attach", server.url, "--socket", path, "--", "true").expect(3, "pool.uriPrefixes")
    assert users[0].ask("hash") == server.digests[0] and [user.end() for user in users] == [0, 0]
    assert node.end() == 0
    server.close()
