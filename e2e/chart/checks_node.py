"""The node daemon: its plain manifests are what the chart renders, and its config is what its mounts say."""
import json
import os
import re
import tempfile

import yaml

from rendering import CHART, E2E, HELM, LOADER, NEWEST, ROOT, case_name, check, component, objects, read, render, run, values_files

HELM_ONLY = ("helm.sh/chart", "app.kubernetes.io/managed-by", "app.kubernetes.io/version", "app.kubernetes.io/instance",
             "helm.sh/resource-policy", "checksum/config", "kubectl.kubernetes.io/default-container")
# Kinds of other uses of the chart, which the plain file goes without.
OTHER = {"sluice-specs"}


def plain(node):
    """Without what only Helm needs; text that is YAML is compared as such."""
    if isinstance(node, dict):
        kept = {key: plain(below) for key, below in node.items() if key not in HELM_ONLY}
        return {key: below for key, below in kept.items() if below != {} or node[key] == {}}
    if isinstance(node, list):
        return [plain(below) for below in node]
    if isinstance(node, str) and node.startswith("apiVersion: "):
        return list(yaml.load_all(node, Loader=LOADER))
    return node


def named(text):
    return {f"{item['kind']} {item['metadata']['name']}": plain(item) for item in objects(text)
            if item["metadata"]["name"] not in OTHER}


def differences(made, kept):
    """A case for the names and one for each object that both have."""
    yield "the same objects", [f"only in one: {name}" for name in sorted(set(made) ^ set(kept) - {"Namespace sluice-system"})]
    for name in sorted(set(made) & set(kept)):
        ours, theirs = (yaml.safe_dump(side[name]).splitlines() for side in (kept, made))
        yield name, [f"manifests: {line}" for line in ours if line not in theirs] + \
            [f"chart: {line}" for line in theirs if line not in ours] + \
            ([] if kept[name] == made[name] else ["they differ"])


@check
def node_manifests():
    """manifests/node/daemon.yaml is what the chart makes of e2e/chart/manifests-node-values.yaml, and a namespace; with labels.yaml
    it is what node.labels.enabled makes of them, and with gpu.yaml what manifests-node-gpu-values.yaml does."""
    gpu = ("--values", os.path.join(E2E, "manifests-node-gpu-values.yaml"))
    for files, more in ((["daemon.yaml"], ()), (["daemon.yaml", "labels.yaml"], ("--set", "node.labels.enabled=true")),
                        (["daemon.yaml", "gpu.yaml"], gpu)):
        done = run(HELM, "template", "sluice", CHART, "--namespace", "sluice-system", "--kube-version", NEWEST,
                   "--values", os.path.join(E2E, "manifests-node-values.yaml"), *more)
        if done.returncode:
            yield f"render {files[-1]}", [done.stderr[-800:]]
            return
        kept = {}
        for name in files:
            kept.update(named(read(ROOT, "manifests", "node", name)))
        for case, wrong in differences(named(done.stdout), kept):
            yield f"{files[-1]}: {case}", wrong


def daemons(items):
    return [item for item in items if item["kind"] == "DaemonSet" and component(item) == "node"]


def config_of(items):
    """(the DaemonSet's pod, the node's config) of a render."""
    pods = [item["spec"]["template"]["spec"] for item in daemons(items)]
    configs = [item["data"]["node.yaml"] for item in items if item["kind"] == "ConfigMap" and "node.yaml" in item["data"]]
    return pods[0], yaml.load(configs[0], Loader=LOADER)


@check
def node_paths():
    """Every path in the daemon's config lies in a folder of the node that is mounted at the same path, and is shared if it must be."""
    for path in values_files():
        items = objects(render(path)[0])
        if not daemons(items):
            continue
        pod, config = config_of(items)
        hosts = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume and volume["name"] != "gpu-driver"}
        mounts = {mount["mountPath"]: mount for mount in pod["containers"][0]["volumeMounts"] if mount["name"] in hosts}
        wrong = [f"{place} is {hosts[mount['name']]} on the node" for place, mount in mounts.items() if hosts[mount["name"]] != place]
        csi = config.get("csi", {})
        wanted = [config["directory"], config["control"]["socket"], config.get("tmpfs", {}).get("path"), csi.get("socket"),
                  csi.get("registration"), config.get("pool", {}).get("socket"), config.get("pool", {}).get("directory")]
        for place in filter(None, wanted):
            if not any(place.startswith(f"{mount}/") for mount in mounts):
                wrong.append(f"{place} is in no folder of the node")
        shared = {place for place, mount in mounts.items() if mount.get("mountPropagation") == "Bidirectional"}
        if csi and shared != {f"{csi['kubeletDirectory']}/pods", hosts["node"]}:
            wrong.append(f"shared: {sorted(shared)}")
        if not csi and not config.get("tmpfs") and shared:
            wrong.append("mounts of an unprivileged daemon are shared")
        names = {key.removesuffix(".yaml") for item in items if item["kind"] == "ConfigMap" and "node.yaml" in item["data"]
                 for key in item["data"]} - {"node"}
        wrong += [f"no spec of {model['file']}" for model in config["models"] if model["file"].removesuffix(".yaml") not in names]
        yield case_name(path), wrong


@check
def node_network_and_openshift():
    """hostNetwork with names of the cluster; on OpenShift an account of the daemon's own, which alone may use the SecurityContextConstraints."""
    def rendered(*more):
        return objects(run(HELM, "template", "m", CHART, "--set", "node.enabled=true,node.budget=2Gi", "--kube-version", NEWEST, *more).stdout)
    pod, _ = config_of(rendered("--set", "node.hostNetwork=true"))
    found = pod.get("hostNetwork"), pod.get("dnsPolicy")
    yield "hostNetwork", [] if found == (True, "ClusterFirstWithHostNet") else [str(found)]
    profile = "security.openshift.io/csi-ephemeral-volume-profile"
    for name, more in (("elsewhere", ()), ("by the cluster", ("--api-versions", "security.openshift.io/v1")), ("by force", ("--set", "node.openshift.force=true"))):
        items = rendered(*more)
        pod, _ = config_of(items)
        driver = next(item for item in items if item["kind"] == "CSIDriver")
        bound = [subject["name"] for item in items if item["kind"] == "RoleBinding" for subject in item["subjects"]]
        accounts = {item["metadata"]["name"] for item in items if item["kind"] == "ServiceAccount"}
        found = driver["metadata"]["labels"].get(profile), bound == [pod["serviceAccountName"]], pod["serviceAccountName"] in accounts
        yield f"OpenShift, {name}", [] if found == (("restricted", True, True) if more else (None, False, True)) else [str(found)]


@check
def node_has_room_for_others():
    """Only the DaemonSet gets the annotations, more containers run beside the daemon, and the network policy admits nobody but those who may scrape."""
    peers = [{"namespaceSelector": {"matchLabels": {"team": "monitoring"}}}]
    values = {"node": {"enabled": True, "budget": "2Gi", "annotations": {"example/owner": "platform"}, "extraContainers": [{"name": "beside", "image": "x:1"}]},
              "networkPolicy": {"enabled": True, "ingress": {"from": peers}, "egress": {"enabled": False}}}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(values, file)
        file.flush()
        done = run(HELM, "template", "m", CHART, "--kube-version", NEWEST, "--values", file.name)
    items = objects(done.stdout)
    pod, _ = config_of(items)
    annotated = [item["kind"] for item in items if "example/owner" in (item["metadata"].get("annotations") or {})]
    yield "annotations", [] if annotated == ["DaemonSet"] else [f"{annotated}"]
    names = [container["name"] for container in pod["containers"]]
    yield "containers", [] if names[0] == "sluice-node" and "beside" in names else [f"{names}"]
    policies = [item["spec"] for item in items if item["kind"] == "NetworkPolicy"]
    found = [(rule["ports"][0]["port"], rule.get("from")) for policy in policies for rule in policy["ingress"]]
    yield "ingress", [] if found == [(9464, peers)] else [f"{found}"]


@check
def node_has_no_engine_caches():
    """A model that has engine caches for pods of its own is one that the daemon keeps, too, and which it would refuse with them."""
    spec = {"source": {"uri": "s3://m/"}, "sink": {"caches": {"path": "/caches/m", "url": "s3://c/", "trust": "store"}}}
    for name, more, want in (("alone", {}, None), ("beside a layout", {"tmpfs": {"layout": "safetensors"}}, {"tmpfs": {"layout": "safetensors"}})):
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            yaml.safe_dump({"node": {"enabled": True, "budget": "2Gi"}, "models": {"m": {"size": "1Gi", "spec": {**spec, "sink": {**spec["sink"], **more}}}}}, file)
            file.flush()
            done = run(HELM, "template", "m", CHART, "--kube-version", NEWEST, "--values", file.name)
        found = [item["data"]["m.yaml"] for item in objects(done.stdout) if item["kind"] == "ConfigMap" and "node.yaml" in item["data"]]
        yield name, [] if found and yaml.load(found[0], Loader=LOADER).get("sink") == want else [done.stderr[-300:], str(found)]


def gpu_of(pod):
    """How the daemon's container gets at GPUs, as far as its pod says."""
    container = pod["containers"][0]
    env = {entry["name"]: entry.get("value") for entry in container["env"]}
    return {"runtime": pod.get("runtimeClassName"), "visible": env.get("NVIDIA_VISIBLE_DEVICES"), "capabilities": env.get("NVIDIA_DRIVER_CAPABILITIES"),
            "search": env.get("LD_LIBRARY_PATH"), "claims": (container["resources"].get("claims"), pod.get("resourceClaims")),
            "driver": [(mount["mountPath"], mount.get("readOnly"), volume["hostPath"]["path"]) for mount in container["volumeMounts"]
                       for volume in pod["volumes"] if mount["name"] == volume["name"] == "gpu-driver"]}


NO_GPU = {"runtime": None, "visible": None, "capabilities": None, "search": None, "claims": (None, None), "driver": []}
GPUS = {
    "node-gpu": {**NO_GPU, "runtime": "nvidia", "visible": "all", "capabilities": "compute,utility"},
    "node-gpu-host": {**NO_GPU, "search": "/usr/local/nvidia/lib64",
                      "driver": [("/usr/local/nvidia/lib64", True, "/home/kubernetes/bin/nvidia/lib64")]},
}
CLAIM = {**NO_GPU, "claims": ([{"name": "gpus"}], [{"name": "gpus", "resourceClaimTemplateName": "all-gpus"}])}


@check
def node_gpus():
    """The daemon gets GPUs in the one way that is chosen, and in none unless it is asked for."""
    def compared(items, want):
        found = gpu_of(config_of(items)[0])
        return [f"{key} is {found[key]}, not {want[key]}" for key in want if found[key] != want[key]]
    for path in values_files():
        items = objects(render(path)[0])
        if daemons(items):
            yield case_name(path), compared(items, GPUS.get(case_name(path), NO_GPU))
    path = next(path for path in values_files() if case_name(path) == "node-gpu-host")
    claimed = ("template", "m", CHART, "--values", path, "--set", "node.gpu.access=claim,node.gpu.claimTemplate=all-gpus", "--kube-version")
    done = run(HELM, *claimed, NEWEST)
    yield "by a claim", compared(objects(done.stdout), CLAIM) if done.returncode == 0 else [done.stderr[-400:]]
    older = run(HELM, *claimed, "1.33.0")
    yield "by a claim before 1.34", [] if "Kubernetes v1.33.0 has no ResourceClaims" in older.stderr else [older.stderr[-400:]]


@check
def node_pool_models():
    """A model of the pool is the daemon's as its values say, settings of files aside, and no container's that loads."""
    items = objects(render(next(path for path in values_files() if case_name(path) == "node-gpu"))[0])
    maps = {item["metadata"]["name"].rsplit("-", 1)[1]: item["data"] for item in items if item["kind"] == "ConfigMap"}
    sinks = {name: yaml.load(text, Loader=LOADER).get("sink") for name, text in maps["node"].items() if name != "node.yaml"}
    want = {"gpt-j-6b.yaml": {"pool": {"device": "cuda:0", "decrypt": "gpu"}}, "llama.yaml": {"pool": {"device": "cuda:all"}},
            "pythia.yaml": {"pool": {}}, "tokenizer.yaml": {"tmpfs": {"layout": "verbatim"}}}
    yield "the daemon's", [f"{name}: {sinks.get(name)}" for name in want if sinks.get(name) != want[name]]
    loadable = [document["metadata"]["name"] for document in yaml.load_all(maps["specs"]["all.yaml"], Loader=LOADER)]
    yield "the containers'", [] if loadable == ["tokenizer"] and "pythia.yaml" not in maps["specs"] else [f"{loadable}"]
    pool = yaml.load(maps["node"]["node.yaml"], Loader=LOADER)["pool"]
    yield "the budget", [] if (pool["gpuBudgetBytes"], pool["gpuWarmSeconds"]) == (60 << 30, 30) else [f"{pool}"]


@check
def node_driver_object():
    """The CSIDriver stays with Helm, has no namespace, asks to publish again only with tokens, and keeps tokens out of attributes."""
    for path in values_files():
        drivers = [item for item in objects(render(path)[0]) if item["kind"] == "CSIDriver"]
        for driver in drivers:
            spec, wrong = driver["spec"], []
            if driver["metadata"].get("annotations", {}).get("helm.sh/resource-policy") != "keep":
                wrong.append("goes with the release")
            if "namespace" in driver["metadata"]:
                wrong.append("has a namespace")
            if spec["requiresRepublish"] != bool(spec.get("tokenRequests")):
                wrong.append(f"requiresRepublish is {spec['requiresRepublish']}")
            if bool(spec.get("serviceAccountTokenInSecrets")) != bool(spec.get("tokenRequests")):
                wrong.append("tokens are not where secrets are")
            older = [item["spec"] for item in objects(render(path, "1.34.0")[0]) if item["kind"] == "CSIDriver"]
            if any("serviceAccountTokenInSecrets" in spec for spec in older):
                wrong.append("a field that 1.34 does not know")
            yield case_name(path), wrong


LABELS = {"models": {"a": {"spec": {"source": {"uri": "s3://models/a/"}}}},
          "node": {"enabled": True, "budget": "2Gi", "labels": {"enabled": True}}}


def template(version, *more):
    """LABELS in a cluster of this version: (objects by kind, what helm complained about)."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        json.dump(LABELS, file)
        file.flush()
        done = run(HELM, "template", "m", CHART, "--namespace", "system", "--kube-version", version, "--values", file.name, *more)
    return {item["kind"]: item for item in objects(done.stdout)}, done.stderr


def token_holders(pod):
    return [container["name"] for container in pod["containers"]
            if any(mount["name"] == "account" for mount in container["volumeMounts"])]


@check
def node_labels():
    """The labeller alone holds a token; its account may get and patch nodes, and a policy narrows that to its own labels."""
    found, wrong = template(NEWEST)[0], []
    pod, role, policy = (found[kind]["spec"]["template"]["spec"] if kind == "DaemonSet" else found[kind]
                         for kind in ("DaemonSet", "ClusterRole", "ValidatingAdmissionPolicy"))
    account = "m-sluice-node"
    if token_holders(pod) != ["label"] or pod["automountServiceAccountToken"]:
        wrong.append(f"a token for {token_holders(pod)}")
    if pod["serviceAccountName"] != account:
        wrong.append(f"the pod's account is {pod['serviceAccountName']}")
    if role["rules"] != [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]}]:
        wrong.append(f"rights: {role['rules']}")
    if found["ClusterRoleBinding"]["subjects"] != [{"kind": "ServiceAccount", "name": account, "namespace": "system"}]:
        wrong.append(f"for {found['ClusterRoleBinding']['subjects']}")
    if f"'system:serviceaccount:system:{account}'" not in policy["spec"]["matchConditions"][0]["expression"]:
        wrong.append("the policy is for another account")
    prefixes = {word for row in policy["spec"]["validations"] for word in re.findall(r"startsWith\('([^']*)'\)", row["expression"])}
    if prefixes != {"model.csi.sluice.dev/"} or "--prefix=model.csi.sluice.dev" not in pod["containers"][-1]["args"]:
        wrong.append(f"prefixes: {prefixes}, {pod['containers'][-1]['args']}")
    if found["ValidatingAdmissionPolicyBinding"]["spec"]["policyName"] != policy["metadata"]["name"]:
        wrong.append("the policy is bound to nothing")
    yield "rights", wrong
    taint = "csi.sluice.dev/agent-not-ready"
    found, wrong = template(NEWEST, "--set", f"node.labels.startupTaint={taint}", "--set", "node.tolerateAll=false")[0], []
    pod, role, policy = (found["DaemonSet"]["spec"]["template"]["spec"], found["ClusterRole"]["rules"],
                         found["ValidatingAdmissionPolicy"]["spec"]["validations"])
    if not {f"--startup-taint={taint}", "--driver=csi.sluice.dev"} <= set(pod["containers"][-1]["args"]):
        wrong.append(f"arguments: {pod['containers'][-1]['args']}")
    if role[1:] != [{"apiGroups": ["storage.k8s.io"], "resources": ["csinodes"], "verbs": ["get"]}]:
        wrong.append(f"rights: {role}")
    if {"key": taint, "operator": "Exists"} not in pod["tolerations"]:
        wrong.append("the daemon itself is kept off")
    if not any(f"taint.key == '{taint}' ||" in row["expression"] for row in policy) or any("object.spec ==" in row["expression"] for row in policy):
        wrong.append("the policy does not let it remove the taint")
    yield "a startup taint", wrong
    complaint = template("1.29.0")[1]
    yield "an older cluster", [] if "node.labels.policy: Kubernetes v1.29.0 has no" in complaint else [complaint[-300:]]
