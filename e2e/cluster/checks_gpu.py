"""A pool in memory of GPUs, as far as a node without one can show: the chart's daemon and another pod's client, each with the tests' driver.

What is shown is the way: the image that opens a driver, the folder that the chart mounts, descriptors that cross containers. What a
device does with them is not.
"""
import json
import os
import shutil
import subprocess

from checks_helm import CHART
from cluster import RESTRICTED, STATE, status_of
from fixtures import BUCKET
from harness import ROOT, Skip, check, wait_for
from node_release import MIB, Node

GPU_IMAGE = "localhost/sluice:e2e-gpu"
DRIVER, FOLDER, LIBRARIES = "gpu.sluice.test", os.path.join(STATE, "node-gpu"), os.path.join(STATE, "driver")
INSIDE = "/usr/local/nvidia/lib64"  # where the chart mounts them
ONE = {"FAKE_CUDA_DEVICES": "2"}
MODEL_BYTES = 16 * MIB


def have_driver():
    """The tests' driver as a folder of the node has it."""
    made = os.path.join(ROOT, "build", "tests", "fake_cuda", "libcuda.so.1")
    if not os.path.exists(made):
        raise Skip("no driver of the tests: scripts/test builds it")
    os.makedirs(LIBRARIES, exist_ok=True)
    shutil.copy(made, os.path.join(LIBRARIES, "libcuda.so.1"))
    os.chmod(LIBRARIES, 0o755)


def have_image(h, cluster):
    program = os.path.join(ROOT, "build-static-most", "sluice")
    if not os.path.exists(program):
        raise Skip("no program that can open a driver: scripts/build --static most --target sluice makes it")
    archive = os.path.join(h.disk, "gpu.tar")
    subprocess.run([os.path.join(ROOT, "scripts", "image"), "--archive", archive, "--target", "gpu", "--tag", GPU_IMAGE, "--program", program],
                   stdin=subprocess.DEVNULL, check=True)
    cluster.import_image(archive)


def values(store, space):
    registry, rest = GPU_IMAGE.split("/")
    name, tag = rest.split(":")
    source = {"uri": f"s3://{BUCKET}/node/on-gpu/", "s3": {"endpoint": store.address}}
    return {"image": {"registry": registry, "repository": name, "tag": tag, "pullPolicy": "Never"},
            "models": {"on-gpu": {"size": "17Mi", "spec": {"source": source, "sink": {"pool": {"device": "cuda:1"}}}}},
            "credentials": {"envFromSecret": "store"}, "tests": {"enabled": False},
            "loader": {"extraEnv": [{"name": "AWS_REGION", "value": store.region}]},
            "node": {"enabled": True, "budget": "64Mi", "heap": "384Mi", "directory": FOLDER, "port": 9465,
                     "resources": {"requests": {"cpu": "10m"}}, "readinessProbe": {"periodSeconds": 1, "failureThreshold": 3, "timeoutSeconds": 5},
                     "extraEnv": [{"name": key, "value": value} for key, value in ONE.items()],
                     "pool": {"enabled": True, "mode": "0666"},
                     "gpu": {"enabled": True, "access": "host", "driverDirectory": LIBRARIES},
                     "csi": {"driverName": DRIVER, "namespaces": [{"name": space, "pool": True}]}}}


def client(name, arguments, sees):
    """A pod with the pool's socket; sees: its GPUs, as the tests' driver is told, or None for no driver at all."""
    main = {"name": "main", "image": GPU_IMAGE, "imagePullPolicy": "Never", "securityContext": RESTRICTED, "args": arguments,
            "resources": {"requests": {"cpu": "1m", "memory": "64Mi"}, "limits": {"memory": "64Mi"}},
            "volumeMounts": [{"name": "pool", "mountPath": "/pool", "readOnly": True}]}
    volumes = [{"name": "pool", "csi": {"driver": DRIVER, "readOnly": True, "volumeAttributes": {"pool": "true"}}}]
    if sees is not None:
        main["env"] = [{"name": key, "value": value} for key, value in {**ONE, "FAKE_CUDA_VISIBLE": sees, "LD_LIBRARY_PATH": INSIDE}.items()]
        main["volumeMounts"].append({"name": "driver", "mountPath": INSIDE, "readOnly": True})
        volumes.append({"name": "driver", "hostPath": {"path": LIBRARIES, "type": "Directory"}})
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": False,
                     "securityContext": {"runAsNonRoot": True, "runAsUser": 65532}, "containers": [main], "volumes": volumes}}


class Clients:
    def __init__(self, cluster, space):
        self.cluster, self.space = cluster, space

    def end(self, name, sees, *more):
        """(exit code, what it said) of an attach."""
        arguments = ["pool", "--socket", "/pool/pool.sock", "attach", "on-gpu", *more, "--json"]
        self.cluster.apply(self.space, client(name, arguments, sees))
        pod = self.cluster.until_done(self.space, name)
        return status_of(pod, "main")["state"]["terminated"]["exitCode"], self.cluster.logs(self.space, name, "main")


@check("cluster", "store", "helm")
def pods_attach_to_a_pool_on_a_gpu(h, cluster, store, helm):
    """The chart's daemon fills a GPU through the driver of a folder of the node. A pod that sees this GPU attaches, whatever
    its number there; one that sees another is told where the model is; one without a driver is told that."""
    have_driver()
    have_image(h, cluster)
    Node.make_model(h, store, "on-gpu", MODEL_BYTES)
    space = cluster.namespace("gpu", "privileged")
    cluster.apply(space, store.credentials())
    os.makedirs(FOLDER, exist_ok=True)
    helm(space, "install", "gpu", CHART, values=values(store, space))
    cluster.kubectl("-n", space, "rollout", "status", "daemonset", "gpu-sluice-node", "--timeout=120s", timeout=150)
    wait_for("the model to be on the GPU", lambda: listed(cluster, space).get("on-gpu", {}).get("state") == "ready", 60)
    clients = Clients(cluster, space)
    code, said = clients.end("same-gpu", "1,0", "--device", "cuda:0")
    assert code == 0 and json.loads(said.splitlines()[-1])["tensors"] > 0, said
    code, said = clients.end("other-gpu", "0", "--device", "cuda:0")
    assert code == 2 and "'on-gpu' is in memory of " in said, (code, said)
    code, said = clients.end("no-driver", None, "--device", "cuda:0")
    assert code == 9 and "no NVIDIA driver" in said, (code, said)
    helm(space, "uninstall", "gpu", "--wait")
    cluster.kubectl("delete", "csidriver", DRIVER)
    cluster.delete(space)
    return said.strip()[-160:]


def listed(cluster, space):
    """Models of the daemon by name, as it tells them."""
    pods = cluster.get("-n", space, "pods", "-l", "app.kubernetes.io/component=node")["items"]
    text = cluster.kubectl("get", "--raw", f"/api/v1/namespaces/{space}/pods/{pods[0]['metadata']['name']}:9465/proxy/v1/models")
    return {model["name"]: model for model in json.loads(text)["models"]}
