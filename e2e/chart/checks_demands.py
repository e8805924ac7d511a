"""What a platform demands of the chart and of the manifests, and what must be refused."""
import glob
import os
import re
import shutil
import tempfile

import yaml

from rendering import (
    CACHE, CHART, E2E, HELM, LOADER, NEWEST, ROOT, case_name, check, objects, parallel, pod_of, read, render,
    restricted, restricted_of, run, schemas, validate, values_files,
)

# kube-score's wishes that are not ours, each with the reason.
NOT_WISHED = {
    "container-ephemeral-storage-request-and-limit": "nothing is written but the volume",
    "container-image-pull-policy": "a value; IfNotPresent is right for versions and digests",
    "container-security-context-user-group-id": "platforms such as OpenShift choose it; the image's own is 65532",
    "service-targets-pod": "the pods behind the metrics Service are the user's",
    "container-security-context-privileged": "pod_security looks at it: the node daemon alone",
    "pod-networkpolicy": "a switch, since only the platform knows its stores",
}


@check
def pod_security():
    """Every pod of the chart but the node daemon's passes 'restricted'; all have a read-only root and no token."""
    for path in values_files():
        wrong = []
        for item in objects(render(path)[0]):
            pod = pod_of(item)
            if not pod:
                continue
            wrong += [f"{item['kind']} {item['metadata']['name']}: {line}" for line in restricted_of(item)]
            if pod[1].get("automountServiceAccountToken") is not False:
                wrong.append(f"{item['kind']} {item['metadata']['name']}: mounts a token")
            for container in pod[1].get("initContainers", []) + pod[1]["containers"]:
                if "sluice" in container["image"] and not container["securityContext"].get("readOnlyRootFilesystem"):
                    wrong.append(f"{container['name']}: writable root")
        yield case_name(path), wrong


def images(node):
    if isinstance(node, dict):
        for key, below in node.items():
            if key == "image" and isinstance(below, str):
                yield below
            yield from images(below)
    elif isinstance(node, list):
        for below in node:
            yield from images(below)


@check
def mirror():
    """Every image of the chart comes from the mirror, by digest, with the pull secret."""
    wrong = []
    for item in objects(render(os.path.join(CHART, "ci", "mirror-values.yaml"))[0]):
        wrong += [f"{item['kind']}: {image}" for image in images(item)
                  if not re.fullmatch(r"mirror\.internal:5000/upstream/(sluice|nginxinc/nginx-unprivileged|sig-storage/csi-node-driver-registrar)@sha256:[0-9a-f]{64}", image)]
        pod = pod_of(item)
        if pod and {"name": "mirror"} not in pod[1].get("imagePullSecrets", []):
            wrong.append(f"{item['kind']}: no pull secret")
    yield "mirror", wrong


@check
def kube_score():
    """kube-score has nothing critical to say, but for what is not wished."""
    program = os.path.join(CACHE, "bin", "kube-score")
    ignored = [f"--ignore-test={name}" for name in NOT_WISHED]

    def one(path):
        text, error = render(path)
        if error:
            return [error]
        # Pods that stand for a user's own are not ours to judge.
        own = yaml.safe_dump_all([item for item in objects(text) if "helm.sh/chart" in item["metadata"].get("labels", {})])
        if "kind: Pod" not in own and "Job" not in own:
            return []
        done = run(program, "score", "--output-format=ci", "--kubernetes-version=v1.29", *ignored, "-", input=own)
        lines = done.stdout.splitlines()
        wrong = [line for line in lines if line.startswith("[CRITICAL]") and "CPU limit is not set" not in line]
        return wrong if lines else [done.stderr[-300:] or "kube-score said nothing"]
    for path, wrong in parallel(one, values_files()):
        yield case_name(path), wrong


# ---- what must be refused -------------------------------------------------------------------------


@check
def refused():
    """Each bad value of e2e/chart/refused.yaml is refused by name, with the remedy."""
    table = yaml.load(read(E2E, "refused.yaml"), Loader=LOADER)

    def one(job):
        kind, case = job
        with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
            yaml.safe_dump(case["values"], file)
            file.flush()
            done = run(HELM, "template", "models", CHART, "--kube-version", NEWEST, "--values", file.name)
        if done.returncode == 0:
            return ["accepted"]
        wrong = [f"the answer does not say {words!r}" for words in case["says"] if words not in done.stderr]
        expected = {"schema": "values don't meet the specifications", "validate": "of the values cannot be right",
                    "template": "sluice: "}[kind]
        if expected not in done.stderr:
            wrong.append(f"not refused by the {kind}")
        return wrong + done.stderr.strip().splitlines()[-6:] if wrong else []
    jobs = [(kind, case) for kind, cases in table.items() for case in cases]
    for (kind, case), wrong in parallel(one, jobs):
        yield f"{kind}: {case['name']}", wrong


# ---- from another chart, and without one ----------------------------------------------------------


def engine_caches(pod, loader, path):
    """What is wrong: each variable of sets.def names its folder below the path, which lies in one volume of loader and engine."""
    variables = re.findall(r'^SL_SETS_VARIABLE\("(\w+)", "(\w+)"\)', read(ROOT, "src", "load", "sets", "sets.def"), re.MULTILINE)
    engine, = pod["containers"]
    said = {row["name"]: row.get("value") for row in engine["env"]}
    wrong = [f"{name}: {said.get(name)}" for name, folder in variables if said.get(name) != f"{path}/{folder}"]
    mounts = [{mount["mountPath"]: mount for mount in container["volumeMounts"]}.get(os.path.dirname(path), {})
              for container in (engine, *(each for each in pod["initContainers"] if each["name"] == loader))]
    if len(mounts) != 2 or mounts[0] != mounts[1] or mounts[0].get("name") not in {volume["name"] for volume in pod["volumes"]}:
        wrong.append(f"mounts: {mounts}")
    return wrong + ([] if len(variables) == 12 else [f"{len(variables)} variables"])


@check
def library():
    """A chart that depends on this one renders a Deployment with its containers, and that is valid."""
    with tempfile.TemporaryDirectory() as directory:
        chart = os.path.join(directory, "charts", "engine")
        shutil.copytree(os.path.join(E2E, "engine"), chart)
        # The dependency is a relative path, so the copy keeps the folders' shape.
        os.symlink(CHART, os.path.join(directory, "charts", "sluice"))
        done = run(HELM, "dependency", "build", chart)
        if done.returncode:
            yield "dependency", [done.stderr[-500:]]
            return
        for folder in schemas():
            done = run(HELM, "template", "engine", chart, "--namespace", "inference", "--kube-version", NEWEST)
            wrong = [done.stderr[-800:]] if done.returncode else validate(done.stdout, folder)
            for item in objects(done.stdout):
                pod = pod_of(item)
                wrong += [f"{item['kind']}: {line}" for line in (restricted(pod[1]) if pod else [])]
            yield f"API {os.path.basename(folder)}", wrong
        kinds = {pod_of(item)[1]["initContainers"][0]["name"] for item in objects(done.stdout) if item["kind"] == "Deployment"}
        yield "its init container", [] if kinds == {"sluice-load"} else [f"{kinds}"]
        pod = next(pod_of(item)[1] for item in objects(done.stdout) if item["kind"] == "Deployment")
        names = [volume["name"] for volume in pod["volumes"]]
        sizes = [volume["emptyDir"]["sizeLimit"] for volume in pod["volumes"] if volume["name"] == "sluice-models"]
        yield "caches of the engine", engine_caches(pod, "sluice-load", "/caches/gpt-j-6b")
        yield "two loaders share one volume", [] if len(set(names)) == len(names) and sizes == ["13376Mi"] else [f"{names} {sizes}"]




@check
def manifests():
    """Every file of manifests/ is valid for three versions of the API, or for those that have its kinds, and opens with a comment
    that says what it shows."""
    for path in sorted(glob.glob(os.path.join(ROOT, "manifests", "**", "*.yaml"), recursive=True)):
        text = read(path)
        wrong = [f"API {os.path.basename(folder)}: {line}" for folder in schemas() for line in validate(text, folder)
                 if not ("could not find schema for ValidatingAdmissionPolicy" in line and os.path.basename(folder).startswith("1.29."))]
        for item in objects(text):
            pod = pod_of(item) if item.get("kind") != "Model" else None
            if pod:
                wrong += [f"{item['kind']} {item['metadata'].get('name')}: {line}" for line in restricted_of(item)]
                if os.path.basename(path) == "engine-caches.yaml":
                    wrong += engine_caches(pod[1], "load", "/caches/llama")
        yield os.path.relpath(path, ROOT), wrong
