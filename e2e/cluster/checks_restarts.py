"""Containers that are killed: the next one goes on where the last one was."""
import glob
import os

from cluster import ends, loader, pod, shell, status_of
from checks_pods import DIGESTS, URI, digests
from fixtures import SlowLine
from harness import check, wait_for

MIB = 1 << 20
# What a kill may cost: ranges under way on every connection, and the listing and headers once more.
FEW = ("--range-bytes", "1MiB", "--connections", "4")
AGAIN_MAX = 16 * MIB
VOLUME = "/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~empty-dir/models"


def model_bytes(models):
    return sum(os.path.getsize(os.path.join(models.directory, name)) for name in models.names)


def used_bytes(folder):
    """What a volume holds, as the kernel counts it: pages, not names."""
    found = os.statvfs(folder)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def running(name):
    return lambda pod: status_of(pod, name).get("state", {}).get("running")


@check("cluster", "store", "models")
def killed_container_resumes(h, cluster, store, models):
    """SIGKILL in mid-load: the restarted container fetches what is missing, not the model again."""
    line, size = SlowLine(store, 10 * MIB), model_bytes(models)
    space = cluster.namespace("kill")
    cluster.apply(space, store.credentials(),
                  pod("model", [loader(URI, line, *FEW)], shell(DIGESTS), policy="OnFailure"))
    now = cluster.until(space, "model", "the load", running("load"))
    wait_for("a third of the model", lambda: line.bytes > size // 3)
    cluster.kill(now, "load")
    at = line.bytes
    line.faster(512 * MIB)
    done = cluster.until_done(space, "model")
    assert done["status"]["phase"] == "Succeeded", cluster.story(space, "model", done)
    assert status_of(done, "load")["restartCount"] == 1, status_of(done, "load")
    assert digests(cluster.logs(space, "model", "main")) == models.sha256
    line.close()
    assert line.bytes < size + AGAIN_MAX, f"{line.bytes} bytes for a model of {size}"
    cluster.delete(space)
    return f"killed at {at / MIB:.0f} of {size / MIB:.0f} MiB, fetched in all {line.bytes / MIB:.1f} MiB; {ends(done, 'load')[0].message.strip()}"


@check("cluster", "store", "models")
def container_out_of_memory_resumes(h, cluster, store, models):
    """A kill for want of memory: the next container keeps what lies in the volume, and ends once there is room."""
    size, line = model_bytes(models), SlowLine(store, 512 * MIB)
    space = cluster.namespace("oom")
    # What an earlier container left in another memory volume is charged to the pod, where no later one can see it.
    filler = shell("dd if=/dev/zero of=/other/filler bs=1M count=100", memory="160Mi")
    filler.update(name="filler", volumeMounts=[{"name": "other", "mountPath": "/other"}])
    made = pod("model", [filler, loader(URI, line, *FEW, memory="160Mi")],
               shell(DIGESTS, memory="160Mi"), policy="OnFailure")
    made["spec"]["volumes"].append({"name": "other", "emptyDir": {"medium": "Memory"}})
    cluster.apply(space, store.credentials(), made)
    now = cluster.until(space, "model", "a kill", lambda pod: any(end.code == 137 for end in ends(pod, "load")))
    folder = VOLUME.format(uid=now["metadata"]["uid"])
    assert used_bytes(folder) < 100 * MIB, f"{used_bytes(folder)} bytes in the volume"
    os.unlink(os.path.join(os.path.dirname(folder), "other", "filler"))
    done = cluster.until_done(space, "model")
    assert done["status"]["phase"] == "Succeeded", cluster.story(space, "model", done)
    assert digests(cluster.logs(space, "model", "main")) == {**models.sha256}
    kills = status_of(done, "load")["restartCount"]
    line.close()
    assert line.bytes < size + kills * AGAIN_MAX, f"{line.bytes} bytes for a model of {size}, {kills} restarts"
    cluster.delete(space)
    return f"{kills} restarts, fetched in all {line.bytes / MIB:.1f} of {size / MIB:.1f} MiB"


@check("cluster", "store", "models")
def deleted_pod_stops_at_once(h, cluster, store, models):
    """Deleting a pod in mid-load ends the init container by SIGTERM, well before its grace period."""
    line = SlowLine(store, 4 * MIB)
    space = cluster.namespace("stop")
    made = pod("model", [loader(URI, line)], shell("true"))
    made["spec"]["terminationGracePeriodSeconds"] = 60
    cluster.apply(space, store.credentials(), made)
    now = cluster.until(space, "model", "the load", running("load"))
    wait_for("some bytes", lambda: line.bytes > MIB)
    folder = VOLUME.format(uid=now["metadata"]["uid"])
    cluster.kubectl("-n", space, "delete", "pod", "model", "--wait=false")
    wait_for("the pod's volume to go", lambda: not glob.glob(folder), 15)
    line.close()
    cluster.delete(space)
