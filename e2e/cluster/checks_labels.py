"""Labels of nodes that say which models they have, and what the account that sets them may not do."""
import json
import os

from harness import check, wait_for
from node_release import DRIVER, MODELS

PREFIX = f"model.{DRIVER}"


def labels_of(cluster, name):
    found = cluster.get("node", name)["metadata"]["labels"]
    return {key.removeprefix(PREFIX + "/"): value for key, value in found.items() if key.startswith(PREFIX + "/")}


def patch(h, cluster, token, name, what):
    """As the labeller does it, with this token and nothing else: without the administrator's certificate."""
    config = json.loads(cluster.kubectl("config", "view", "--raw", "-o", "json"))
    for user in config["users"]:
        user["user"] = {"token": token}
    path = os.path.join(h.directory("labeller"), "kubeconfig")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(config, file)
    return cluster.try_kubectl("--kubeconfig", path, "patch", "node", name, "--type=merge", "--patch", json.dumps(what))


@check("cluster", "store", "helm", "node")
def nodes_are_labelled_with_their_models(h, cluster, store, helm, node):
    """One label for each model of the config, none for URIs; wrong ones go; a pod finds its node by them."""
    machine = cluster.get("nodes")["items"][0]["metadata"]["name"]
    want = dict.fromkeys(MODELS, "ready")
    wait_for("the labels", lambda: labels_of(cluster, machine) == want, 60)
    cluster.kubectl("label", "node", machine, f"{PREFIX}/zeta=ready", f"{PREFIX}/alpha=maybe", "--overwrite")
    pod = node.daemon()
    cluster.kill(pod, "label")
    wait_for("what it did not set to go", lambda: labels_of(cluster, machine) == want, 120)
    wanted = node.pod("placed", {"model": "alpha"}, "exec sleep 3600")
    wanted["spec"]["nodeSelector"] = {f"{PREFIX}/alpha": "ready"}
    cluster.apply(node.space, wanted)
    cluster.until(node.space, "placed", "a place", lambda pod: pod["spec"].get("nodeName") == machine)
    listed = cluster.kubectl("get", "nodes", "-l", f"{PREFIX}/alpha=ready", "-o", "name").split()
    node.delete_all(node.space)
    return f"ready on {len(listed)} of {len(cluster.get('nodes')['items'])} nodes"


@check("cluster", "store", "helm", "node")
def labeller_may_do_nothing_else(h, cluster, store, helm, node):
    """Its own node's labels with the prefix: yes. Other labels, taints, annotations, other nodes, other objects: no."""
    machine, pod = cluster.get("nodes")["items"][0]["metadata"]["name"], node.daemon()["metadata"]["name"]
    account = node.daemon()["spec"]["serviceAccountName"]
    bound = cluster.kubectl("-n", node.own, "create", "token", account, "--bound-object-kind", "Pod", "--bound-object-name", pod).strip()
    loose = cluster.kubectl("-n", node.own, "create", "token", account).strip()
    cluster.apply(None, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "elsewhere"}})
    mine = {"metadata": {"labels": {f"{PREFIX}/alpha": "ready"}}}
    try:
        done = patch(h, cluster, bound, machine, mine)
        assert done.returncode == 0, done.stderr
        cases = [
            (bound, "elsewhere", mine, "no node but the one"),
            (loose, machine, {"metadata": {"labels": {f"{PREFIX}/eta": "ready"}}}, "no node but the one"),
            (bound, machine, {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}}, "no label without the prefix"),
            (bound, machine, {"metadata": {"labels": {"kubernetes.io/hostname": None}}}, "no label without the prefix"),
            (bound, machine, {"metadata": {"annotations": {"a": "b"}}}, "nothing of a node but labels"),
            (bound, machine, {"spec": {"unschedulable": True}}, "nothing of a node but labels"),
            (bound, machine, {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}, "nothing of a node but labels"),
        ]
        for token, name, what, words in cases:
            done = patch(h, cluster, token, name, what)
            assert done.returncode and words in done.stderr, f"{what} on {name}: {done.returncode} {done.stderr}"
    finally:
        cluster.kubectl("delete", "node", "elsewhere")
    rights = ("list", "nodes"), ("delete", "nodes"), ("get", "secrets"), ("create", "pods"), ("patch", "nodes", "--subresource=status")
    may = [cluster.try_kubectl("auth", "can-i", *right, "--as", f"system:serviceaccount:{node.own}:{account}").stdout.strip()
           for right in rights]
    assert may == ["no"] * len(may), may
    return f"{len(cases)} refused"
