"""manifests/benchmark/: the Jobs run, and their results make one table."""
import json
import os
import subprocess

from checks_manifests import MANIFESTS, pod_specs, read
from cluster import IMAGE
from harness import check


def small(item, store, env, arguments):
    """The Job for this machine: our image, little memory, no CPU of its own; env and arguments in place of others."""
    for spec in pod_specs(item):
        for volume in spec.get("volumes", []):
            volume["emptyDir"]["sizeLimit"] = "700Mi"
        for container in spec["containers"]:
            container.update(image=IMAGE, imagePullPolicy="Never")
            container["resources"] = {"requests": {"cpu": "10m", "memory": "100Mi"}, "limits": {"memory": "900Mi"}}
            for entry in container["env"]:
                entry["value"] = env.get(entry["name"], entry.get("value")) if "valueFrom" not in entry else None
            container["env"] = [{key: value for key, value in entry.items() if value is not None}
                                for entry in container["env"]]
            container["env"].append({"name": "AWS_ENDPOINT_URL", "value": store.address})
            container["args"] = [arguments.get(word, word) for word in container["args"]]
    return item


def run_job(cluster, store, name, job, env, arguments, **more):
    """Namespace and logs of all pods of a Job that completed."""
    space = cluster.namespace("bench")
    item = small(cluster.objects_of(read(os.path.join(MANIFESTS, "benchmark", name)))[0], store, env, arguments)
    item["metadata"].pop("namespace", None)
    item["spec"].update(more)
    cluster.apply(space, store.credentials("sluice-s3"), item)
    done = cluster.try_kubectl("-n", space, "wait", "--for=condition=complete", "--timeout=100s", f"job/{job}")
    logs = cluster.kubectl("-n", space, "logs", "-l", f"job-name={job}", "--tail=-1", "--max-log-requests=50")
    assert done.returncode == 0, f"{done.stderr.strip()[-300:]} {logs[-800:]}"
    return space, logs


ENVIRONMENT = {"MODEL_URI": "s3://models/minilm/model.safetensors", "ROUNDS": "1", "CONNECTIONS": "1,4",
               "RANGE_BYTES": "8MiB"}


@check("cluster", "store", "models")
def benchmark_job_measures(h, cluster, store, models):
    """The Job of one node ends with figures for the network, the store and loads, which --gather reads from its log."""
    space, logs = run_job(cluster, store, "job.yaml", "sluice-benchmark-read-size", ENVIRONMENT, {})
    table = gather(h, logs)
    for word in ("network", "store", "sluice"):
        assert word in table, table
    cluster.delete(space)


@check("cluster", "store", "models")
def benchmark_of_many_nodes_is_gathered(h, cluster, store, models):
    """The Indexed Job's pods begin together, and their lines become one table with a row for each."""
    space, logs = run_job(cluster, store, "indexed-job.yaml", "sluice-benchmark-nodes", {**ENVIRONMENT, "CONNECTIONS": "4"},
                          {"--start-at=/120": "--start-at=/10"}, parallelism=2, completions=2)
    results = [json.loads(line) for line in logs.splitlines() if line.startswith("{") and '"bench"' in line[:400]]
    assert len(logs.strip()) > 0 and (not results or len(results) == 2), logs[-800:]
    table = gather(h, logs)
    cluster.delete(space)
    return table.strip().splitlines()[0]


@check("cluster", "store")
def benchmark_without_a_store_runs(h, cluster, store):
    """The Job with servers inside the pod needs neither store nor keys."""
    space, logs = run_job(cluster, store, "loopback.yaml", "sluice-benchmark-loopback", {},
                          {"--bytes=1GiB": "--bytes=64MiB", "--rounds=3": "--rounds=1"})
    assert "sluice, as it comes" in logs, logs[-800:]
    cluster.delete(space)


def gather(h, logs):
    """What `sluice bench --gather` makes of the logs of Jobs."""
    done = subprocess.run([h.program, "bench", "--gather", "-"], input=logs, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-500:] + logs[-500:]
    return done.stdout
