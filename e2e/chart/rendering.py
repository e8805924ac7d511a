"""What the checks of the chart share: rendering, validating, looking into pods. scripts/check-chart runs them."""
import concurrent.futures
import glob
import os
import subprocess

import yaml

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CACHE = os.environ.get("SLUICE_CACHE", os.path.join(ROOT, ".cache"))
CHART = os.path.join(ROOT, "charts", "sluice")
E2E = os.path.join(ROOT, "e2e", "chart")
HELM = os.path.join(CACHE, "bin", "helm")
# Lowest and highest --kube-version that the chart is rendered for.
OLDEST, NEWEST = "1.29.0", "1.36.0"
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

CHECKS = []


def check(function):
    """Register a check: a generator of (name of the case, list of what is wrong)."""
    CHECKS.append(function)
    return function


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, **options)


def read(*path):
    with open(os.path.join(*path), encoding="utf-8") as file:
        return file.read()


def case_name(path):
    return os.path.basename(path).removesuffix("-values.yaml")


def values_files():
    return sorted(glob.glob(os.path.join(CHART, "ci", "*-values.yaml")))


def schemas():
    return sorted(glob.glob(os.path.join(CACHE, "kube-schemas", "*")))


RENDERS = {}


def render(path, version=NEWEST, helm=HELM, *more):
    """What `helm template` makes of a values file; raises with helm's own words."""
    key = (path, version, helm, more)
    if key not in RENDERS:
        done = run(helm, "template", "models", CHART, "--namespace", "inference", "--kube-version", version,
                   "--values", path, *more)
        RENDERS[key] = (done.stdout, "" if done.returncode == 0 else done.stderr.strip()[-800:])
    return RENDERS[key]


def objects(text):
    return [document for document in yaml.load_all(text, Loader=LOADER) if document]


def parallel(function, cases):
    """function(case) for each case, two at a time, in order."""
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 2) as pool:
        return zip(cases, pool.map(function, cases))


def validate(text, folder):
    """kubeconform's complaints, strict, against the API of one version."""
    done = run(os.path.join(CACHE, "bin", "kubeconform"), "-strict", "-schema-location",
               os.path.join(folder, "{{.Group}}_{{.ResourceAPIVersion}}_{{.ResourceKind}}.json"), "-", input=text)
    return [] if done.returncode == 0 else (done.stdout + done.stderr).splitlines()


def pod_of(item):
    """The pod template of an object, as (metadata, spec), or None."""
    if item["kind"] == "Pod":
        return item.get("metadata", {}), item["spec"]
    if item["kind"] == "CronJob":
        item = item["spec"]["jobTemplate"]
    template = (item.get("spec") or {}).get("template")
    if not isinstance(template, dict) or "spec" not in template:
        return None
    return template.get("metadata", {}), template["spec"]


def component(item):
    return item["metadata"].get("labels", {}).get("app.kubernetes.io/component")


# What the daemon of a node does that 'restricted' forbids, each for a reason that docs/csi.md and docs/gpu.md give; nothing else is let pass.
NODE_DAEMON = {
    *(f"volume {name} is a hostPath" for name in ("node", "pods", "driver", "registry", "gpu-driver")),
    *(f"container sluice-node: {what}" for what in (
        "allowPrivilegeEscalation is not false", "privileged", "runAsNonRoot is not true", "runs as root", "capabilities are added")),
    *(f"container registrar: {what}" for what in ("runAsNonRoot is not true", "runs as root")),
}


def restricted_of(item):
    """What 'restricted' forbids in an object's pod, but for what a node daemon needs."""
    pod = pod_of(item)
    allowed = NODE_DAEMON if item["kind"] == "DaemonSet" and component(item) == "node" else set()
    return [line for line in restricted(pod[1]) if line not in allowed] if pod else []


def restricted(spec):
    """What the Pod Security Standard 'restricted' forbids in a pod."""
    wrong = [f"{key} is set" for key in ("hostNetwork", "hostPID", "hostIPC") if spec.get(key)]
    pod = spec.get("securityContext", {})
    allowed = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret", "nfs"}
    for volume in spec.get("volumes", []):
        # nfs is not in the standard; the values file that asks for it wants a server of its own.
        wrong += [f"volume {volume['name']} is a {kind}" for kind in volume if kind not in allowed | {"name"}]
    for container in spec.get("initContainers", []) + spec.get("containers", []):
        own = container.get("securityContext", {})
        demands = {
            "allowPrivilegeEscalation is not false": own.get("allowPrivilegeEscalation") is False,
            "privileged": not own.get("privileged"),
            "runAsNonRoot is not true": own.get("runAsNonRoot", pod.get("runAsNonRoot")) is True,
            "runs as root": own.get("runAsUser", pod.get("runAsUser")) != 0,
            "capabilities are not dropped": "ALL" in own.get("capabilities", {}).get("drop", []),
            "capabilities are added": not set(own.get("capabilities", {}).get("add", [])) - {"NET_BIND_SERVICE"},
            "no seccomp profile": own.get("seccompProfile", pod.get("seccompProfile", {})).get("type")
            in ("RuntimeDefault", "Localhost"),
        }
        wrong += [f"container {container['name']}: {what}" for what, good in demands.items() if not good]
        wrong += [f"container {container['name']}: host port" for port in container.get("ports", []) if port.get("hostPort")]
    return wrong
