"""The CSI driver of a real daemon, judged by the program that judges drivers: csi-sanity, none of its cases left out."""
import os
import re
import subprocess

from checks_resilience import OBJECT_BYTES, paced
from checks_serve import Node, check_rank, folder_of_ranks, model, model_of_rank
from grpc_call import call
from harness import Skip, check, fixture
from servers import go_program, share

ROOMS = ("node/grpc", "node/volumes", "node/csi")
SANITY = "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity@v5.4.0"


class CsiNode(Node):
    """A daemon that serves volumes below a kubelet's directory of the checks' own, in a mount namespace of its own."""

    def __init__(self, h):
        super().__init__(h)
        if os.getuid():
            raise Skip("needs root to mount volumes")
        self.kubelet = os.path.join(self.place, "kubelet")
        self.socket = os.path.join(self.kubelet, "plugins", "csi.sock")
        self.registration = os.path.join(self.kubelet, "plugins_registry", "reg.sock")
        for path in (self.socket, self.registration):
            os.makedirs(os.path.dirname(path), mode=0o755)

    def configure(self, models="", budget="1GiB"):
        super().configure(f"""csi:
  enabled: true
  nodeId: node-1
  socket: {self.socket}
  registration: {self.registration}
  kubeletDirectory: {self.kubelet}
{models}""", budget)

    def start(self, **options):
        super().start(["unshare", "--mount", "--propagation", "private", self.h.program, "serve", self.config], **options)


@fixture("csi_sanity", expensive=True)
def csi_sanity(h):
    """Built once, into the cache."""
    return go_program("csi-sanity", SANITY)


@check("csi_sanity", smoke=True)
def a_driver_is_what_csi_sanity_wants(h, csi_sanity):
    """csi-sanity, unfiltered, against a daemon that publishes a model: no case fails, and its bytes come once."""
    server, _ = paced(256 << 20)
    node = CsiNode(h)
    node.configure(model("m", server.url))
    node.start()
    node.await_state("m")
    parameters = os.path.join(node.place, "parameters.yaml")
    with open(parameters, "w") as file:
        file.write("model: m\n")
    mount = os.path.join(node.kubelet, "pods", "sanity")
    os.makedirs(os.path.dirname(mount))
    command = [csi_sanity, "-csi.endpoint", node.socket, "-csi.mountdir", mount, "-csi.stagingdir",
               os.path.join(node.kubelet, "staging"), "-csi.testvolumeparameters", parameters, "-ginkgo.no-color"]
    for _ in range(5):
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=300)
        # Its Connect() misses that it is connected when that happens between two of its looks, and waits a minute for another change.
        if "Connection timed out" not in done.stdout:
            break
    counts = re.search(r"(\d+) Passed \| (\d+) Failed \|.*?(\d+) Skipped", done.stdout)
    assert counts, (done.stdout + done.stderr)[-1500:]
    failed = re.findall(r"^\s*\[FAIL\] (.*)$", done.stdout, re.MULTILINE)
    assert done.returncode == 0 and counts[2] == "0", f"{counts[0]}: {failed}"
    assert int(counts[1]) >= 32, f"only {counts[1]} cases ran: {counts[0]}"
    assert node.said("is mounted at '" + mount), "nothing was published"
    assert os.path.exists(node.registration), "no socket for the kubelet to find"
    assert node.end() == 0
    assert not os.path.exists(node.socket) and not os.path.exists(node.registration), "a socket was left behind"
    server.close()
    share = server.sent / OBJECT_BYTES
    assert share < 1.2, f"{share:.2f} times the object"
    seconds = re.search(r"Specs in ([0-9.]+) seconds", done.stdout)[1]
    return f"{counts[1]} passed, {counts[2]} failed, {counts[3]} skip themselves, in {seconds} s"


@check()
def a_volume_has_the_files_of_its_rank(h):
    """Volumes of two pods, each of the model of a rank: each pod sees the files of its rank alone."""
    source = folder_of_ranks(h)
    process, origin = share(h, source)
    node = CsiNode(h)
    node.configure(model_of_rank("r0", origin, 0, 2) + model_of_rank("r1", origin, 1, 2))
    node.start()
    for rank in range(2):
        node.await_state(f"r{rank}")
        target = os.path.join(node.kubelet, "pods", f"uid-{rank}", "volumes", "kubernetes.io~csi", "models", "mount")
        os.makedirs(os.path.dirname(target))
        attributes = {"model": f"r{rank}", "csi.storage.k8s.io/ephemeral": "true", "csi.storage.k8s.io/pod.name": "pod",
                      "csi.storage.k8s.io/pod.namespace": "default", "csi.storage.k8s.io/pod.uid": f"uid-{rank}"}
        call(node.socket, "/csi.v1.Node/NodePublishVolume",
             [(1, f"csi-{rank}"), (4, target), (5, [(2, b""), (3, [(1, 1)])]), (6, 1)] + [(8, [(1, key), (2, value)]) for key, value in attributes.items()])
        check_rank(source, f"/proc/{node.process.pid}/root{target}", rank)
        call(node.socket, "/csi.v1.Node/NodeUnpublishVolume", [(1, f"csi-{rank}"), (2, target)])
    assert node.end() == 0
    h.stop(process)
