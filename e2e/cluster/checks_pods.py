"""sluice in a pod: before the main container, beside it, as any user."""
import json

from cluster import IMAGE, RESTRICTED_POD, container, ends, loader, pod, secret, shell, status_of
from fixtures import BUCKET
from harness import check, wait_for

URI = f"s3://{BUCKET}/minilm/"
# Every file's digest, by the shell of the main container; the folder .sluice is ours.
DIGESTS = "cd /models/model && find . -type f -not -path './.sluice/*' | sort | while read -r f; do sha256sum \"$f\"; done"


def digests(text):
    """{name: sha256} of what DIGESTS printed."""
    pairs = (line.split("  ./", 1) for line in text.splitlines())
    return {name: digest for digest, name in pairs}


@check("cluster", "store", "models")
def init_container_fills_memory_for_the_main_container(h, cluster, store, models):
    """In a restricted namespace a real model is loaded into a memory emptyDir, and the main container reads its bytes."""
    space = cluster.namespace("init")
    cluster.apply(space, store.credentials(),
                  pod("model", [loader(URI, store)], shell(f"{DIGESTS}; grep ' /models ' /proc/mounts >&2")))
    done = cluster.until_done(space, "model")
    assert done["status"]["phase"] == "Succeeded", cluster.story(space, "model", done)
    printed = cluster.logs(space, "model", "main")
    lines = [line for line in printed.splitlines() if "/models " not in line]
    assert digests("\n".join(lines)) == models.sha256, printed[-800:]
    assert "tmpfs /models tmpfs" in printed, "the volume is not memory"
    end = ends(done, "load")[0]
    assert end.code == 0 and "is in /models/model" in end.message, end
    cluster.delete(space)
    return end.message.strip()


@check("cluster", "store", "models")
def init_container_logs_json_lines(h, cluster, store, models):
    """What it logs is one JSON object a line, the last one naming the outcome; no key is in it."""
    space = cluster.namespace("logs")
    cluster.apply(space, store.credentials(), pod("model", [loader(URI, store)], shell("true")))
    cluster.until_done(space, "model")
    text = cluster.logs(space, "model", "load")
    lines = [json.loads(line) for line in text.splitlines()]
    assert lines and all("msg" in line or "message" in line for line in lines), text[:600]
    assert store.secret not in text and "Signature" not in text, "a secret in the log"
    cluster.delete(space)
    return f"{len(lines)} lines; the last: {json.dumps(lines[-1])[:200]}"


@check("cluster")
def restricted_refuses_what_is_not(h, cluster):
    """The same namespace refuses a pod that asks for more, so that acceptance above says something."""
    space = cluster.namespace("refused")
    privileged = container("main", IMAGE, args=["version"])
    privileged["securityContext"] = {"privileged": True}
    done = cluster.try_kubectl("-n", space, "apply", "-f", "-", text=json.dumps(pod("bad", [], privileged)))
    assert done.returncode and "violates PodSecurity" in done.stderr, done.stderr[-500:]
    cluster.delete(space)


def sidecar(store, *arguments, **more):
    probe = {"httpGet": {"path": "/startupz", "port": 9464}, "periodSeconds": 1, "failureThreshold": 120}
    return loader(URI, store, "--stay", "--listen=:9464", *arguments, restartPolicy="Always", startupProbe=probe,
                  ports=[{"name": "metrics", "containerPort": 9464}],
                  livenessProbe={"httpGet": {"path": "/healthz", "port": 9464}},
                  readinessProbe={"httpGet": {"path": "/readyz", "port": 9464}}, **more)


@check("cluster", "store", "models")
def sidecar_holds_the_main_container_back(h, cluster, store, models):
    """A native sidecar's startupProbe lets the main container begin only when the model is published."""
    space = cluster.namespace("sidecar")
    cluster.apply(space, store.credentials(),
                  pod("model", [sidecar(store)], shell(f"test -e /models/model/.sluice/ready && {DIGESTS}")))
    done = cluster.until_done(space, "model")
    assert done["status"]["phase"] == "Succeeded", cluster.story(space, "model", done)
    assert digests(cluster.logs(space, "model", "main")) == models.sha256
    ended = ends(done, "load")[0]
    assert ended.code == 0, f"the sidecar ended with {ended}"
    cluster.delete(space)
    return f"the sidecar, ended after main: {ended.message.strip()}"


@check("cluster", "store", "models")
def metrics_are_scraped_from_the_sidecar(h, cluster, store, models):
    """The sidecar's metrics come through the API server, and say how many bytes were loaded."""
    space = cluster.namespace("metrics")
    cluster.apply(space, store.credentials(), pod("model", [sidecar(store)], shell("sleep 600")))
    cluster.until(space, "model", "ready", lambda pod: status_of(pod, "main").get("started"))
    page = cluster.kubectl("get", "--raw", f"/api/v1/namespaces/{space}/pods/model:9464/proxy/metrics")
    values = {line.rsplit(" ", 1)[0]: line.rsplit(" ", 1)[1] for line in page.splitlines() if not line.startswith("#")}
    received = sum(float(value) for name, value in values.items() if name.startswith("sluice_source_bytes_total"))
    size = sum(len(open(f"{models.directory}/{name}", "rb").read()) for name in models.names)
    assert received >= size, f"{received} bytes received, the model has {size}"
    ready = json.loads(cluster.kubectl("get", "--raw", f"/api/v1/namespaces/{space}/pods/model:9464/proxy/readyz"))
    cluster.delete(space)
    return f"{len(values)} samples, {int(received)} bytes received, readyz {json.dumps(ready)[:120]}"


@check("cluster", "store", "models")
def sidecar_ends_after_the_main_container(h, cluster, store, models):
    """On deletion the main container is ended first, then the sidecar, each by SIGTERM and at once."""
    space = cluster.namespace("order")
    script = "trap 'echo main ended; exit 0' TERM; sleep 600 & wait"
    cluster.apply(space, store.credentials(), pod("model", [sidecar(store)], shell(script)))
    cluster.until(space, "model", "ready", lambda pod: status_of(pod, "main").get("started"))
    followed = h.spawn("sidecar-log", [cluster.program, "--kubeconfig", cluster.kubeconfig, "-n", space, "logs", "-f",
                                       "model", "-c", "load"])
    seen = []

    def gone():
        found = cluster.try_kubectl("-n", space, "get", "pod", "model", "-o", "json")
        if found.returncode:
            return True
        now = json.loads(found.stdout)
        seen.append((bool(ends(now, "main")), bool(ends(now, "load"))))
        return False
    cluster.kubectl("-n", space, "delete", "pod", "model", "--wait=false")
    wait_for("the pod to go", gone, 15)
    h.stop(followed)
    assert (False, True) not in seen, "the sidecar ended before the main container"
    cluster.delete(space)


@check("cluster", "store", "models")
def any_user_and_any_group_do(h, cluster, store, models):
    """As a user id without a name, with fsGroup, another id in the main container reads the model."""
    space = cluster.namespace("user")
    security = {**RESTRICTED_POD, "runAsUser": 1000730000, "runAsGroup": 0, "fsGroup": 1000730000}
    main = shell(f"id; ls -ln /models/model >&2; {DIGESTS}")
    main["securityContext"] = {**main["securityContext"], "runAsUser": 1000740000, "runAsGroup": 1000740000}
    cluster.apply(space, store.credentials(), pod("model", [loader(URI, store)], main, security=security))
    done = cluster.until_done(space, "model")
    assert done["status"]["phase"] == "Succeeded", cluster.story(space, "model", done)
    printed = cluster.logs(space, "model", "main")
    assert "uid=1000740000" in printed, printed
    found = digests("\n".join(line for line in printed.splitlines() if "  ./" in line))
    assert found == models.sha256, printed[-800:]
    cluster.delete(space)


@check("cluster", "store", "models")
def credentials_are_mounted_from_secrets(h, cluster, store, models):
    """Keys from the files that other tools use: ~/.aws/credentials and ~/.s3cfg, each mounted from a Secret."""
    host = store.address.split("//")[1]
    homes = {"aws": {".aws/credentials": f"[default]\naws_access_key_id = {store.access}\n"
                                         f"aws_secret_access_key = {store.secret}\n",
                     ".aws/config": f"[default]\nendpoint_url = {store.address}\nregion = {store.region}\n"},
             "s3cfg": {".s3cfg": f"[default]\naccess_key = {store.access}\nsecret_key = {store.secret}\n"
                                 f"host_base = {host}\nhost_bucket = {host}\nuse_https = False\n"}}
    for word, files in homes.items():
        space = cluster.namespace(word)
        names = {path: path.strip(".").replace("/", "-") for path in files}
        made = pod("model", [container("load", IMAGE, args=["load", URI, "--to", "/models/model"], env={"HOME": "/home"},
                                       memory="256Mi")], shell(DIGESTS))
        made["spec"]["initContainers"][0]["volumeMounts"].append({"name": "home", "mountPath": "/home", "readOnly": True})
        made["spec"]["volumes"].append({"name": "home", "secret": {
            "secretName": "home", "items": [{"key": names[path], "path": path} for path in files]}})
        cluster.apply(space, secret("home", {names[path]: text for path, text in files.items()}), made)
        done = cluster.until_done(space, "model")
        assert done["status"]["phase"] == "Succeeded", f"{word}: {cluster.story(space, 'model', done)}"
        assert digests(cluster.logs(space, "model", "main")) == models.sha256
        cluster.delete(space)
