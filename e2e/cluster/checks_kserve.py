"""KServe's contract, by pods shaped as its controller shapes them.

What its webhook does was observed with the real one: an init container 'storage-initializer' is made from the
ClusterStorageContainer's, its command, environment, image and security context kept, args set to sources and
destinations, resources defaulted, credentials added, and the end of its log taken as the message of a failure.
"""
import glob
import os
import subprocess

from checks_helm import CHART
from checks_pods import digests
from cluster import IMAGE, RESTRICTED, ends, shell
from fixtures import BUCKET
from harness import ROOT, check

URI = f"s3://{BUCKET}/minilm"
DIGESTS = "cd {} && find . -type f | sort | while read -r f; do sha256sum \"$f\"; done"
# What is absent from the ClusterStorageContainer comes from KServe's own configuration.
DEFAULTS = {"requests": {"cpu": "100m", "memory": "100Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}}


def storage_containers(cluster, store, helm):
    """{where it is from: container} of every ClusterStorageContainer that we ship."""
    texts = {}
    for path in glob.glob(os.path.join(ROOT, "manifests", "kserve", "*.yaml")):
        with open(path, encoding="utf-8") as file:
            texts[os.path.relpath(path, ROOT)] = file.read()
    texts["charts/sluice"] = subprocess.run(
        [helm.program, "template", "models", CHART, "--show-only", "templates/kserve.yaml",
         "--set", "kserve.clusterStorageContainer.enabled=true,kserve.clusterStorageContainer.force=true"],
        capture_output=True, text=True, check=True).stdout
    found = {}
    for origin, text in texts.items():
        for item in cluster.objects_of(text):
            if item["kind"] == "ClusterStorageContainer":
                assert item["spec"]["container"]["name"] == "storage-initializer", origin
                assert "args" not in item["spec"]["container"], f"{origin}: args are KServe's"
                found[origin] = item["spec"]["container"]
    return found


def credentials(store):
    """What KServe adds to the environment for an S3 secret on the service account, and for every model."""
    def key(name):
        return {"name": name, "valueFrom": {"secretKeyRef": {"name": "store", "key": name}}}
    plain = {"S3_USE_HTTPS": "0", "S3_ENDPOINT": store.address.split("//")[1], "AWS_ENDPOINT_URL": store.address,
             "AWS_DEFAULT_REGION": store.region, "HF_HUB_ENABLE_HF_TRANSFER": "1", "HF_XET_HIGH_PERFORMANCE": "1",
             "HF_XET_NUM_CONCURRENT_RANGE_GETS": "8"}
    return [key("AWS_ACCESS_KEY_ID"), key("AWS_SECRET_ACCESS_KEY"),
            *({"name": name, "value": value} for name, value in plain.items())]


def kserve_pod(container, store, arguments, *, volume="kserve-provision-location", size="256Mi"):
    """The predictor's pod. The memory volume is the InferenceService's own, under the name that KServe would use."""
    container = {**container, "image": IMAGE, "imagePullPolicy": "Never", "args": arguments,
                 "env": [*container.get("env", []), *credentials(store)], "resources": container.get("resources", DEFAULTS),
                 "terminationMessagePolicy": "FallbackToLogsOnError",
                 "volumeMounts": [{"name": volume, "mountPath": "/mnt/models"}]}
    limits = container["resources"].setdefault("limits", {})
    limits["memory"] = "1Gi"
    container["resources"]["requests"] = {"cpu": "10m", "memory": "100Mi"}
    main = shell(DIGESTS.format("/mnt/models"), memory="300Mi")
    main.update(name="kserve-container", volumeMounts=[{"name": volume, "mountPath": "/mnt/models", "readOnly": True}],
                securityContext={**RESTRICTED, "runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}})
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "predictor"},
            "spec": {"restartPolicy": "Never", "initContainers": [container], "containers": [main],
                     "volumes": [{"name": volume, "emptyDir": {"medium": "Memory", "sizeLimit": size}}]}}


@check("cluster", "store", "models", "helm", "crds")
def kserve_finds_its_models(h, cluster, store, models, helm, _):
    """One URI into /mnt/models, in a restricted namespace: exactly the objects, nothing beside them, read-only for the engine."""
    containers = storage_containers(cluster, store, helm)
    for origin, container in containers.items():
        space = cluster.namespace("kserve")
        cluster.apply(space, store.credentials(), kserve_pod(container, store, [URI, "/mnt/models"]))
        done = cluster.until_done(space, "predictor")
        assert done["status"]["phase"] == "Succeeded", f"{origin}: {cluster.story(space, 'predictor', done)}"
        assert digests(cluster.logs(space, "predictor", "kserve-container")) == models.sha256, origin
        cluster.delete(space)
    return ", ".join(containers)


@check("cluster", "store", "models", "helm", "crds")
def kserve_finds_several_models(h, cluster, store, models, helm, _):
    """Pairs of URIs and places, as KServe gives them for storageUris."""
    container = storage_containers(cluster, store, helm)["charts/sluice"]
    space = cluster.namespace("pairs")
    pairs = [URI, "/mnt/models/base", f"s3://{BUCKET}/minilm/config.json", "/mnt/models/adapter"]
    cluster.apply(space, store.credentials(), kserve_pod(container, store, pairs, volume="mnt-models"))
    done = cluster.until_done(space, "predictor")
    assert done["status"]["phase"] == "Succeeded", cluster.story(space, "predictor", done)
    expected = {f"base/{name}": digest for name, digest in models.sha256.items()}
    expected["adapter/config.json"] = models.sha256["config.json"]
    assert digests(cluster.logs(space, "predictor", "kserve-container")) == expected
    cluster.delete(space)


@check("cluster", "store", "models", "helm", "crds")
def kserve_is_told_why(h, cluster, store, models, helm, _):
    """A failure is exit code 1 and one line that says what was wrong: the service's lastFailureInfo."""
    container = storage_containers(cluster, store, helm)["charts/sluice"]
    space = cluster.namespace("why")
    cluster.apply(space, store.credentials(),
                  kserve_pod(container, store, [f"s3://{BUCKET}/no-such-model", "/mnt/models"]))
    done = cluster.until_done(space, "predictor")
    end = ends(done, "storage-initializer")[0]
    message = end.message.strip()
    assert end.code == 1, end
    assert "no-such-model" in message.splitlines()[-1], message
    cluster.delete(space)
    return message.splitlines()[-1]


@check("cluster", "store", "models", "helm", "crds")
def kserve_volume_too_small_is_said(h, cluster, store, models, helm, _):
    """A memory volume below the model: refused before a byte, with both numbers."""
    container = storage_containers(cluster, store, helm)["charts/sluice"]
    space = cluster.namespace("small")
    cluster.apply(space, store.credentials(), kserve_pod(container, store, [URI, "/mnt/models"], size="64Mi"))
    done = cluster.until_done(space, "predictor")
    end = ends(done, "storage-initializer")[0]
    assert end.code == 1 and "87.4 MiB" in end.message and "64.0 MiB" in end.message, end
    cluster.delete(space)
