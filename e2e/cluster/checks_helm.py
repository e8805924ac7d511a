"""charts/sluice from the image that was built here: install, test, upgrade, roll back, uninstall."""
import json
import os
import subprocess

from checks_pods import digests
from cluster import IMAGE, SHELL, limits
from fixtures import BUCKET
from harness import CACHE, ROOT, SLOWER, Skip, check

CHART = os.path.join(ROOT, "charts", "sluice")
# What every namespace has, and what helm and the API keep for a while.
OTHERS = ("serviceaccount/default", "configmap/kube-root-ca.crt", "event", "secret/store", "endpoint", "lease.")
# A user's pod, in a release that includes the chart's named templates.
POD = """\
apiVersion: v1
kind: Pod
metadata: {name: engine, labels: {app: engine}}
spec:
  restartPolicy: Never
  automountServiceAccountToken: false
  securityContext: {runAsNonRoot: true, runAsUser: 1000, fsGroup: 1000, seccompProfile: {type: RuntimeDefault}}
  initContainers:
    {{- include "sluice.%s" (dict "root" $ "model" "minilm") | nindent 4 }}
  containers:
    - name: main
      image: %s
      imagePullPolicy: Never
      command: [sh, -c, "cd /models/minilm && test -e .sluice/ready && find . -type f -not -path './.sluice/*' | xargs sha256sum"]
      securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
      resources: {limits: {memory: 160Mi}}
      volumeMounts:
        {{- include "sluice.volumeMount" (dict "root" $) | nindent 8 }}
  volumes:
    {{- include "sluice.volumes" (dict "root" $ "model" "minilm") | nindent 4 }}
"""


class Helm:
    """helm against the cluster, one namespace at a time."""

    def __init__(self, program, cluster):
        self.program, self.cluster = program, cluster
        self.environment = {**os.environ, "KUBECONFIG": cluster.kubeconfig}

    def __call__(self, space, *arguments, values=None, ok=True):
        more = ["--values", "-"] if values is not None else []
        done = subprocess.run([self.program, "--namespace", space, *limits(arguments), *more], env=self.environment,
                              input=json.dumps(values or {}), capture_output=True, text=True, timeout=300 * SLOWER)
        assert not ok or done.returncode == 0, f"helm {' '.join(arguments)}: {(done.stderr + done.stdout)[-1200:]}"
        return done


def helm_program():
    program = os.path.join(CACHE, "bin", "helm")
    if not os.access(program, os.X_OK):
        done = subprocess.run([os.path.join(ROOT, "scripts", "chart-tools"), "helm"], stdin=subprocess.DEVNULL)
        if done.returncode:
            raise Skip("no helm, and it cannot be built")
    return program


def helm(h):
    return Helm(helm_program(), h.fixture("cluster"))


def values_of(store, **more):
    repository, tag = IMAGE.rsplit(":", 1)
    registry, name = repository.split("/")
    spec = {"source": {"uri": f"s3://{BUCKET}/minilm/", "s3": {"endpoint": store.address}}}
    return {"image": {"registry": registry, "repository": name, "tag": tag, "pullPolicy": "Never"},
            "models": {"minilm": {"size": "100Mi", "spec": spec}}, "credentials": {"envFromSecret": "store"},
            "loader": {"heap": "64Mi"}, **more}


def engine(way):
    return POD % (way, SHELL)


@check("cluster", "store", "models", "helm")
def chart_puts_a_loader_before_an_engine(h, cluster, store, models, helm):
    """helm install: the named template's init container fills a user's pod; helm test passes; uninstall leaves nothing."""
    space = cluster.namespace("chart")
    cluster.apply(space, store.credentials())
    before = everything(cluster, space)
    helm(space, "install", "models", CHART, values=values_of(store, extraObjects=[engine("initContainer")]))
    done = cluster.until_done(space, "engine")
    assert done["status"]["phase"] == "Succeeded", cluster.story(space, "engine", done)
    assert digests(cluster.logs(space, "engine", "main")) == models.sha256
    tested = helm(space, "test", "models", "--logs", "--timeout", "90s")
    assert "Phase:          Succeeded" in tested.stdout, tested.stdout
    helm(space, "uninstall", "models", "--wait")
    cluster.kubectl("-n", space, "wait", "--for=delete", "pod/engine", "--timeout=60s")
    left = everything(cluster, space) - before
    # Pods and ConfigMaps of tests are hooks: they go with the next test, or by hand.
    assert all("-test-load" in name for name in left), f"left behind: {sorted(left)}"
    cluster.delete(space)
    return f"left after uninstall: {', '.join(sorted(left)) or 'nothing'}"


@check("cluster", "store", "models", "helm")
def chart_puts_a_sidecar_beside_an_engine(h, cluster, store, models, helm):
    """The named template of the sidecar holds a user's main container back until the model is there."""
    space = cluster.namespace("beside")
    cluster.apply(space, store.credentials())
    helm(space, "install", "models", CHART, values=values_of(store, extraObjects=[engine("sidecar")]))
    done = cluster.until_done(space, "engine")
    assert done["status"]["phase"] == "Succeeded", cluster.story(space, "engine", done)
    assert digests(cluster.logs(space, "engine", "main")) == models.sha256
    cluster.delete(space)


@check("cluster", "store", "models", "helm")
def chart_upgrades_and_rolls_back(h, cluster, store, models, helm):
    """helm upgrade brings a new model and runs the prefetch Job; rollback brings the old specs back."""
    space, claim = cluster.namespace("upgrade"), {"emptyDir": {"medium": "Memory", "sizeLimit": "200Mi"}}
    cluster.apply(space, store.credentials())
    first = values_of(store)
    helm(space, "install", "models", CHART, values=first)
    specs = json.loads(cluster.kubectl("-n", space, "get", "configmap", "models-sluice-specs", "-o", "json"))["data"]
    limits = {"requests": {"memory": "200Mi"}, "limits": {"memory": "300Mi"}}
    second = values_of(store, prefetch={"enabled": True, "volume": claim, "resources": limits})
    second["models"]["config"] = {"size": "1Mi", "spec": {"source": {"uri": f"s3://{BUCKET}/minilm/config.json",
                                                                     "s3": {"endpoint": store.address}}}}
    helm(space, "upgrade", "models", CHART, "--wait", values=second)
    jobs = cluster.get("-n", space, "jobs")["items"]
    assert len(jobs) == 1, [job["metadata"]["name"] for job in jobs]
    name = jobs[0]["metadata"]["name"]
    cluster.kubectl("-n", space, "wait", "--for=condition=complete", "--timeout=90s", f"job/{name}")
    now = json.loads(cluster.kubectl("-n", space, "get", "configmap", "models-sluice-specs", "-o", "json"))["data"]
    assert "config.yaml" in now and "config.yaml" not in specs, (list(specs), list(now))
    helm(space, "rollback", "models", "1", "--wait")
    now = json.loads(cluster.kubectl("-n", space, "get", "configmap", "models-sluice-specs", "-o", "json"))["data"]
    assert now == specs, "the specs are not those of revision 1"
    assert not cluster.get("-n", space, "jobs")["items"], "the prefetch Job is still there"
    helm(space, "uninstall", "models", "--wait")
    cluster.delete(space)


@check("cluster", "store", "crds", "helm")
def chart_installs_with_every_switch(h, cluster, store, _, helm):
    """Monitors, rules, dashboard, network policy and KServe's container are taken by the server; then nothing is left."""
    space = cluster.namespace("switches")
    cluster.apply(space, store.credentials())
    before, mapped = everything(cluster, space), set(cluster.kubectl("get", "clusterstoragecontainers", "-o", "name").split())
    policy = {"enabled": True, "egress": {"stores": [{"to": [{"ipBlock": {"cidr": "10.244.0.1/32"}}], "ports": [store.port]}]}}
    values = values_of(store, networkPolicy=policy, tests={"enabled": False},
                       metrics={"podMonitor": {"enabled": True}, "rules": {"enabled": True}, "dashboard": {"enabled": True}},
                       kserve={"clusterStorageContainer": {"enabled": True}})
    helm(space, "install", "models", CHART, values=values)
    made = everything(cluster, space) - before
    for word in ("podmonitor", "prometheusrule", "networkpolicy", "configmap"):
        assert any(name.startswith(word) for name in made), f"no {word} in {sorted(made)}"
    helm(space, "uninstall", "models", "--wait")
    left = everything(cluster, space) - before
    assert not left, f"left behind: {sorted(left)}"
    assert set(cluster.kubectl("get", "clusterstoragecontainers", "-o", "name").split()) == mapped
    cluster.delete(space)
    return f"{len(made)} objects"


@check("cluster", "helm")
def chart_refuses_a_misspelt_value(h, cluster, helm):
    """A value that does not exist is refused by its name, before anything is made."""
    space = cluster.namespace("misspelt")
    done = helm(space, "install", "models", CHART, values={"imagee": {}}, ok=False)
    assert done.returncode and "imagee" in done.stderr, done.stderr[-500:]
    cluster.delete(space)


def everything(cluster, space):
    """Names of all objects in a namespace, whatever their kind."""
    kinds = cluster.kubectl("api-resources", "--verbs=list", "--namespaced", "-o", "name").split()
    found = cluster.kubectl("-n", space, "get", ",".join(kinds), "--ignore-not-found", "-o", "name").split()
    return {name for name in found if not name.startswith(OTHERS) and "sh.helm.release" not in name}


FIXTURES = {"helm": helm}
