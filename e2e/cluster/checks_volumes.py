"""Volumes of models in pods of restricted namespaces: what they see, what they cost, what they outlive, and what is refused."""
import json
import os
import re
import subprocess
import time

from checks_helm import CHART
from checks_restarts import used_bytes
from cluster import FOLDER as HERE
from cluster import status_of
from fixtures import BUCKET
from harness import SLOWER, check, wait_for
from node_release import BESIDE_BYTES, DRIVER, MIB, MODEL_BYTES, MODELS

PODS = 20


@check("cluster", "store", "helm", "node")
def node_daemon_registers_and_loads(h, cluster, store, helm, node):
    """The DaemonSet is ready when all models are there; its tmpfs holds them once; the kubelet knows the driver."""
    assert node.ready(), node.daemon()["status"]
    assert os.path.ismount(node.memory), f"no mount at {node.memory}"
    drivers = [driver["name"] for item in cluster.get("csinodes")["items"] for driver in item["spec"].get("drivers") or []]
    assert drivers == [DRIVER], drivers
    used, want = used_bytes(node.memory), node.model_bytes
    assert want <= used <= want + len(MODELS) * BESIDE_BYTES, f"{used} bytes of memory for models of {want}"
    assert want <= node.line.bytes <= want + len(MODELS) * BESIDE_BYTES, f"{node.line.bytes} bytes fetched for {want}"
    return f"{used / MIB:.1f} MiB of memory and {node.line.bytes / MIB:.1f} MiB fetched for {want / MIB:.1f} MiB of models"


@check("cluster", "store", "helm", "node")
def twenty_pods_share_five_models(h, cluster, store, helm, node):
    """20 pods of a restricted namespace, four to a model: right bytes, read-only, one copy of each, nothing fetched again."""
    fetched, used = node.line.bytes, used_bytes(node.memory)
    begin = time.monotonic()
    names = {node.start(node.space, {"model": MODELS[i % len(MODELS)]}): MODELS[i % len(MODELS)] for i in range(PODS)}
    for name, model in names.items():
        node.right(node.space, name, model)
    seconds = time.monotonic() - begin
    assert len(node.mounts()) == PODS, node.mounts()
    grown = used_bytes(node.memory) - used
    assert abs(grown) < MIB, f"memory grew by {grown} bytes"
    assert node.line.bytes == fetched, f"{node.line.bytes - fetched} bytes were fetched again"
    node.delete_all(node.space)
    return f"{PODS} pods in {seconds:.1f} s, memory grew by {grown / 1024:.0f} KiB, nothing fetched"


@check("cluster", "store", "helm", "node")
def node_daemon_killed_beneath_pods(h, cluster, store, helm, node):
    """SIGKILL: pods read on; the next daemon serves new ones, and takes the old one's volumes away when their pods go."""
    old, fetched = node.start(node.space, {"model": "alpha"}), node.line.bytes
    node.right(node.space, old, "alpha")
    pod = node.daemon()
    restarts = status_of(pod, "sluice-node")["restartCount"]
    cluster.kill(pod, "sluice-node")
    node.read_again(node.space, old, "alpha")
    wait_for("the next daemon", lambda: status_of(node.daemon(), "sluice-node")["restartCount"] > restarts and node.ready(), 120)
    new = node.start(node.space, {"model": "beta"})
    node.right(node.space, new, "beta")
    node.read_again(node.space, old, "alpha")
    again = node.line.bytes - fetched
    assert again < BESIDE_BYTES, f"{again} bytes were fetched again"
    node.delete_all(node.space)
    return f"{again} bytes fetched again"


@check("cluster", "store", "helm", "node")
def node_daemon_upgraded_beneath_pods(h, cluster, store, helm, node):
    """helm upgrade replaces the daemon's pod: pods read on, new ones start, nothing is fetched again."""
    old, fetched = node.start(node.space, {"model": "gamma"}), node.line.bytes
    node.right(node.space, old, "gamma")
    before = node.daemon()["metadata"]["name"]
    values = json.loads(json.dumps(node.values))
    values["node"]["pod"] = {"annotations": {"e2e/version": "next"}}
    helm(node.own, "upgrade", "models", CHART, values=values)
    # What nothing is mounted for yet waits, and then works.
    new = node.start(node.space, {"model": "delta"})
    node.rolled_out()
    assert node.daemon()["metadata"]["name"] != before, "the daemon was not replaced"
    node.right(node.space, new, "delta")
    node.read_again(node.space, old, "gamma")
    again = node.line.bytes - fetched
    assert again < BESIDE_BYTES, f"{again} bytes were fetched again"
    node.delete_all(node.space)
    return f"{again} bytes fetched again"


@check("cluster", "store", "helm", "node")
def volumes_are_refused_by_name(h, cluster, store, helm, node):
    """What nobody may mount: the pod's event says why, and nothing of the node becomes visible."""
    cases = [
        (node.strange, {"model": "alpha"}, True, (node.strange,)),
        (node.narrow, {"model": "beta"}, True, (node.narrow, "beta")),
        (node.narrow, {"uri": f"s3://{BUCKET}/node/alpha/"}, True, (node.narrow,)),
        (node.space, {"model": "zeta"}, True, ("zeta",)),
        (node.space, {"model": "../alpha"}, True, ("is not a model name",)),
        (node.space, {"uri": f"s3://{BUCKET}/other/"}, True, ("s3://",)),
        (node.space, {"uri": f"s3://{BUCKET}/node/../secret/"}, True, ("s3://",)),
        (node.space, {"uri": "file:///etc/"}, True, ("file:///etc/",)),
        (node.space, {"model": "alpha", "path": "/etc"}, True, ("'path' is not known",)),
        (node.space, {"model": "alpha", "device": "cuda:0"}, True, ("device",)),
        (node.space, {"model": "alpha", "pool": "true"}, True, ("pool",)),
        (node.space, {"model": "alpha"}, False, ("readOnly",)),
    ]
    started = [(space, node.start(space, attributes, read_only=read_only), words) for space, attributes, read_only, words in cases]
    said = [node.until_refused(space, name, *words) for space, name, words in started]
    assert not node.mounts(), node.mounts()
    good = node.start(node.narrow, {"model": "alpha"})
    node.right(node.narrow, good, "alpha")
    node.delete_all(node.space, node.narrow, node.strange)
    return f"{len(cases)} cases, the last: {said[-1][:160]}"


@check("cluster", "store", "helm", "node")
def volume_of_a_failing_load_says_why(h, cluster, store, helm, node):
    """A URI with nothing behind it: the event of the pod has the line that a load would end with."""
    name = node.start(node.space, {"uri": f"s3://{BUCKET}/node/absent/"})
    said = node.until_refused(node.space, name, "absent")
    node.delete_pods(node.space)
    return said[:240]


@check("cluster", "store", "helm", "node")
def volume_beyond_the_budget_is_refused(h, cluster, store, helm, node):
    """Five pinned models leave no room for a sixth: refused with the names of what holds the memory, and nothing is read."""
    fetched = node.line.bytes
    name = node.start(node.space, {"uri": f"s3://{BUCKET}/node/large/"})
    said = node.until_refused(node.space, name, "budget")
    assert node.line.bytes - fetched < BESIDE_BYTES, f"{node.line.bytes - fetched} bytes were read"
    node.delete_pods(node.space)
    return said[:240]


def claim_bytes(cluster, claim):
    """What the kubelet's metrics say of a claim: capacity, used, available; nothing before it has asked the driver."""
    machine = cluster.get("nodes")["items"][0]["metadata"]["name"]
    text = cluster.kubectl("get", "--raw", f"/api/v1/nodes/{machine}/proxy/metrics")
    pattern = rf'^kubelet_volume_stats_(\w+)_bytes{{[^}}]*persistentvolumeclaim="{claim}"[^}}]*}} (\S+)$'
    return {name: int(float(value)) for name, value in re.findall(pattern, text, re.MULTILINE)}


@check("cluster", "store", "helm", "node")
def volume_by_claim(h, cluster, store, helm, node):
    """A PersistentVolume of a model: two pods share its claim, and the kubelet tells its size to Prometheus."""
    handle = f"epsilon-{os.getpid()}"
    size = {"storage": "1Gi"}
    cluster.apply(None, {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": handle}, "spec": {
        "capacity": size, "accessModes": ["ReadOnlyMany"], "persistentVolumeReclaimPolicy": "Retain", "storageClassName": "",
        "claimRef": {"namespace": node.space, "name": "epsilon"},
        "csi": {"driver": DRIVER, "volumeHandle": handle, "readOnly": True, "volumeAttributes": {"model": "epsilon"}}}})
    cluster.apply(node.space, {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "epsilon"}, "spec": {
        "accessModes": ["ReadOnlyMany"], "storageClassName": "", "volumeName": handle, "resources": {"requests": size}}})
    claim = {"persistentVolumeClaim": {"claimName": "epsilon", "readOnly": True}}
    names = [node.start(node.space, None, volume=claim) for _ in range(2)]
    for name in names:
        node.right(node.space, name, "epsilon")
    wait_for("the kubelet's metrics", lambda: len(claim_bytes(cluster, "epsilon")) == 3)
    told = claim_bytes(cluster, "epsilon")
    assert MODEL_BYTES <= told["used"] == told["capacity"] <= MODEL_BYTES + BESIDE_BYTES and told["available"] == 0, told
    node.delete_all(node.space)
    cluster.kubectl("-n", node.space, "delete", "pvc", "epsilon", "--wait=false")
    cluster.kubectl("delete", "pv", handle, "--wait=false")


@check("cluster", "store", "helm", "node")
def volume_costs_a_pod_little_time(h, cluster, store, helm, node):
    """From a pod's creation to its first byte of a model that the node has, beside a pod without a volume: under a second more."""
    rounds = [(node.first_byte(None, "true"), node.first_byte({"model": "alpha"}, "head -c 4096 /model/model.safetensors")) for _ in range(5)]
    bare, volume = (sorted(column)[len(rounds) // 2] for column in zip(*rounds))
    node.delete_pods(node.space)
    assert volume - bare < SLOWER, f"{volume:.2f} s with a volume, {bare:.2f} s without"
    return f"{volume:.2f} s with a volume, {bare:.2f} s without (medians of {len(rounds)})"


@check("cluster", "store", "helm", "node")
def drained_node_keeps_no_mount(h, cluster, store, helm, node):
    """kubectl drain: the pods go, their mounts with them, the daemon and its models stay."""
    names = [node.start(node.space, {"model": model}) for model in MODELS]
    for name, model in zip(names, MODELS):
        node.right(node.space, name, model)
    machine = cluster.get("nodes")["items"][0]["metadata"]["name"]
    try:
        cluster.kubectl("drain", machine, "--ignore-daemonsets", "--force", "--delete-emptydir-data", "--timeout=60s",
                        "--pod-selector=app.kubernetes.io/component!=node")
        wait_for("the mounts to go", lambda: not node.mounts(), 60)
        assert node.ready() and used_bytes(node.memory) >= node.model_bytes
    finally:
        cluster.kubectl("uncordon", machine)


@check("cluster", "store", "helm", "node")
def volume_that_takes_long_tells_how_far_it_is(h, cluster, store, helm, node):
    """A load that outlasts a publish: an event tells how far it is, the kubelet's next calls join it, and its bytes come once."""
    node.new_model("slow")
    fetched = node.line.bytes
    node.line.faster(2 * MIB)
    name = node.start(node.space, {"uri": f"s3://{BUCKET}/node/slow/"})
    said = node.until_refused(node.space, name, " of 16.0 MiB", "/s")
    node.line.faster(1 << 30)
    node.right(node.space, name, "slow")
    read = node.line.bytes - fetched
    assert read < MODEL_BYTES + BESIDE_BYTES, f"{read} bytes were fetched"
    node.delete_all(node.space)
    return said[-120:]


@check("cluster", "store", "helm", "node")
def volume_serves_many_containers_and_parts(h, cluster, store, helm, node):
    """Two containers of one pod, one of them with a subPath, and two volumes of one model: one memory, nothing can be written."""
    made = node.pod("many", {"model": "alpha"}, "cat /model/config.json && echo && exec sleep 3600")
    main = made["spec"]["containers"][0]
    made["spec"]["volumes"].append({**made["spec"]["volumes"][0], "name": "again"})
    part = {**main, "name": "part", "command": ["sh", "-c", "cat /config.json && ! touch /config.json && echo kept && exec sleep 3600"],
            "volumeMounts": [{"name": "again", "mountPath": "/config.json", "subPath": "config.json", "readOnly": True}]}
    made["spec"]["containers"].append(part)
    cluster.apply(node.space, made)
    wait_for("both to read", lambda: pod_said(cluster, node.space, "many", "main", "alpha") and
             pod_said(cluster, node.space, "many", "part", "kept"), 60)
    node.delete_all(node.space)


def pod_said(cluster, space, name, container, words):
    return words in cluster.try_kubectl("-n", space, "logs", name, "-c", container).stdout


@check("cluster", "store", "helm", "node")
def kubelet_restarted_beneath_pods(h, cluster, store, helm, node):
    """The kubelet is killed and started again: it finds the driver, pods read on, new ones start, and old mounts go with their pods."""
    old, fetched = node.start(node.space, {"model": "alpha"}), node.line.bytes
    node.right(node.space, old, "alpha")
    again = ". ./common.sh && . ./node.sh && halt kubelet KILL && start_kubelet"
    subprocess.run(["bash", "-c", again], cwd=HERE, check=True, stdin=subprocess.DEVNULL)
    new = node.start(node.space, {"model": "beta"})
    node.right(node.space, new, "beta")
    node.read_again(node.space, old, "alpha")
    assert node.line.bytes - fetched < BESIDE_BYTES, f"{node.line.bytes - fetched} bytes were fetched again"
    node.delete_all(node.space)


@check("cluster", "store", "helm", "node")
def volume_that_is_not_there_costs_its_load(h, cluster, store, helm, node):
    """From a pod's creation to its first byte of a model that the node has not: the load's own time and less than a second."""
    rounds = []
    node.line.faster(16 * MIB)
    try:
        for number in range(3):
            node.new_model(f"new-{number}")
            begin = time.monotonic()
            node.load_here(f"new-{number}")
            load = time.monotonic() - begin
            bare = node.first_byte(None, "true")
            rounds.append((node.first_byte({"uri": f"s3://{BUCKET}/node/new-{number}/"}, "head -c 4096 /model/model.safetensors") - load - bare,
                           load, bare))
            node.delete_all(node.space)
    finally:
        node.line.faster(1 << 30)
    more, load, bare = sorted(rounds)[1]
    assert more < SLOWER, f"{more:.2f} s beyond the load's {load:.2f} s and the {bare:.2f} s of a pod without a volume"
    return f"{more:.2f} s beyond the load's {load:.2f} s and the {bare:.2f} s of a pod without a volume (the median of {len(rounds)})"
