"""Caches: the real nginx takes what is rendered, sizes follow from values, and everything that loads names them."""
import json
import os
import re
import shutil
import tempfile

import yaml

from rendering import CHART, E2E, HELM, LOADER, NEWEST, OLDEST, ROOT, case_name, check, component, objects, read, render, run, values_files
from checks_node import differences, named

BASE = {"models": {"m": {"size": "10Gi", "spec": {"source": {"uri": "s3://b/m/"}}}},
        "caches": {"enabled": True, "stores": [{"host": "store.internal"}], "nodes": 4}}


def rendered(changes, version=NEWEST, folder=E2E):
    """BASE with other keys of `caches`: (objects of the caches, all objects)."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", dir=tempfile.gettempdir()) as file:
        json.dump({**BASE, **changes, "caches": {**BASE["caches"], **changes.get("caches", {})}}, file)
        file.flush()
        text, error = render(file.name, version)
    assert not error, error
    return [item for item in objects(text) if component(item) == "caches"], objects(text)


def config_of(items):
    return next(item["data"]["nginx.conf"] for item in items if item["kind"] == "ConfigMap" and "nginx.conf" in item["data"])


def judged_by_nginx(text):
    """What `nginx -t` complains of, in a folder of this machine and with a DNS server that needs no DNS."""
    with tempfile.TemporaryDirectory() as folder:
        text = re.sub(r"(resolver )[^ ;]+", r"\g<1>127.0.0.1", text.replace(" /cache", f" {folder}"))
        text = re.sub(r"(trusted_certificate )[^;]+", rf"\g<1>{folder}/ca.pem", text)
        # Any certificates will do; a machine without some has no nginx with TLS.
        shutil.copy("/etc/ssl/certs/ca-certificates.crt", os.path.join(folder, "ca.pem"))
        path = os.path.join(folder, "nginx.conf")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        done = run(shutil.which("nginx") or "/usr/sbin/nginx", "-e", "stderr", "-p", folder, "-c", path, "-t")
        return [] if done.returncode == 0 and "[warn]" not in done.stderr else done.stderr.splitlines()


@check
def caches_nginx():
    """Every rendered file is one that the real nginx takes, without a warning, and nothing is left to be replaced."""
    if not shutil.which("nginx") and not os.access("/usr/sbin/nginx", os.X_OK):
        yield "no nginx", None
        return
    for path in values_files():
        items = [item for item in objects(render(path)[0]) if component(item) == "caches"]
        if items:
            text = config_of(items)
            yield case_name(path), judged_by_nginx(text) + re.findall(r"^[^#\n]*@[A-Z]+@.*", text, re.MULTILINE)
    many = [{"host": f"{letter * 50}.store.internal", "port": 1000 + number} for number, letter in enumerate("abcdefghij")]
    yield "many stores with long names", judged_by_nginx(config_of(rendered({"caches": {"stores": many}})[0]))
    yield "IPv6", judged_by_nginx(config_of(rendered({"caches": {"ipv6": True}})[0]))


@check
def caches_manifest():
    """manifests/caches.yaml is what the chart makes of e2e/chart/manifests-caches-values.yaml."""
    done = run(HELM, "template", "sluice", CHART, "--namespace", "sluice-system", "--kube-version", NEWEST,
               "--values", os.path.join(E2E, "manifests-caches-values.yaml"))
    if done.returncode:
        yield "render", [done.stderr[-800:]]
        return
    made = yaml.safe_dump_all([item for item in objects(done.stdout) if component(item) == "caches"])
    yield from differences(named(made), named(read(ROOT, "manifests", "caches.yaml")))


def sizes_of(items):
    """(max_size in MiB, the volume, the container's memory, its disk) of a cache."""
    pod = next(item for item in items if item["kind"] == "DaemonSet")["spec"]["template"]["spec"]
    volume = next(volume for volume in pod["volumes"] if volume["name"] == "cache")["emptyDir"]
    resources = pod["containers"][0]["resources"]
    assert resources["requests"]["memory"] == resources["limits"]["memory"], resources
    return (int(re.search(r"max_size=(\d+)m", config_of(items))[1]), volume.get("sizeLimit"), resources["limits"]["memory"],
            resources["requests"].get("ephemeral-storage"))


@check
def caches_sizes():
    """Each keeps 1.2 times its part, its volume has room beyond it, and its memory holds the volume where that is memory."""
    disk = {"medium": ""}
    for changes, want in (({}, (3072, "4096Mi", "4352Mi", None)),
                          ({"nodes": 1}, (12288, "13312Mi", "13568Mi", None)),
                          ({"nodes": 7}, (1756, "2780Mi", "3036Mi", None)),
                          ({"size": "1Ti"}, (314573, "315597Mi", "315853Mi", None)),
                          (disk, (3072, None, "1024Mi", "4096Mi")),
                          ({"resources": {"limits": {"memory": "8Gi"}}}, (3072, "4096Mi", "8Gi", None))):
        found = sizes_of(rendered({"caches": changes})[0])
        yield json.dumps(changes), [] if found == want else [f"{found}, not {want}"]


def throughs(items):
    """{where: what is said there of caches} of everything that loads."""
    found = {}
    for item in items:
        if item["kind"] == "ConfigMap":
            for name, text in item["data"].items():
                if name.endswith(".yaml") and component(item) in ("specs", "node"):
                    spec = next(yaml.load_all(text, Loader=LOADER))
                    found[f"{component(item)} {name}"] = spec.get("through", spec.get("source", {}).get("through"))
        for container in ((item.get("spec") or {}).get("template", {}).get("spec", {}).get("containers", []) +
                          [(item.get("spec") or {}).get("container")]):
            words = container and container.get("args", []) + container.get("command", [])
            if words and any("through" in word for word in words):
                found[f"{item['kind']} {container['name']}"] = [word for word in words if "through" in word]
    return found


@check
def caches_are_named():
    """The daemon's config, specs of containers, and what loads a URI have them; what a model says itself stays."""
    url = "http://models-sluice-caches.inference.svc:8080"
    default, flags = {"caches": [url], "unverified": "direct"}, [f"--through={url}", "--set=source.through.unverified=direct"]
    path = next(path for path in values_files() if case_name(path) == "caches")
    found = throughs(objects(render(path)[0]))
    want = {"node node.yaml": default, "node gpt-j-6b.yaml": None, "node pythia-1b.yaml": {"unverified": "refuse"}, "node tiny.yaml": [],
            "specs gpt-j-6b.yaml": default, "specs pythia-1b.yaml": {"caches": [url], "unverified": "refuse"}, "specs tiny.yaml": [],
            "specs all.yaml": default, "Job benchmark": flags, "ClusterStorageContainer storage-initializer": flags}
    yield "caches", [f"{place}: {found.get(place)}, not {want.get(place)}" for place in sorted(set(want) | set(found))
                     if found.get(place) != want.get(place)]
    services = [item for item in objects(render(path)[0]) if item["kind"] == "Service"]
    yield "the name", [] if [(service["metadata"]["name"], service["spec"]["clusterIP"], service["spec"]["ports"][0]["port"]) for service in services] == \
        [("models-sluice-caches", "None", 8080)] else [f"{services}"]
    off = [path for path in values_files() if "caches:" not in read(path)]
    yield "nobody else", [f"{case_name(path)}: {found}" for path in off if (found := {place: said for place, said in throughs(
        objects(render(path)[0])).items() if said is not None})]


@check
def caches_of_zones():
    """Each zone has a Service of its own, whose caches are chosen by the label that their pods get, and loads name their own zone's."""
    mine, items = rendered({"caches": {"zones": ["a-1", "b-2"]}, "node": {"enabled": True, "budget": "20Gi"}})
    selectors = {item["metadata"]["name"]: item["spec"]["selector"].get("topology.kubernetes.io/zone") for item in mine if item["kind"] == "Service"}
    yield "services", [] if selectors == {"models-sluice-caches-a-1": "a-1", "models-sluice-caches-b-2": "b-2"} else [f"{selectors}"]
    daemons = [item for item in items if item["kind"] == "DaemonSet"]
    yield "one DaemonSet of each", [] if sorted(component(item) for item in daemons) == ["caches", "node"] else [f"{len(daemons)}"]
    node = next(item for item in daemons if component(item) == "node")["spec"]["template"]["spec"]["containers"][0]
    zone = {"name": "SLUICE_ZONE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['topology.kubernetes.io/zone']"}}}
    named_there = throughs(items)["node node.yaml"]["caches"]
    yield "the daemon", [] if zone in node["env"] and named_there == ["http://models-sluice-caches-${SLUICE_ZONE}.inference.svc:8080"] else \
        [f"{node['env']} {named_there}"]
    try:
        rendered({"caches": {"zones": ["a"]}}, "1.34.0")
        yield "before 1.35", ["accepted"]
    except AssertionError as why:
        yield "before 1.35", [] if "caches.zones: pods of Kubernetes v1.34.0 do not know their zone" in str(why) else [str(why)]
    yield "none before 1.35", [] if rendered({}, OLDEST)[0] else ["nothing"]


@check
def caches_network():
    """Caches are reached by pods of the release and by who is named, and reach DNS and the stores; loaders reach them."""
    path = next(path for path in values_files() if case_name(path) == "caches")
    policies = {component(item): item["spec"] for item in objects(render(path)[0]) if item["kind"] == "NetworkPolicy"}
    own = {"app.kubernetes.io/name": "sluice", "app.kubernetes.io/instance": "models"}
    rule = policies["caches"]["ingress"]
    yield "ingress", [] if rule == [{"ports": [{"port": 8080, "protocol": "TCP"}], "from": [
        {"podSelector": {"matchLabels": own}}, {"namespaceSelector": {"matchLabels": {"team": "inference"}}}]}] else [f"{rule}"]
    to_caches = {"to": [{"podSelector": {"matchLabels": {**own, "app.kubernetes.io/component": "caches"}}}], "ports": [{"port": 8080, "protocol": "TCP"}]}
    yield "egress of caches", [] if policies["caches"]["egress"] == [rule for rule in policies["network"]["egress"] if rule != to_caches] else \
        [f"{policies['caches']['egress']}"]
    yield "egress of loaders", [] if to_caches in policies["network"]["egress"] else [f"{policies['network']['egress']}"]
