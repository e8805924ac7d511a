"""Tenants of a node: what they read with rights of their own, what they never get, the pool's socket, and volumes of a class."""
import os
import subprocess
import sys
import time

from checks_restarts import used_bytes
from cluster import IMAGE, PARTS, secret, status_of
from fixtures import BUCKET
from grpc_call import as_map, call, decode
from harness import Skip, check, wait_for
from node_release import BESIDE_BYTES, DRIVER, MIB, MODEL_BYTES

SOCKET = f"/var/lib/kubelet/plugins/{DRIVER}/csi.sock"
CLASS, SIZE = "models-delta", {"storage": "1Gi"}
MULTI_NODE_READER_ONLY = 3


def uri(model):
    return {"uri": f"s3://{BUCKET}/node/{model}/"}


def keys(name, access, key):
    return secret(name, {"access_key_id": access, "secret_access_key": key})


@check("cluster", "store", "helm", "node")
def tenants_read_with_their_own_secrets(h, cluster, store, helm, node):
    """nodePublishSecretRef: one copy for equal keys of a namespace, none for anybody else, though the bytes are in memory."""
    good, wrong = (store.access, store.secret), (store.access, "wrong" * 8)
    cluster.apply(node.keys, keys("mine", *good), keys("wrong", *wrong), secret("half", {"access_key_id": "x"}))
    cluster.apply(node.other_keys, keys("theirs", *wrong))
    cluster.apply(node.space, keys("mine", *good))
    fetched = node.line.bytes
    first = node.start(node.keys, uri("alpha"), secret="mine")
    node.right(node.keys, first, "alpha")
    used, read = used_bytes(node.memory), node.line.bytes - fetched
    assert MODEL_BYTES <= read < MODEL_BYTES + BESIDE_BYTES, f"the first pod fetched {read} bytes, not a copy of its own"
    again = node.start(node.keys, uri("alpha"), secret="mine")
    node.right(node.keys, again, "alpha")
    grown, more = used_bytes(node.memory) - used, node.line.bytes - fetched - read
    assert grown < BESIDE_BYTES and more < BESIDE_BYTES, f"the second took {grown} bytes and fetched {more}"
    cases = [
        (node.keys, None, ("must bring its own credentials",)),
        (node.keys, "half", ("secret_access_key",)),
        (node.keys, "wrong", ("403",)),
        (node.other_keys, "theirs", ("403",)),
        (node.other_keys, "mine", ("mine", "not found")),
        (node.space, "mine", ("may not use a secret",)),
    ]
    started = [(space, node.start(space, uri("alpha"), secret=name), words) for space, name, words in cases]
    said = [node.until_refused(space, name, *words) for space, name, words in started]
    assert len(node.mounts()) == 2, node.mounts()
    shown = " ".join(said) + cluster.logs(node.own, node.daemon()["metadata"]["name"], "sluice-node")
    assert "wrongwrong" not in shown and store.secret not in shown, "a key is in an event or in the log"
    node.delete_all(node.keys, node.other_keys, node.space)
    return f"{read / MIB:.1f} MiB fetched for two pods; {len(cases)} refused, the last: {said[-1][-160:]}"


@check("cluster", "store", "helm", "node")
def tenants_read_with_their_own_accounts(h, cluster, store, helm, node):
    """tokenRequests: the pod's service account is exchanged for its namespace's role; another account of it is refused."""
    for name in ("reader", "stranger"):
        cluster.apply(node.tokens, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}})
    subject = f"system:serviceaccount:{node.tokens}:reader"
    node.sts.may.add(subject)
    name = node.start(node.tokens, uri("beta"), account="reader")
    node.right(node.tokens, name, "beta")
    assert node.sts.asked.count(subject) >= 1, node.sts.asked
    other = node.start(node.tokens, uri("beta"), account="stranger")
    said = node.until_refused(node.tokens, other, "AccessDenied")
    assert len(node.mounts()) == 1, node.mounts()
    # The kubelet publishes again, with new tokens (requiresRepublish): the mount stays what it is.
    calls = published_calls(cluster, node)
    wait_for("the kubelet to publish again", lambda: published_calls(cluster, node) > calls + 2, 150)
    node.read_again(node.tokens, name, "beta")
    node.delete_all(node.tokens)
    return said[-200:]


def metrics_of(cluster, node):
    """Of the node's daemon, through the API server, as the runbook asks for them."""
    pod = node.daemon()["metadata"]["name"]
    return cluster.kubectl("get", "--raw", f"/api/v1/namespaces/{node.own}/pods/{pod}:9464/proxy/metrics")


def published_calls(cluster, node):
    lines = metrics_of(cluster, node).splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("sluice_csi_calls_total") and "NodePublishVolume" in line)


@check("cluster", "store", "helm", "node")
def pods_reach_the_pool_through_the_driver(h, cluster, store, helm, node):
    """`pool: "true"`: a pod gets the folder of the socket and attaches to a model there; a namespace without the right gets none."""
    attach = {"image": IMAGE, "args": ["pool", "attach", uri("gamma")["uri"], "--socket", "/model/pool.sock", "--json"], "command": None}
    name = node.start(node.pooled, {"pool": "true"}, main_of=attach)
    done = cluster.until_done(node.pooled, name)
    assert done["status"]["phase"] == "Succeeded", cluster.story(node.pooled, name, done)
    said = cluster.logs(node.pooled, name, "main")
    assert '"tensors":' in said, said[-400:]
    looks = node.start(node.pooled, {"pool": "true"}, "ls -A /model; touch /model/x; echo writes=$?; exec sleep 3600")
    shown = node.until_said(node.pooled, looks, "writes=")
    assert "pool.sock" in shown.split() and "writes=0" not in shown, shown
    denied = node.start(node.narrow, {"pool": "true"})
    refused = node.until_refused(node.narrow, denied, "may not use the pool")
    node.delete_all(node.pooled, node.narrow)
    return refused[-160:]


LOCKS = """
import fcntl, os, sys, time
held = []
os.chdir(sys.argv[1])
os.setgroups([])
os.setgid(65532)
os.setuid(65532)
for folder, _, names in os.walk("."):
    for name in (".", *names):
        held.append(os.open(os.path.join(folder, name), os.O_RDONLY))
        fcntl.flock(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
print(len(held), flush=True)
time.sleep(3600)
"""


@check("cluster", "store", "helm", "node")
def what_a_reader_locks_holds_up_nobody(h, cluster, store, helm, node):
    """Who may only read a volume locks all that it can open there: the daemon ends and begins, others get the model, and lose it again."""
    node.right(node.space, node.start(node.space, {"model": "alpha"}), "alpha")
    command = [sys.executable, "-c", LOCKS, *node.mounts()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        try:
            locked = int(holder.stdout.readline())
            assert locked > 3, locked
            restarts = status_of(node.daemon(), "sluice-node")["restartCount"]
            begin = time.monotonic()
            cluster.kill(node.daemon(), "sluice-node")
            wait_for("the next daemon", lambda: status_of(node.daemon(), "sluice-node")["restartCount"] > restarts and node.ready(), 120)
            after = time.monotonic() - begin
            reader = node.start(node.space, {"model": "alpha"})
            node.right(node.space, reader, "alpha")
            cluster.kubectl("-n", node.space, "delete", "pod", reader, "--grace-period=0")
            wait_for("the reader's mount to go", lambda: len(node.mounts()) == 1, 60)
        finally:
            holder.kill()
    node.delete_all(node.space)
    return f"{locked} files and folders locked, the next daemon ready after {after:.1f} s"


SILENT_PODS = 30


@check("cluster", "store", "helm", "node")
def silent_sources_of_a_namespace_hold_up_no_other(h, cluster, store, helm, node):
    """A namespace has thirty pods that wait for a server which never answers: another's model is loaded and mounted meanwhile."""
    cluster.apply(node.silent, *(node.pod(f"waits-{i}", {"uri": f"{node.silent_address}m{i}.safetensors"}, "true") for i in range(SILENT_PODS)))
    node.until_refused(node.silent, "waits-0", "its load has not started to read yet")
    node.new_model("zeta")
    begin = time.monotonic()
    loaded = node.start(node.space, uri("zeta"))
    node.right(node.space, loaded, "zeta")
    first = time.monotonic() - begin
    there = node.start(node.space, {"model": "beta"})
    node.right(node.space, there, "beta")
    second = time.monotonic() - begin - first
    node.delete_pods(node.silent)
    node.delete_all(node.space)
    return f"{first:.1f} s for a model to load, {second:.1f} s for one in memory, beside {SILENT_PODS} that wait"


def claim_of_class(cluster, node):
    cluster.apply(node.space, {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "delta"}, "spec": {
        "accessModes": ["ReadOnlyMany"], "storageClassName": CLASS, "resources": {"requests": SIZE}}})
    return cluster.get("-n", node.space, "pvc", "delta")


def two_pods_read(node):
    source = {"persistentVolumeClaim": {"claimName": "delta", "readOnly": True}}
    names = [node.start(node.space, None, volume=source) for _ in range(2)]
    for pod in names:
        node.right(node.space, pod, "delta")
    node.delete_all(node.space)


@check("cluster", "store", "helm", "node")
def volume_of_a_class(h, cluster, store, helm, node):
    """A claim of the chart's StorageClass: CreateVolume of the driver, as a provisioner calls it, makes what its pod mounts."""
    claim, made = claim_of_class(cluster, node), cluster.get("storageclass", CLASS)
    # What external-provisioner does when a claim waits for its class.
    assert made["provisioner"] == DRIVER, made
    name = f"pvc-{claim['metadata']['uid']}"
    parameters = [(4, [(1, key), (2, value)]) for key, value in made["parameters"].items()]
    answer = call(SOCKET, "/csi.v1.Controller/CreateVolume", [
        (1, name), (2, [(1, 1 << 30)]), (3, [(2, []), (3, [(1, MULTI_NODE_READER_ONLY)])]), *parameters])
    volume = [(number, value) for field, part in answer if field == 1 for number, value in decode(part)]
    handle = dict(volume)[2].decode()
    context = as_map([value for number, value in volume if number == 3])
    context["storage.kubernetes.io/csiProvisionerIdentity"] = "the-checks"
    cluster.apply(None, {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": {
        "capacity": SIZE, "accessModes": ["ReadOnlyMany"], "persistentVolumeReclaimPolicy": "Delete", "storageClassName": CLASS,
        "claimRef": {"namespace": node.space, "name": "delta", "uid": claim["metadata"]["uid"]},
        "csi": {"driver": DRIVER, "volumeHandle": handle, "readOnly": True, "volumeAttributes": context}}})
    two_pods_read(node)
    cluster.kubectl("-n", node.space, "delete", "pvc", "delta")
    call(SOCKET, "/csi.v1.Controller/DeleteVolume", [(1, handle)])
    cluster.kubectl("delete", "pv", name, "--wait=false")
    cluster.try_kubectl("patch", "pv", name, "--type=merge", "--patch", '{"metadata": {"finalizers": null}}')
    return f"{handle} of {context}"


@check("cluster", "store", "helm", "node")
def volume_by_the_provisioner(h, cluster, store, helm, node):
    """A claim of the chart's StorageClass and external-provisioner itself: bound, mounted by two pods, and gone with the claim."""
    program = os.path.join(PARTS, "bin", "csi-provisioner")
    if not os.access(program, os.X_OK):
        raise Skip("no external-provisioner: e2e/cluster/up --provisioner builds it")
    process = h.spawn("provisioner", [program, "--csi-address", SOCKET, "--kubeconfig", cluster.kubeconfig])
    try:
        claim_of_class(cluster, node)
        wait_for("the claim to be bound", lambda: bound_volume(cluster, node), 60)
        name = bound_volume(cluster, node)
        two_pods_read(node)
        cluster.kubectl("-n", node.space, "delete", "pvc", "delta")
        wait_for("the volume to go", lambda: cluster.try_kubectl("get", "pv", name).returncode, 60)
    finally:
        h.stop(process)
    return name


def bound_volume(cluster, node):
    """The name of the claim's volume, once it has one."""
    claim = cluster.get("-n", node.space, "pvc", "delta")
    return claim["status"].get("phase") == "Bound" and claim["spec"]["volumeName"]
