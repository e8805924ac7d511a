"""What sharing costs and who keeps what: the control group's bill, clients that are killed at any moment, evictions."""
import os
import signal
import subprocess
import sys

from checks_pool import ROOT, SMALL_BYTES, GatedServer, Pool, User, library_of, own_memory, right_bytes
from checks_serve import Node, model
from containers import ControlGroup
from harness import check, wait_for

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
    for name in ("a", "b", "c"):
        assert node.ask("POST", "/v1/loads", model(name, server.url) + "sink: {pool: {}}\n")[0] == 202

    def attach(name):
        return h.sluice("pool", "attach", name, "--socket", path, "--", "true")

    attach("a").expect(0)
    user = User(h, path, 3, name="a")
    assert user.hear() == "attached"
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
