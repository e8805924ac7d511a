"""The cluster on a machine with version 2 of control groups alone: Debian's kernel in an emulated processor.

It sees this machine's files and has no network, so everything is built and fetched here before it starts.
"""
import os
import shlex
import sys

import checks_helm
import models
from emulated import ENDED, Emulated
from harness import CACHE, ROOT
from servers import versitygw_program

MEMORY_MIB, DISK_MIB, SLOWER, SECONDS = 6144, 8192, 15, 4 * 3600
# What containerd and the kubelet write must not lie on an overlay. The link that leads nowhere stands for the network that a
# node has: without a route, cluster addresses are unreachable before kube-proxy sees them.
SCRIPT = """\
set -e
hostname sluice-e2e
export PATH={path} HOME=/root LANG=C.UTF-8 SLUICE_CACHE={cache} SLUICE_E2E_SLOWER={slower} GOGC=400
mount -t sysfs none /sys
mount -t cgroup2 none /sys/fs/cgroup
mkdir -p /dev/pts /disk
mount -t devpts none /dev/pts
mount -t tmpfs none /run
mount /dev/vda /disk
for place in /var/tmp /var/lib/kubelet /var/lib/containerd /var/lib/cni /var/log/pods /var/log/containers; do
    mkdir -p "/disk/own$place" "$place"
    mount --bind "/disk/own$place" "$place"
    mount --make-shared "$place"
done
mkdir -p /lib/modules
ln -sfn {modules} /lib/modules/{version}
ip link add uplink type dummy
ip address add 192.0.2.2/24 dev uplink
ip link set uplink up
ip route add default via 192.0.2.1
cd {root}
e2e/cluster/run --image {image} {words}
"""


def prepare(h):
    """What checks would else build or fetch when they first need it."""
    versitygw_program()
    checks_helm.helm_program()
    models.minilm(h)


def try_there(h, image, words):
    """Run the checks there, their lines passed on: the exit code, and the counts in the last line."""
    prepare(h)
    machine = Emulated(h, MEMORY_MIB, DISK_MIB)
    script = SCRIPT.format(path=f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}", cache=CACHE, slower=SLOWER, root=ROOT,
                           modules=os.path.join(machine.place, "lib", "modules", machine.version), version=machine.version,
                           image=image, words=shlex.join(words))
    code = "1"
    for line in machine.lines(script, SECONDS):
        if line.startswith(ENDED):
            code = line.removeprefix(ENDED)
        else:
            print(line, flush=True)
    return int(code)
