#!/usr/bin/env python3
"""What SELinux lets a container have of a node daemon, on a kernel that enforces a policy.

    selinux_node.py PROGRAM POLICY OTHER_POLICY

As root, on a machine that ends afterwards: the policies are loaded into its kernel; the second one has no container types.
Run by checks_selinux in an emulated machine. The last line is a JSON object of what happened, by step.
"""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from grpc_call import call

DAEMON = "system_u:system_r:spc_t:s0"
CONTAINER = "system_u:system_r:container_t:s0:c1,c2"
PUBLIC, PRIVATE = "system_u:object_r:container_file_t:s0", "system_u:object_r:container_file_t:s0:c3,c4"
SECONDS = 300
CONNECT = "import socket, sys; socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect(sys.argv[1])"


def write(path, data):
    """In one call, as the kernel's files want it."""
    fd = os.open(path, os.O_WRONLY)
    os.write(fd, data)
    os.close(fd)


def become(context):
    """For preexec_fn: what is executed next runs with this context."""
    return lambda: write("/proc/self/attr/exec", context.encode())


def as_container(*command):
    """(did it work, what it said)"""
    done = subprocess.run(command, preexec_fn=become(CONTAINER), capture_output=True, text=True)
    return done.returncode == 0, done.stdout + done.stderr


class Node:
    def __init__(self, program):
        self.program, self.count = program, 0
        self.top = tempfile.mkdtemp(prefix="selinux-", dir="/root")
        os.chmod("/root", 0o755)
        os.chmod(self.top, 0o755)
        self.model = os.path.join(self.top, "model.bin")
        with open(self.model, "wb") as file:
            file.write(os.urandom(1 << 20))

    def start(self, label):
        """A daemon of its own folders, with this selinuxLabel; None: the line says no word about it."""
        self.count += 1
        self.place = os.path.join(self.top, str(self.count))
        self.memory, self.kubelet = os.path.join(self.place, "memory"), os.path.join(self.place, "kubelet")
        self.csi, self.pool = os.path.join(self.kubelet, "csi.sock"), os.path.join(self.place, "pool", "pool.sock")
        os.makedirs(os.path.join(self.kubelet, "pods"))
        if not os.path.exists(os.path.dirname(self.pool)):  # the machine's files have no labels of their own; a tmpfs has, as a disk has
            os.makedirs(os.path.dirname(self.pool))
            subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=0755", "pool", os.path.dirname(self.pool)], check=True)
        config = os.path.join(self.place, "node.yaml")
        with open(config, "w") as file:
            file.write(f"apiVersion: sluice/v1alpha1\nkind: Node\ndirectory: {self.memory}/models\nbudgetBytes: 32MiB\n"
                       f"listen: 127.0.0.1:0\ntmpfs: {{path: {self.memory}}}\n"
                       f"pool: {{socket: {self.pool}, mode: '0666'}}\n"
                       f"csi: {{enabled: true, nodeId: n, socket: {self.csi}, kubeletDirectory: {self.kubelet}, "
                       "namespaces: [{name: '*', pool: true}]}\n"
                       + (f"selinuxLabel: '{label}'\n" if label else "") +
                       f"---\napiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {{name: m}}\nsource: {{uri: 'file://{self.model}'}}\n")
        self.log = os.path.join(self.place, "log")
        with open(self.log, "w") as log:
            self.daemon = subprocess.Popen([self.program, "serve", config], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                           preexec_fn=become(DAEMON))

    def said(self):
        with open(self.log) as log:
            return log.read()

    def await_model(self):
        current, end = os.path.join(self.memory, "models", "m", "current"), time.monotonic() + SECONDS
        while not (os.path.exists(current) and os.path.exists(self.csi)):
            if time.monotonic() > end or self.daemon.poll() is not None:
                sys.exit("the daemon is not ready: " + self.said()[-1500:])
            time.sleep(0.2)
        return os.path.join(current, "model.bin")

    def publish(self, name, attributes):
        """As the kubelet asks for an inline volume; the target."""
        target = os.path.join(self.kubelet, "pods", "uid", "volumes", name, "mount")
        os.makedirs(os.path.dirname(target))
        attributes = {**attributes, "csi.storage.k8s.io/ephemeral": "true", "csi.storage.k8s.io/pod.name": "pod",
                      "csi.storage.k8s.io/pod.namespace": "default", "csi.storage.k8s.io/pod.uid": "uid"}
        call(self.csi, "/csi.v1.Node/NodePublishVolume",
             [(1, f"csi-{name}"), (4, target), (5, [(2, b""), (3, [(1, 1)])]), (6, 1)] +
             [(8, [(1, key), (2, value)]) for key, value in attributes.items()])
        return target

    def stop(self):
        self.daemon.send_signal(signal.SIGTERM)
        return self.daemon.wait()

    def told(self, label):
        """All of a container's ways to a model."""
        self.start(label)
        file = self.await_model()
        volume, pool = self.publish("model", {"model": "m"}), self.publish("pool", {"pool": "true"})
        self.volumes = [volume, pool]
        with open("/proc/self/mountinfo") as table:
            mount = next(line for line in table if f" {volume} " in line)
        with open(self.model, "rb") as ours, open(os.path.join(volume, "model.bin"), "rb") as theirs:
            whole = ours.read() == theirs.read()
        found = {"file": as_container("/bin/cmp", self.model, file), "volume": as_container("/bin/cmp", self.model, f"{volume}/model.bin"),
                 "listed": as_container("/bin/ls", volume), "socket": as_container(sys.executable, "-c", CONNECT, f"{pool}/pool.sock"),
                 "own_socket": as_container(sys.executable, "-c", CONNECT, self.csi)}
        found = {key: [done, said[-300:]] for key, (done, said) in found.items()}
        return {**found, "whole": whole, "label": os.getxattr(file, "security.selinux").decode().rstrip("\0"),
                "socket_label": os.getxattr(self.pool, "security.selinux").decode().rstrip("\0"),
                "seclabel": "seclabel" in mount, "warnings": re.findall(r".*WARN.*|.*warning.*", self.said(), re.IGNORECASE),
                "ended": self.stop()}

    def told_again(self, label):
        """The next daemon, which finds the tmpfs of the one before, and no volumes."""
        for target in self.volumes:
            subprocess.run(["umount", target], check=True)
        shutil.rmtree(self.kubelet)
        self.count -= 1
        return self.told(label)


def steps(node, other):
    told = {"enforcing": open("/sys/fs/selinux/enforce").read(), "auto": node.told(None)}
    told["again"] = node.told_again(None)
    told["none"] = node.told("none")
    told["kept"] = node.told_again(None)
    told["private"] = node.told(PRIVATE)
    node.start("system_u:object_r:nonsense_t:s0")
    told["unknown"] = [node.daemon.wait(), node.said()[-600:]]
    write("/sys/fs/selinux/load", other)
    told["no_types"] = node.told(None)
    return told


def main():
    program, policy, other = sys.argv[1], *(open(path, "rb").read() for path in sys.argv[2:4])
    write("/sys/fs/selinux/load", policy)
    write("/sys/fs/selinux/enforce", b"1")
    print("\n" + json.dumps(steps(Node(program), other)), flush=True)


if __name__ == "__main__":
    main()
