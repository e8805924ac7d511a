"""The cluster as checks see it: namespaces, objects, pods and what became of their containers.

Everything goes through kubectl, as an operator's commands do, but for what is asked over and over: one pod, its events, its
logs, and plain objects that are made. A pod's containers are asked for by name; what a container said at its end is an End.
"""
import http.client
import json
import os
import re
import ssl
import subprocess
import time
from collections import namedtuple

from harness import CACHE, ROOT, SLOWER, wait_for

FOLDER = os.path.join(ROOT, "e2e", "cluster")
PARTS = os.path.join(CACHE, "cluster")
STATE = "/var/tmp/sluice-cluster"
ADDRESS = "10.244.0.1"  # the machine, as pods see it; store.test is its name
API_PORT = 16443
IMAGE = "localhost/sluice:e2e"
SHELL = "localhost/shell:1"

SLOW_SECONDS = 20  # a wait that is worth a line in the log, though it came to a good end

# Kinds that need no description of the API to be asked for, which a kubectl first reads.
PLAIN = {"Namespace": "namespaces", "Pod": "pods", "Secret": "secrets"}

End = namedtuple("End", "code reason message")

RESTRICTED = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
RESTRICTED_POD = {"runAsNonRoot": True, "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532,
                  "seccompProfile": {"type": "RuntimeDefault"}}


def limits(arguments):
    """Those of a command, its time-outs (60s, --timeout=60s) as long as this machine may take."""
    return [re.sub(r"^(--timeout=|)(\d+)s$", lambda found: f"{found[1]}{int(found[2]) * SLOWER}s", word) for word in arguments]


class Cluster:
    def __init__(self, archive):
        self.kubeconfig = os.path.join(STATE, "admin.kubeconfig")
        self.program = os.path.join(PARTS, "bin", "kubectl")
        self.serial = 0
        self.import_image(archive)

    def import_image(self, archive):
        self.ctr("images", "import", archive)

    def ctr(self, *arguments):
        command = [os.path.join(PARTS, "bin", "ctr"), "-a", os.path.join(STATE, "containerd.sock"), "-n", "k8s.io"]
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL,
                              timeout=300 * SLOWER)
        assert done.returncode == 0, f"ctr {' '.join(arguments)}: {done.stderr.strip()[-500:]}"
        return done.stdout

    def try_kubectl(self, *arguments, text=None, timeout=120):
        """The finished process: for what may be refused."""
        return subprocess.run([self.program, "--kubeconfig", self.kubeconfig, *limits(arguments)], input=text or "",
                              capture_output=True, text=True, timeout=timeout * SLOWER)

    def kubectl(self, *arguments, text=None, timeout=120):
        done = self.try_kubectl(*arguments, text=text, timeout=timeout)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr.strip()[-800:]}"
        return done.stdout

    def get(self, *arguments):
        return json.loads(self.kubectl("get", "-o", "json", *arguments))

    def ask(self, path, method="GET", body=None):
        """What the API answers, without a kubectl."""
        keys = os.path.join(STATE, "keys")
        trust = ssl.create_default_context(cafile=os.path.join(keys, "ca.crt"))
        trust.load_cert_chain(os.path.join(keys, "admin.crt"), os.path.join(keys, "admin.key"))
        api = http.client.HTTPSConnection(ADDRESS, API_PORT, context=trust, timeout=120 * SLOWER)
        try:
            api.request(method, path, body, {"Content-Type": "application/apply-patch+yaml"} if body else {})
            answer = api.getresponse()
            text = answer.read().decode(errors="replace")
        finally:
            api.close()
        assert answer.status in (200, 201), f"{path}: {answer.status} {text[-800:]}"
        return text

    # ---- namespaces and objects -----------------------------------------------------------------

    def namespace(self, word, level="restricted"):
        """A new one whose pods must meet a Pod Security level; its name."""
        self.serial += 1
        name = f"e2e-{os.getpid()}-{self.serial}-{word}"
        labels = {"pod-security.kubernetes.io/enforce": level, "sluice-e2e": "true"}
        self.apply(None, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
        wait_for(f"the default service account of {name}",
                 lambda: self.try_kubectl("-n", name, "get", "serviceaccount", "default").returncode == 0, 30)
        return name

    def apply(self, namespace, *objects):
        if all(item["kind"] in PLAIN for item in objects):
            for item in objects:
                place = f"namespaces/{namespace}/{PLAIN[item['kind']]}" if namespace else PLAIN[item["kind"]]
                self.ask(f"/api/v1/{place}/{item['metadata']['name']}?fieldManager=e2e&fieldValidation=Strict", "PATCH", json.dumps(item))
            return ""
        where = ["-n", namespace] if namespace else []
        return self.kubectl(*where, "apply", "-f", "-",
                            text=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))

    def delete(self, namespace):
        """Asked for; nobody waits for it."""
        self.kubectl("delete", "namespace", namespace, "--wait=false")

    def objects_of(self, text):
        """The objects of a manifest, as kubectl reads it, without asking the server about them."""
        printed = self.kubectl("create", "--dry-run=client", "--validate=false", "-o", "json", "-f", "-", text=text)
        reader, at, found = json.JSONDecoder(), 0, []
        while at < len(printed.rstrip()):
            item, at = reader.raw_decode(printed, at)
            at += len(printed[at:]) - len(printed[at:].lstrip())
            found += item["items"] if item["kind"] == "List" else [item]
        return found

    # ---- pods -----------------------------------------------------------------------------------

    def pod(self, namespace, name):
        return json.loads(self.ask(f"/api/v1/namespaces/{namespace}/pods/{name}"))

    def until(self, namespace, name, what, probe, seconds=60):
        """The pod, as soon as probe(pod) is true."""
        begin = time.monotonic()
        end = begin + seconds * SLOWER
        while True:
            pod = self.pod(namespace, name)
            if probe(pod):
                if time.monotonic() - begin > SLOW_SECONDS * SLOWER:
                    print(f"     slow: {what} after {time.monotonic() - begin:.0f} s: {self.story(namespace, name, pod)}")
                return pod
            assert time.monotonic() < end, f"{what}: not within {seconds * SLOWER} s: {self.story(namespace, name, pod)}"
            time.sleep(0.2 * SLOWER)

    def until_done(self, namespace, name, seconds=120):
        """The pod when all its containers have ended."""
        return self.until(namespace, name, "the pod's end", lambda pod: pod["status"].get("phase") in
                          ("Succeeded", "Failed"), seconds)

    def story(self, namespace, name, pod):
        """What an operator would look at, shortened, for a failure's message."""
        states = {status["name"]: status.get("state") or status.get("lastState") for status in statuses(pod)}
        events = [f"{event['lastTimestamp']} {event['reason']}: {event['message']}" for event in self.events(namespace, name)]
        return f"{pod['status'].get('phase')} {json.dumps(states)[:1200]} {'; '.join(events[-8:])[:1600]}"

    def logs(self, namespace, name, container, *more):
        if not more:
            return self.ask(f"/api/v1/namespaces/{namespace}/pods/{name}/log?container={container}")
        return self.kubectl("-n", namespace, "logs", name, "-c", container, *more)

    def events(self, namespace, name):
        return json.loads(self.ask(f"/api/v1/namespaces/{namespace}/events?fieldSelector=involvedObject.name%3D{name}"))["items"]

    def kill(self, pod, container, signal="SIGKILL"):
        """The container's first process, from outside, as the kernel does when memory runs out."""
        identity = status_of(pod, container)["containerID"].removeprefix("containerd://")
        self.ctr("tasks", "kill", "--signal", signal, identity)


def statuses(pod):
    status = pod["status"]
    return status.get("initContainerStatuses", []) + status.get("containerStatuses", [])


def status_of(pod, container):
    """What is known of one container; empty before it was made."""
    return next((status for status in statuses(pod) if status["name"] == container), {})


def ends(pod, container):
    """How it ended: the present end and the one before, the latest first."""
    status = status_of(pod, container)
    found = [status.get(key, {}).get("terminated") for key in ("state", "lastState")]
    return [End(end["exitCode"], end.get("reason", ""), end.get("message", "")) for end in found if end]


# ---- objects --------------------------------------------------------------------------------------------

def secret(name, values):
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": values}


def container(name, image, *, args=(), command=(), env=None, memory="64Mi", **more):
    """One that a restricted namespace takes."""
    made = {"name": name, "image": image, "imagePullPolicy": "Never", "securityContext": RESTRICTED,
            "resources": {"limits": {"memory": memory}, "requests": {"cpu": "10m", "memory": memory}},
            "volumeMounts": [{"name": "models", "mountPath": "/models"}]}
    if args:
        made["args"] = list(args)
    if command:
        made["command"] = list(command)
    if env:
        made["env"] = [{"name": key, "value": value} for key, value in env.items()]
    made.update(more)
    return made


def loader(uri, store, *arguments, memory="256Mi", **more):
    """sluice as an init container that loads one URI into /models/model; credentials from the secret 'store'."""
    return container("load", IMAGE, args=["load", uri, "--to", "/models/model", *arguments], memory=memory,
                     env={"AWS_ENDPOINT_URL": store.address, "AWS_REGION": store.region},
                     envFrom=[{"secretRef": {"name": "store"}}], **more)


def shell(script, **more):
    return container("main", SHELL, command=["sh", "-c", script], **more)


def pod(name, init, main, *, size="256Mi", policy="Never", security=None, **more):
    """Init containers, then main, around one memory volume."""
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {"restartPolicy": policy, "terminationGracePeriodSeconds": 5, "automountServiceAccountToken": False,
                     "securityContext": security or RESTRICTED_POD, "initContainers": init, "containers": [main],
                     "volumes": [{"name": "models", "emptyDir": {"medium": "Memory", "sizeLimit": size}}], **more}}
