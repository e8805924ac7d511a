"""The chart's caches in a real cluster: pods that load at once, and what the store sends for them."""
import json
import os
import re
import shutil
import subprocess

import image
from checks_helm import CHART
from cluster import ADDRESS, IMAGE, SHELL, STATE
from fixtures import BUCKET, SlowLine
from harness import check, need_program

NGINX, ZONE = "localhost/nginx:1", "zone-a"
MIB, PODS = 48, 4
# Slow enough that the pods, which the kubelet starts one by one, load at the same time.
BYTES_PER_SECOND = 48 << 20

JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: fan}
spec:
  parallelism: %d
  completions: %d
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      automountServiceAccountToken: false
      securityContext: {runAsNonRoot: true, runAsUser: 65532, runAsGroup: 65532, fsGroup: 65532, seccompProfile: {type: RuntimeDefault}}
      initContainers:
        {{- include "sluice.initContainer" (dict "root" $ "model" "m") | nindent 8 }}
      containers:
        - name: main
          image: %s
          imagePullPolicy: Never
          command: [sh, -c, sha256sum /models/m/m.bin]
          securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
          resources: {limits: {memory: 160Mi}}
          volumeMounts:
            {{- include "sluice.volumeMount" (dict "root" $) | nindent 12 }}
      volumes:
        {{- include "sluice.volumes" (dict "root" $ "model" "m") | nindent 8 }}
"""


def make_nginx(h):
    """An image of this machine's nginx and what it is linked with, as an archive."""
    program, root = need_program("nginx", "/usr/sbin/nginx"), h.directory("nginx-image")
    linked = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    for path in [program, "/etc/ssl/certs/ca-certificates.crt", *re.findall(r"(/\S+) \(0x", linked)]:
        to = os.path.join(root, path.lstrip("/"))
        os.makedirs(os.path.dirname(to), exist_ok=True)
        shutil.copy(path, to)
    archive = os.path.join(h.disk, "nginx.tar")
    image.make(root, archive, NGINX, env=[f"PATH={os.path.dirname(program)}"])
    return archive


def put_model(h, store):
    """A model with its sidecar in the store; its digest as sha256sum prints it."""
    local = os.path.join(h.directory("fan"), "m.bin")
    with open(local, "wb") as file:
        file.write(os.urandom(MIB << 20))
    h.sluice("sign", local, "--range-bytes", "8MiB").expect(0)
    for name in ("m.bin", "m.bin.sluice.json"):
        with open(os.path.join(os.path.dirname(local), name), "rb") as file:
            store.put(BUCKET, f"fan/{name}", file.read())
    return subprocess.run(["sha256sum", local], capture_output=True, text=True, check=True).stdout.split()[0]


def values_of(line, **more):
    registry, name = IMAGE.rsplit(":", 1)[0].split("/")
    spec = {"source": {"uri": f"s3://{BUCKET}/fan/m.bin", "s3": {"endpoint": line.address}}, "verify": {"sidecar": "require"}}
    caches = {"enabled": True, "nodes": 1, "zones": [ZONE], "resolver": ADDRESS, "resources": {"requests": {"cpu": "10m"}},
              "stores": [{"host": "store.test", "port": line.port, "tls": False}],
              "image": {"registry": "localhost", "repository": "nginx", "tag": NGINX.rsplit(":", 1)[1]}}
    return {"image": {"registry": registry, "repository": name, "tag": IMAGE.rsplit(":", 1)[1], "pullPolicy": "Never"},
            "models": {"m": {"size": f"{MIB}Mi", "spec": spec}}, "credentials": {"envFromSecret": "store"},
            "loader": {"heap": "128Mi", "extraArgs": ["--json"]}, "caches": caches, **more}


def result_of(log):
    """What a load with --json says at its end, among the lines of its log, which tell progress in the same words."""
    lines = [json.loads(line) for line in log.splitlines() if line.startswith(("{", "["))]
    found = [line for each in lines for line in (each if isinstance(each, list) else [each]) if "cached" in line]
    assert found, log[-800:]
    return found[-1]


class Ring:
    """A release with caches that are ready, for the zone that the node gets, before a store whose line counts."""

    def __init__(self, h, cluster, store, helm, level):
        self.cluster, self.helm = cluster, helm
        self.digest, self.line = put_model(h, store), SlowLine(store, BYTES_PER_SECOND)
        cluster.import_image(make_nginx(h))
        cluster.kubectl("label", "nodes", "--all", "--overwrite", f"topology.kubernetes.io/zone={ZONE}")
        self.space = cluster.namespace("caches", level)
        cluster.apply(self.space, store.credentials())
        helm(self.space, "install", "models", CHART, values=values_of(self.line))
        self.await_cache()

    def await_cache(self):
        """For Helm a DaemonSet of one pod is ready while it has none."""
        for what, path in (("daemonset/models-sluice-caches", ".status.numberReady}=1"),
                           (f"endpointslice -l kubernetes.io/service-name=models-sluice-caches-{ZONE}", ".endpoints[0].conditions.ready}=true")):
            self.cluster.kubectl("-n", self.space, "wait", *what.split(), "--timeout=100s", "--for=jsonpath={" + path)

    def upgrade(self, **more):
        self.helm(self.space, "upgrade", "models", CHART, values=values_of(self.line, **more))

    def close(self):
        self.helm(self.space, "uninstall", "models", "--wait")
        self.cluster.delete(self.space)
        self.cluster.kubectl("label", "nodes", "--all", "topology.kubernetes.io/zone-")
        self.line.close()


@check("cluster", "store", "helm")
def four_pods_take_one_copy_through_the_charts_caches(h, cluster, store, helm):
    """A ring for the pods' own zone, in a restricted namespace: the store sends one copy, beside what loads have from it themselves."""
    ring = Ring(h, cluster, store, helm, "restricted")
    space, line = ring.space, ring.line
    ring.upgrade(extraObjects=[JOB % (PODS, PODS, SHELL)])
    done = cluster.try_kubectl("-n", space, "wait", "--for=condition=complete", "--timeout=100s", "job/fan")
    pods = [pod["metadata"]["name"] for pod in cluster.get("-n", space, "pods", "-l", "job-name=fan")["items"]]
    logs = {name: cluster.logs(space, name, "sluice-load") for name in pods}
    assert done.returncode == 0, f"{done.stderr.strip()[-300:]} {json.dumps(logs)[-1200:]}"
    assert all(cluster.logs(space, name, "main").split()[0] == ring.digest for name in pods)
    results = [result_of(log) for log in logs.values()]
    assert len(results) == PODS and all(result["cached"] > (MIB << 20) // 2 for result in results), results
    past = sum(result["fetched"] - result["cached"] for result in results)
    # Heads of answers are counted, too: much less than a hundredth.
    assert line.bytes <= 1.01 * (MIB << 20) + past, f"the store sent {line.bytes} bytes, {past} of them past the caches"
    ring.close()
    return f"{line.bytes / (MIB << 20):.2f} copies"


@check("cluster", "store", "helm")
def the_daemon_reads_through_the_charts_caches(h, cluster, store, helm):
    """By its config, which names the caches of its node's zone; its models say nothing of them."""
    ring = Ring(h, cluster, store, helm, "privileged")
    ring.upgrade(node={"enabled": True, "budget": "200Mi", "heap": "128Mi", "directory": f"{STATE}/ring", "csi": {"enabled": False},
                       "resources": {"requests": {"cpu": "10m"}}})
    cluster.kubectl("-n", ring.space, "rollout", "status", "daemonset", "models-sluice-node", "--timeout=100s")
    log = cluster.kubectl("-n", ring.space, "logs", "daemonset/models-sluice-node", "-c", "sluice-node")
    share = re.search(r"(\d+) % from 1 cache\b", log)
    assert share and int(share[1]) > 50, log[-1200:]
    ring.close()
    return share[0]
