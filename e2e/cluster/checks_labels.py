"""Labels of nodes that say which models they have, and what the account that sets them may not do."""
import json
import os
import subprocess

from checks_helm import CHART
from harness import check, wait_for
from node_release import DRIVER, MODELS, TAINT

PREFIX = f"model.{DRIVER}"
SPEC = "nothing else of a node's spec"
NODE = "nothing of a node but labels"


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


def taints_of(cluster, name):
    return [taint["key"] for taint in cluster.get("node", name)["spec"].get("taints", [])]


@check("cluster", "store", "helm", "node")
def startup_taint_goes_once_the_driver_is_registered(h, cluster, store, helm, node):
    """A labeller that begins on a node with the taint removes it, by its own account; the taints of others stay."""
    machine = cluster.get("nodes")["items"][0]["metadata"]["name"]
    cluster.kubectl("taint", "node", machine, "others/one=1:PreferNoSchedule", f"{TAINT}=:NoSchedule", f"{TAINT}=:PreferNoSchedule")
    try:
        cluster.kill(node.daemon(), "label")  # one that runs looks at the node every five minutes
        wait_for("the taint to go", lambda: TAINT not in taints_of(cluster, machine), 60)
        assert taints_of(cluster, machine) == ["others/one"], taints_of(cluster, machine)
    finally:
        cluster.kubectl("taint", "node", machine, "others/one-")
    return "two effects of it are gone, the other taint is there"


def make_policy(h, helm, node, taint):
    """The release's policy, with this startup taint; "": with none."""
    path = os.path.join(h.directory("policy"), "values.json")
    labels = {**node.values["node"]["labels"], "startupTaint": taint}
    with open(path, "w", encoding="utf-8") as file:
        json.dump({**node.values, "node": {**node.values["node"], "labels": labels}}, file)
    done = subprocess.run([helm.program, "template", "models", CHART, "--namespace", node.own, "--show-only", "templates/labels.yaml",
                           "--values", path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def expect_refusals(h, cluster, cases):
    """Each with the words of the rule that it breaks; a policy is in force some time after it was written."""
    for token, name, what, words in cases:
        def refused():
            done = patch(h, cluster, token, name, what)
            assert done.returncode, f"{what} on {name}: {done.stdout}"
            return words in done.stderr
        wait_for(f"{what} on {name}: {words}", refused, 30)


@check("cluster", "store", "helm", "node")
def labeller_may_do_nothing_else(h, cluster, store, helm, node):
    """Its own node's labels with the prefix, and to remove the startup taint: yes. Other labels, taints, annotations, other nodes, other
    objects: no; the rest of the node's spec neither, whether there is a startup taint or not."""
    machine, pod = cluster.get("nodes")["items"][0]["metadata"]["name"], node.daemon()["metadata"]["name"]
    account = node.daemon()["spec"]["serviceAccountName"]
    bound = cluster.kubectl("-n", node.own, "create", "token", account, "--bound-object-kind", "Pod", "--bound-object-name", pod).strip()
    loose = cluster.kubectl("-n", node.own, "create", "token", account).strip()
    cluster.apply(None, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "elsewhere"}})
    mine = {"metadata": {"labels": {f"{PREFIX}/alpha": "ready"}}}
    other = {"key": "others/one", "effect": "PreferNoSchedule"}
    taints = "no taint but"
    try:
        done = patch(h, cluster, bound, machine, mine)
        assert done.returncode == 0, done.stderr
        cluster.kubectl("taint", "node", machine, "others/one=:PreferNoSchedule")
        cases = [
            (bound, "elsewhere", mine, "no node but the one"),
            (loose, machine, {"metadata": {"labels": {f"{PREFIX}/eta": "ready"}}}, "no node but the one"),
            (bound, machine, {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}}, "no label without the prefix"),
            (bound, machine, {"metadata": {"labels": {"kubernetes.io/hostname": None}}}, "no label without the prefix"),
            (bound, machine, {"metadata": {"annotations": {"a": "b"}}}, NODE),
        ]
        expect_refusals(h, cluster, cases + [
            (bound, machine, {"spec": {"unschedulable": True}}, SPEC),
            (bound, machine, {"spec": {"providerID": "elsewhere://1"}}, SPEC),
            (bound, machine, {"spec": {"taints": [other, {"key": "a", "effect": "NoSchedule"}]}}, taints),
            (bound, machine, {"spec": {"taints": [other, {"key": TAINT, "effect": "NoSchedule"}]}}, taints),
            (bound, machine, {"spec": {"taints": None}}, taints),
            (bound, machine, {"spec": {"taints": [{**other, "effect": "NoExecute"}]}}, taints),
        ])
        cluster.kubectl("apply", "-f", "-", text=make_policy(h, helm, node, ""))
        expect_refusals(h, cluster, cases + [
            (bound, machine, {"spec": {"unschedulable": True}}, NODE),
            (bound, machine, {"spec": {"taints": [other, {"key": "a", "effect": "NoSchedule"}]}}, NODE),
            (bound, machine, {"spec": {"taints": None}}, NODE),
        ])
    finally:
        cluster.kubectl("apply", "-f", "-", text=make_policy(h, helm, node, TAINT))
        cluster.kubectl("taint", "node", machine, "others/one-")
        cluster.kubectl("delete", "node", "elsewhere")
    told = cluster.get("validatingadmissionpolicies")["items"]
    warned = [warning for policy in told for warning in policy.get("status", {}).get("typeChecking", {}).get("expressionWarnings", [])]
    assert not warned, warned
    rights = ("list", "nodes"), ("delete", "nodes"), ("get", "secrets"), ("create", "pods"), ("patch", "nodes", "--subresource=status")
    may = [cluster.try_kubectl("auth", "can-i", *right, "--as", f"system:serviceaccount:{node.own}:{account}").stdout.strip()
           for right in rights]
    assert may == ["no"] * len(may), may
    return f"{2 * len(cases) + 9} refused"
