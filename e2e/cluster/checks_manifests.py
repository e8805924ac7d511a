"""manifests/: the server takes every file as it is, and the pods in them do what their comments say.

What runs here instead of an engine is a shell that reads the model and then serves the engine's health path. Nothing
else of a manifest is changed but images, sizes and the store's address: the node is given the labels and the GPUs
that they ask for, without having any.
"""
import glob
import json
import os

from checks_pods import digests
from cluster import FOLDER, IMAGE, SHELL, STATE, secret
from fixtures import BUCKET
from harness import ROOT, check, wait_for

MANIFESTS = os.path.join(ROOT, "manifests")
NODE_LABELS = {"topology.kubernetes.io/region": "ORD1", "gpu.nvidia.com/class": "A40",
               "node.kubernetes.io/instance-type": "gd-8xh100ib-i128"}
PLACE = "cd /models/* && test -e .sluice/ready"
DIGESTS = "find . -type f -not -path './.sluice/*' | sort | while read -r f; do sha256sum \"$f\"; done"


def files():
    """Every manifest; manifests/models are specs for sluice, not objects."""
    found = glob.glob(os.path.join(MANIFESTS, "**", "*.yaml"), recursive=True)
    return sorted(path for path in found if os.path.basename(os.path.dirname(path)) != "models")


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def pod_specs(item):
    """Specs of pods in an object of whatever kind: templates, predictors, and KServe's storage container as a pod."""
    if isinstance(item, dict):
        if isinstance(item.get("containers"), list) and item["containers"] and "image" in item["containers"][0]:
            yield item
        if isinstance(item.get("container"), dict) and "image" in item["container"]:
            volumes = [{"name": mount["name"], "emptyDir": {}} for mount in item["container"].get("volumeMounts", [])]
            yield {"containers": [item["container"]], "volumes": volumes}
        for value in item.values():
            yield from pod_specs(value)
    elif isinstance(item, list):
        for value in item:
            yield from pod_specs(value)


def crds(h):
    """The kinds of others, once; then the server knows them."""
    cluster = h.fixture("cluster")
    cluster.kubectl("apply", "--server-side", "-f", os.path.join(FOLDER, "crds.yaml"))
    cluster.kubectl("wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")
    for name in ("knative-serving", "sluice-system"):
        if cluster.try_kubectl("get", "namespace", name).returncode:
            cluster.kubectl("create", "namespace", name)
    return True


def gpus(h):
    """Makes the node say that it has eight GPUs and the labels of nodes that have some."""
    cluster = h.fixture("cluster")
    name = cluster.get("nodes")["items"][0]["metadata"]["name"]
    cluster.kubectl("label", "--overwrite", "node", name, *(f"{key}={value}" for key, value in NODE_LABELS.items()))
    cluster.kubectl("patch", "node", name, "--subresource=status", "--type=merge", "-p",
                    json.dumps({"status": {"capacity": {"nvidia.com/gpu": "8"}, "allocatable": {"nvidia.com/gpu": "8"}}}))
    return True


@check("cluster", "crds")
def manifests_are_taken_as_they_are(h, cluster, _):
    """The server takes every file, strictly: no unknown, missing or mistyped field."""
    refused = []
    for path in files():
        done = cluster.try_kubectl("apply", "--dry-run=server", "--validate=strict", "-f", path)
        if done.returncode:
            refused.append(f"{os.path.relpath(path, ROOT)}: {done.stderr.strip()[-400:]}")
    assert not refused, "; ".join(refused)
    return f"{len(files())} files"


@check("cluster", "crds")
def manifests_open_with_what_they_show(h, cluster, _):
    """Each file begins with a comment, names the memory that pays, and is in the table of manifests/README.md."""
    table, wrong = read(os.path.join(MANIFESTS, "README.md")), []
    for path in files():
        text, name = read(path), os.path.relpath(path, MANIFESTS)
        comment = text.split("\napiVersion:", 1)[0]
        if not text.startswith("# ") or "memory" not in comment.lower():
            wrong.append(f"{name}: no comment that tells what it shows and which memory pays")
        if f"({name})" not in table:
            wrong.append(f"{name}: not in manifests/README.md")
    assert not wrong, "; ".join(wrong)


@check("cluster", "crds")
def manifests_are_restricted(h, cluster, _):
    """Every pod of every file, templates of other kinds' objects included, is one that a restricted namespace takes; the node
    daemon's alone is not."""
    space, refused, count = cluster.namespace("pods"), [], 0
    for path in files():
        for item in cluster.objects_of(read(path)):
            for spec in pod_specs(item) if item["kind"] != "DaemonSet" else ():
                spec = {key: value for key, value in spec.items() if key not in ("containerConcurrency", "timeoutSeconds")}
                kind = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"},
                        "spec": {"restartPolicy": "Never", **spec}}
                done = cluster.try_kubectl("-n", space, "apply", "--dry-run=server", "--validate=strict", "-f", "-",
                                           text=json.dumps(kind))
                count += 1
                if done.returncode:
                    refused.append(f"{os.path.relpath(path, ROOT)}: {done.stderr.strip()[-400:]}")
    cluster.delete(space)
    assert not refused and count, "; ".join(refused)
    return f"{count} pods"


# ---- running them ---------------------------------------------------------------------------------------

def engine_script(container):
    """Instead of the engine: read the model, then answer the health path on its port, or end if it has none."""
    ports = container.get("ports")
    if not ports:
        return f"{PLACE} && {DIGESTS}"
    where = container.get("startupProbe", container.get("readinessProbe", {})).get("httpGet", {}).get("path", "/health")
    folder = next((mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "scratch"), "/dev/shm")
    return (f"set -e; {PLACE}; {DIGESTS}; mkdir -p {folder}/www; echo ok > {folder}/www{where}; "
            f"trap exit TERM; httpd -f -p {ports[0]['containerPort']} -h {folder}/www & wait")


def fit(container, store):
    """The same container with images that are here, little memory, and our store."""
    ours = "sluice" in container["image"]
    container.update(image=IMAGE if ours else SHELL, imagePullPolicy="Never")
    if not ours:
        container["command"] = ["sh", "-c", engine_script(container)]
    for part in container.get("resources", {}).values():
        part.update({key: "300Mi" if key == "memory" else "10m" for key in ("memory", "cpu") if key in part})
    for entry in container.get("env", []):
        if entry["name"] == "AWS_ENDPOINT_URL":
            entry["value"] = store.address


def fit_spec(text, store):
    """A spec in a ConfigMap, with our store; public models are in ours too, behind keys."""
    lines = text.splitlines()
    return "\n".join(line.split("s3: {")[0] + f's3: {{endpoint: "{store.address}"}}' if "s3: {" in line else line
                     for line in lines)


def run_manifest(cluster, store, name, word, **secrets):
    """Apply a file so fitted, in a restricted namespace; the namespace."""
    space, items = cluster.namespace(word), cluster.objects_of(read(os.path.join(MANIFESTS, name)))
    public = "anonymous: true" in json.dumps(items)
    for item in items:
        item["metadata"].pop("namespace", None)
        for spec in pod_specs(item):
            for container in spec.get("initContainers", []) + spec["containers"]:
                fit(container, store)
                if public and container["image"] == IMAGE:
                    container["envFrom"] = [{"secretRef": {"name": "sluice-s3"}}]
            for volume in spec.get("volumes", []):
                if volume.get("emptyDir", {}).get("medium") == "Memory":
                    volume["emptyDir"]["sizeLimit"] = "200Mi"
        if item["kind"] == "ConfigMap":
            item["data"] = {key: fit_spec(text, store) for key, text in item["data"].items()}
    cluster.apply(space, store.credentials("sluice-s3"), *[secret(key, value) for key, value in secrets.items()], *items)
    return space


def rolled_out(cluster, space, name):
    """Wait until the Deployment is available; its pod."""
    done = cluster.try_kubectl("-n", space, "rollout", "status", f"deployment/{name}", "--timeout=90s")
    pods = cluster.get("-n", space, "pods")["items"]
    assert done.returncode == 0, cluster.story(space, pods[0]["metadata"]["name"], pods[0]) if pods else done.stderr
    return pods[0]["metadata"]["name"]


def bucket_holds(store, models, prefix):
    models.put(store, BUCKET, prefix)


@check("cluster", "store", "models", "gpus")
def manifest_for_vllm_runs(h, cluster, store, models, _):
    """init-container-vllm.yaml becomes available, and the engine's container finds the model's bytes."""
    bucket_holds(store, models, "llama-3.1-8b-instruct/")
    space = run_manifest(cluster, store, "init-container-vllm.yaml", "vllm")
    name = rolled_out(cluster, space, "vllm")
    assert digests(cluster.logs(space, name, "vllm")) == models.sha256
    cluster.delete(space)


@check("cluster", "store", "models", "gpus")
def manifest_for_sglang_runs(h, cluster, store, models, _):
    """init-container-sglang.yaml becomes available; what its spec excludes is not there."""
    bucket_holds(store, models, "qwen2.5-7b-instruct/")
    store.put(BUCKET, "qwen2.5-7b-instruct/consolidated.bin", b"the same weights a second time")
    space = run_manifest(cluster, store, "init-container-sglang.yaml", "sglang")
    name = rolled_out(cluster, space, "sglang")
    assert digests(cluster.logs(space, name, "sglang")) == models.sha256
    cluster.delete(space)


@check("cluster", "store", "models", "gpus")
def manifest_for_torch_runs(h, cluster, store, models, _):
    """init-container-torch.yaml: the Job completes, having read the model."""
    bucket_holds(store, models, "bert-large-uncased/")
    space = run_manifest(cluster, store, "init-container-torch.yaml", "torch")
    cluster.kubectl("-n", space, "wait", "--for=condition=complete", "--timeout=90s", "job/torch")
    assert digests(cluster.kubectl("-n", space, "logs", "job/torch", "-c", "main")) == models.sha256
    cluster.delete(space)


@check("cluster", "store", "models", "gpus")
def manifest_of_the_sidecar_runs(h, cluster, store, models, _):
    """sidecar.yaml becomes available, and its sidecar goes on answering."""
    bucket_holds(store, models, "llama-3.1-8b-instruct/")
    space = run_manifest(cluster, store, "sidecar.yaml", "beside")
    name = rolled_out(cluster, space, "engine")
    assert digests(cluster.logs(space, name, "engine")) == models.sha256
    answer = cluster.kubectl("get", "--raw", f"/api/v1/namespaces/{space}/pods/{name}:9464/proxy/readyz")
    assert json.loads(answer)["ready"], answer
    cluster.delete(space)


@check("cluster", "store", "models", "gpus")
def manifest_for_coreweave_runs(h, cluster, store, models, _):
    """coreweave/object-storage.yaml becomes available on a node with its labels and GPUs."""
    bucket_holds(store, models, "llama-3.1-70b-instruct/")
    space = run_manifest(cluster, store, "coreweave/object-storage.yaml", "lota")
    name = rolled_out(cluster, space, "llama-70b")
    assert digests(cluster.logs(space, name, "engine")) == models.sha256
    cluster.delete(space)


def tensors_file(h):
    """The model as a .tensors file in bucket 'tensorized', under the names of public models."""
    store, models = h.fixture("store"), h.fixture("models")
    made = os.path.join(h.disk, "model.tensors")
    h.sluice("convert", os.path.join(models.directory, "model.safetensors"), made).expect(0)
    store.make_bucket("tensorized")
    with open(made, "rb") as file:
        data = file.read()
    for name in ("EleutherAI/gpt-neo-125M/fp16/model.tensors", "EleutherAI/gpt-j-6B/fp16/model.tensors"):
        store.put("tensorized", name, data)
    return True


@check("cluster", "store", "tensors_file")
def manifest_of_a_public_model_runs(h, cluster, store, _):
    """public-model.yaml: a .tensors file becomes safetensors on the way, and verify finds it whole."""
    space = run_manifest(cluster, store, "public-model.yaml", "public")
    done = cluster.until_done(space, "public-model")
    assert done["status"]["phase"] == "Succeeded", cluster.story(space, "public-model", done)
    note = cluster.logs(space, "public-model", "main", "--tail=1").strip()
    cluster.delete(space)
    return note


@check("cluster", "store", "tensors_file", "gpus")
def manifest_with_classic_names_runs(h, cluster, store, *_):
    """coreweave/classic.yaml: a Secret with access_key, secret_key and host_url serves, on a node of its region."""
    keys = {"access_key": store.access, "secret_key": store.secret, "host_url": store.address.split("//")[1]}
    space = run_manifest(cluster, store, "coreweave/classic.yaml", "classic", **{"s3-credentials": keys})
    name = rolled_out(cluster, space, "gpt-j")
    wait_for("the engine to read it", lambda: "model.safetensors" in cluster.logs(space, name, "engine"))
    cluster.delete(space)


@check("cluster", "store", "models")
def manifest_of_the_prefetch_runs(h, cluster, store, models):
    """prefetch-job.yaml fills a claim; run again it reads nothing."""
    bucket_holds(store, models, "llama-3.1-8b-instruct/")
    folder = os.path.join(STATE, "claim")
    os.makedirs(folder, exist_ok=True)
    os.chmod(folder, 0o777)
    volume = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "e2e-claim"},
              "spec": {"capacity": {"storage": "20Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": folder},
                       "persistentVolumeReclaimPolicy": "Retain"}}
    cluster.try_kubectl("delete", "persistentvolume", "e2e-claim", "--ignore-not-found")
    cluster.apply(None, volume)
    space = run_manifest(cluster, store, "prefetch-job.yaml", "prefetch")
    cluster.kubectl("-n", space, "wait", "--for=condition=complete", "--timeout=90s", "job/sluice-prefetch")
    models.compare(os.path.join(folder, "llama"))
    cluster.delete(space)
    cluster.kubectl("delete", "persistentvolume", "e2e-claim", "--wait=false")


FIXTURES = {"crds": crds, "gpus": gpus, "tensors_file": tensors_file}
