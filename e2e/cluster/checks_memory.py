"""Who pays for a node's models, and whom a kill for want of memory hits: read from the control groups that the kubelet made.

The same with version 1 and version 2 of control groups; e2e/cluster/run-cgroup2 has the second where a machine has the first.
"""
import glob
import os

from checks_restarts import used_bytes
from cluster import ends, loader, pod, shell, status_of
from fixtures import BUCKET
from harness import check, wait_for

MIB = 1 << 20
VERSION = 2 if os.path.exists("/sys/fs/cgroup/cgroup.controllers") else 1
TOP = "/sys/fs/cgroup/kubepods" if VERSION == 2 else "/sys/fs/cgroup/memory/kubepods"
SHARED = "shmem" if VERSION == 2 else "total_shmem"
KILLS = "memory.events" if VERSION == 2 else "memory.oom_control"
MODEL_MIB = 16
# Reads all of the model, then takes memory until it is killed: tail keeps the one line that never ends.
GREEDY = "cat /model/* > /dev/null && exec tail /dev/zero"


def members(group, file):
    with open(os.path.join(group, file), encoding="utf-8") as stat:
        return {line.split()[0]: int(line.split()[1]) for line in stat}


def shared_mib(group=TOP):
    """Pages of any tmpfs that are charged to the group and what is below it."""
    return round(members(group, "memory.stat")[SHARED] / MIB)


def group_of(pod_, name):
    """The control group of a container; its parent is the pod's."""
    identity = status_of(pod_, name)["containerID"].removeprefix("containerd://")
    found = glob.glob(f"{TOP}/**/{identity}", recursive=True)
    assert len(found) == 1, f"control groups of {name}: {found}"
    return found[0]


def reader(cluster, node):
    """A pod that read all of a model: its name and its group."""
    name = node.start(node.space, {"model": "alpha"})
    node.right(node.space, name, "alpha")
    return name, group_of(cluster.pod(node.space, name), "main")


def no_mounts_left(node):
    node.delete_pods(node.space)
    wait_for("the mounts to go", lambda: not node.mounts(), 90)


@check("cluster", "store", "helm", "node")
def daemon_pays_for_the_models(h, cluster, store, helm, node):
    """What the daemon loads is charged to its container; a pod that reads all of a model pays nothing for it."""
    models, before = round(node.model_bytes / MIB), shared_mib()
    _, group = reader(cluster, node)
    daemon, own = shared_mib(group_of(node.daemon(), "sluice-node")), shared_mib(group)
    grown = shared_mib() - before
    no_mounts_left(node)
    assert models <= daemon <= models + 5 and own == 0 and grown == 0, (models, daemon, own, grown)
    return f"version {VERSION}, Linux {os.uname().release}: daemon {daemon} MiB, reader {own}, all pods {grown:+d}"


@check("cluster", "store", "helm", "node")
def loader_pays_in_its_own_pod(h, cluster, store, helm, node):
    """An init container's model is charged to its pod, also when the container has ended; the engine beside it pays nothing."""
    space, before = cluster.namespace("pays"), shared_mib()
    cluster.apply(space, store.credentials(),
                  pod("own", [loader(f"s3://{BUCKET}/node/alpha/", store)], shell("echo runs; exec sleep 3600", memory="64Mi")))
    wait_for("the engine", lambda: status_of(cluster.pod(space, "own"), "main").get("state", {}).get("running"))
    group = group_of(cluster.pod(space, "own"), "main")
    told = {"engine": shared_mib(group), "pod": shared_mib(os.path.dirname(group)), "all pods": shared_mib() - before}
    cluster.delete(space)
    assert told == {"engine": 0, "pod": MODEL_MIB, "all pods": MODEL_MIB}, told
    wait_for("its memory to be free", lambda: shared_mib() == before, 90)
    return ", ".join(f"{name} {mib} MiB" for name, mib in told.items())


@check("cluster", "store", "helm", "node")
def pod_out_of_memory_dies_alone(h, cluster, store, helm, node):
    """A pod with a model is killed at its own limit: another reads the same pages on, the daemon and the models stay as they are."""
    beside, beside_group = reader(cluster, node)
    daemon = node.daemon()
    group, used, fetched = group_of(daemon, "sluice-node"), used_bytes(node.memory), node.line.bytes
    paid = shared_mib(group)
    name = node.start(node.space, {"model": "alpha"}, GREEDY)
    killed = ends(cluster.until_done(node.space, name), "main")[0]
    assert killed.code == 137, killed
    for other in (group, beside_group):
        assert members(other, KILLS)["oom_kill"] == 0, other
    assert status_of(node.daemon(), "sluice-node")["restartCount"] == status_of(daemon, "sluice-node")["restartCount"]
    node.read_again(node.space, beside, "alpha")
    assert (shared_mib(group), used_bytes(node.memory), node.line.bytes) == (paid, used, fetched)
    no_mounts_left(node)
    return f"exit code 137 ({killed.reason}); none of the others' was killed, daemon still {paid} MiB"


@check("cluster", "store", "helm", "node")
def next_daemon_pays_nothing_again(h, cluster, store, helm, node):
    """A daemon that is killed leaves its pages to its pod's group; the next container finds the models and is not charged."""
    name, _ = reader(cluster, node)
    daemon = node.daemon()
    paid, restarts = shared_mib(group_of(daemon, "sluice-node")), status_of(daemon, "sluice-node")["restartCount"]
    cluster.kill(daemon, "sluice-node")
    wait_for("the next daemon", lambda: status_of(node.daemon(), "sluice-node")["restartCount"] > restarts and node.ready(), 120)
    group = group_of(node.daemon(), "sluice-node")
    told = {"next daemon": shared_mib(group), "its pod": shared_mib(os.path.dirname(group))}
    node.read_again(node.space, name, "alpha")
    no_mounts_left(node)
    assert told == {"next daemon": 0, "its pod": paid}, (told, paid)
    return ", ".join(f"{name} {mib} MiB" for name, mib in told.items())
