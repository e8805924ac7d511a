"""The node daemon and its CSI driver, from the chart, for the checks of volumes, tenants and labels.

One daemon with five small models serves them all; what it fetches goes through a line that counts. The machine's own view
tells what memory and mounts there are.
"""
import base64
import copy
import http.server
import json
import os
import shutil
import socket
import threading
import urllib.parse

from checks_helm import CHART
from cluster import ADDRESS, IMAGE, RESTRICTED, RESTRICTED_POD, SHELL, STATE, status_of
from fixtures import BUCKET, SlowLine
from harness import wait_for
from models import Objects, write_big

DRIVER = "csi.sluice.dev"
TAINT = f"{DRIVER}/agent-not-ready"
FOLDER = os.path.join(STATE, "node")  # e2e/cluster/down unmounts and removes what is below STATE
MIB = 1 << 20
MODEL_BYTES, MODELS = 16 * MIB, ("alpha", "beta", "gamma", "delta", "epsilon")
LARGE_BYTES, BUDGET = 80 * MIB, "128Mi"
# Beside the tensors: headers, manifests, journals.
BESIDE_BYTES = MIB
AUDIENCE, ROLE = "sts.amazonaws.com", "arn:aws:iam::123456789012:role/tenant"
SHOWN = "cd /model && find . -type f -not -path './.sluice/*' | sort | while read -r f; do sha256sum \"$f\"; done"
STAYS = f"{SHOWN}; stat -c device=%d /model; touch /model/x 2>&1; echo writes=$?; exec sleep 3600"


class Sts:
    """AssumeRoleWithWebIdentity for tokens of service accounts: whoever is in `may` gets the store's keys."""

    def __init__(self, store):
        self.may, self.asked = set(), []
        sts = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                form = urllib.parse.parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                status, text = sts.answer(store, form)
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_):
                pass
        server = http.server.ThreadingHTTPServer((ADDRESS, 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.address = f"http://store.test:{server.server_port}"

    def answer(self, store, form):
        payload = form["WebIdentityToken"][0].split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        self.asked.append(claims["sub"])
        if claims["sub"] not in self.may or claims["aud"] != [AUDIENCE] or form["RoleArn"] != [ROLE]:
            return 403, "<ErrorResponse><Error><Code>AccessDenied</Code><Message>not this account</Message></Error></ErrorResponse>"
        keys = {"AccessKeyId": store.access, "SecretAccessKey": store.secret, "SessionToken": "of-the-role",
                "Expiration": "2099-01-01T00:00:00Z"}
        return 200, "<R><Credentials>" + "".join(f"<{key}>{value}</{key}>" for key, value in keys.items()) + "</Credentials></R>"


class Node:
    """The release, the namespaces that its config knows, and what it serves."""

    def __init__(self, h, cluster, store, helm):
        self.h, self.store, self.cluster, self.helm, self.count = h, store, cluster, helm, 0
        self.line = SlowLine(store, 1 << 30)
        self.objects = {name: self.make_model(h, store, name, MODEL_BYTES) for name in MODELS}
        self.make_model(h, store, "large", LARGE_BYTES)
        self.own = cluster.namespace("node", "privileged")
        self.sts = Sts(store)
        self.spaces = [cluster.namespace(word) for word in ("csi", "narrow", "strange", "keys", "others", "tokens", "pool", "silent")]
        self.space, self.narrow, self.strange, self.keys, self.other_keys, self.tokens, self.pooled, self.silent = self.spaces
        self.silence = socket.create_server((ADDRESS, 0), backlog=1024)  # it takes connections and says nothing
        self.silent_address = f"http://store.test:{self.silence.getsockname()[1]}/"
        cluster.apply(self.own, store.credentials())
        os.makedirs(FOLDER, exist_ok=True)
        self.values = self.make_values()
        helm(self.own, "install", "models", CHART, values=self.values)
        self.rolled_out()

    def rolled_out(self):
        """Every model is on every node; helm --wait is content with a tenth of the nodes less."""
        self.cluster.kubectl("-n", self.own, "rollout", "status", "daemonset", "models-sluice-node", "--timeout=120s", timeout=150)
        wait_for("the daemon to be ready", self.ready, 60)

    def new_model(self, name):
        """One more in the store, which the config does not know."""
        self.objects[name] = self.make_model(self.h, self.store, name, MODEL_BYTES)

    def load_here(self, name):
        """The same model, loaded by the program on the machine, over the same line."""
        to = os.path.join(self.h.memory, f"here-{name}")
        env = {**self.store.env(), "AWS_ENDPOINT_URL": f"http://{ADDRESS}:{self.line.port}"}
        self.h.sluice("load", f"s3://{BUCKET}/node/{name}/", "--to", to, env=env).expect(0)
        shutil.rmtree(to)

    @staticmethod
    def make_model(h, store, name, size):
        folder = h.directory(f"node-{name}")
        write_big(os.path.join(folder, "model.safetensors"), size)
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
            json.dump({"name": name}, file)
        found = Objects(folder)
        found.put(store, BUCKET, f"node/{name}/")
        return found

    def make_values(self):
        repository, tag = IMAGE.rsplit(":", 1)
        registry, name = repository.split("/")
        models = {model: {"size": "17Mi", "spec": {"source": {"uri": f"s3://{BUCKET}/node/{model}/",
                                                             "s3": {"endpoint": self.line.address}}}} for model in MODELS}
        spaces = [{"name": self.space, "uriPrefixes": [f"s3://{BUCKET}/node/"]}, {"name": self.narrow, "models": ["al*"]},
                  {"name": self.own}, {"name": self.pooled, "pool": True},
                  {"name": self.silent, "uriPrefixes": [self.silent_address]},
                  *({"name": name, "uriPrefixes": [f"s3://{BUCKET}/node/"], "credentials": ["secret"]}
                    for name in (self.keys, self.other_keys)),
                  {"name": self.tokens, "uriPrefixes": [f"s3://{BUCKET}/node/"], "credentials": ["token"], "roleArn": ROLE}]
        return {"image": {"registry": registry, "repository": name, "tag": tag, "pullPolicy": "Never"}, "models": models,
                "credentials": {"envFromSecret": "store"},
                "loader": {"extraEnv": [{"name": "AWS_ENDPOINT_URL", "value": self.line.address},
                                        {"name": "AWS_ENDPOINT_URL_STS", "value": self.sts.address},
                                        {"name": "AWS_REGION", "value": self.line.region}]},
                "node": {"enabled": True, "budget": BUDGET, "heap": "128Mi", "directory": FOLDER,
                         "resources": {"requests": {"cpu": "10m"}},
                         "readinessProbe": {"periodSeconds": 1, "failureThreshold": 3, "timeoutSeconds": 5},
                         "labels": {"enabled": True, "everySeconds": 1, "startupTaint": TAINT},
                         "pool": {"enabled": True, "mode": "0666", "uriPrefixes": [f"s3://{BUCKET}/node/"]},
                         "csi": {"driverName": DRIVER, "waitSeconds": 5, "namespaces": spaces,
                                 "tokenRequests": [{"audience": AUDIENCE}],
                                 "storageClass": {"create": True, "name": "models-delta", "parameters": {"model": "delta"}}}}}

    # ---- pods -----------------------------------------------------------------------------------

    def pod(self, name, attributes, script, read_only=True, volume=None, secret=None, account=None, main_of=None):
        """One that a restricted namespace takes, with a model at /model; attributes None: without a volume. secret: of
        nodePublishSecretRef; account: the pod's service account; main_of: keys of its container."""
        main = {"name": "main", "image": SHELL, "imagePullPolicy": "Never", "securityContext": RESTRICTED,
                "command": ["sh", "-c", script],
                "resources": {"requests": {"cpu": "1m", "memory": "8Mi"}, "limits": {"memory": "16Mi"}}}
        spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": False,
                "securityContext": RESTRICTED_POD, "containers": [main]}
        main.update(main_of or {})
        if account:
            spec["serviceAccountName"] = account
        source = copy.deepcopy(volume) or {"csi": {"driver": DRIVER, "readOnly": read_only, "volumeAttributes": attributes}}
        if secret:
            source["csi"]["nodePublishSecretRef"] = {"name": secret}
        if attributes is not None or volume:
            main.setdefault("volumeMounts", [{"name": "model", "mountPath": "/model", "readOnly": True}])
            spec["volumes"] = [{"name": "model", **source}]
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}

    def start(self, space, attributes, script=STAYS, **more):
        """A new pod; its name."""
        self.count += 1
        name = f"reader-{self.count}"
        self.cluster.apply(space, self.pod(name, attributes, script, **more))
        return name

    def until_said(self, space, name, words, seconds=60):
        """What the pod printed, as soon as the words are in it."""
        self.cluster.until(space, name, "the pod to run", lambda pod: status_of(pod, "main").get("containerID"), seconds)
        wait_for(f"{name} to say {words}", lambda: words in self.cluster.logs(space, name, "main"), seconds)
        return self.cluster.logs(space, name, "main")

    def until_refused(self, space, name, *words, seconds=60):
        """The event that says why the volume cannot be mounted."""
        def message():
            return " | ".join(event["message"] for event in self.cluster.events(space, name) if event["reason"] == "FailedMount")
        wait_for(f"an event of {name} that says {words}", lambda: all(word in message() for word in words), seconds)
        return message()

    def right(self, space, name, model):
        """The pod read the model's bytes, from the one tmpfs, and could not write."""
        said = self.until_said(space, name, "writes=")
        pairs = (line.split("  ./", 1) for line in said.splitlines() if "  ./" in line)
        assert {file: digest for digest, file in pairs} == self.objects[model].sha256, said[-800:]
        assert f"device={os.stat(self.memory).st_dev}" in said, f"not the node's memory: {said[-300:]}"
        assert "writes=0" not in said, said[-300:]

    def read_again(self, space, name, model):
        """A running pod reads its volume once more."""
        said = self.cluster.kubectl("-n", space, "exec", name, "--", "sh", "-c", SHOWN)
        pairs = (line.split("  ./", 1) for line in said.splitlines())
        assert {file: digest for digest, file in pairs} == self.objects[model].sha256, said[-800:]

    # ---- the node -------------------------------------------------------------------------------

    @property
    def memory(self):
        return os.path.join(FOLDER, "memory")

    @property
    def model_bytes(self):
        """Of the config's models."""
        found = [self.objects[model] for model in MODELS]
        return sum(os.path.getsize(os.path.join(model.directory, name)) for model in found for name in model.names)

    def daemon(self):
        """The daemon's pod that is not on its way out."""
        found = self.cluster.get("-n", self.own, "pods", "-l", "app.kubernetes.io/component=node")["items"]
        found = [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]
        return found[0] if found else None

    def ready(self):
        pod = self.daemon()
        return pod and status_of(pod, "sluice-node").get("ready")

    def mounts(self):
        """Targets below the kubelet's folder where the node's memory is mounted."""
        device = os.stat(self.memory).st_dev
        want = f"{os.major(device)}:{os.minor(device)}"
        with open("/proc/self/mountinfo", encoding="utf-8") as file:
            lines = [line.split() for line in file]
        return [line[4] for line in lines if line[2] == want and line[4].startswith("/var/lib/kubelet/")]

    def first_byte(self, attributes, command):
        """Seconds from a pod's creation to the end of its command, by the machine's clock, which pods see, too."""
        script = f"{command} > /dev/null; read -r now rest < /proc/uptime; echo at=$now; exec sleep 3600"
        with open("/proc/uptime", encoding="utf-8") as file:
            begin = float(file.read().split()[0])
        name = self.start(self.space, attributes, script)
        return float(self.until_said(self.space, name, "at=").split("at=")[1].split()[0]) - begin

    def delete_pods(self, space):
        self.cluster.kubectl("-n", space, "delete", "pods", "--all", "--wait=false", "--grace-period=0")

    def delete_namespaces(self):
        for space in (self.own, *self.spaces):
            self.cluster.delete(space)

    def delete_all(self, *spaces):
        """Pods of these namespaces, until nothing of theirs is mounted."""
        for space in spaces:
            self.delete_pods(space)
        wait_for("their mounts to go", lambda: not self.mounts(), 90)


def node(h):
    return Node(h, *(h.fixture(name) for name in ("cluster", "store", "helm")))


FIXTURES = {"node": node}
