#!/usr/bin/env python3
"""Who pays for memory on a node: a daemon and pods in control groups of their own, over one shared tmpfs.

    who_pays.py PROGRAM

As root, with version 1 or 2 of control groups; run by checks_cgroups, on this machine and in an emulated one. Needs
nothing but Python. The last line is a JSON object: MiB, counts and sentences, by step.
"""
import hashlib
import json
import mmap
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

MIB = 1 << 20
MODEL_MIB, SECONDS = 48, 120
UNLIMITED = 0


class Groups:
    """kubepods, and below it a group for each container, as a kubelet lays them out."""

    def __init__(self):
        self.version = 2 if os.path.exists("/sys/fs/cgroup/cgroup.controllers") else 1
        self.top = os.path.join("/sys/fs/cgroup" if self.version == 2 else "/sys/fs/cgroup/memory", f"sluice-pays-{os.getpid()}")
        if self.version == 2:
            self.write("/sys/fs/cgroup/cgroup.subtree_control", "+memory")
        os.mkdir(self.top)
        if self.version == 2:
            self.write(os.path.join(self.top, "cgroup.subtree_control"), "+memory")
        else:
            self.write(os.path.join(self.top, "memory.use_hierarchy"), "1")
        self.names = []

    @staticmethod
    def write(path, text):
        with open(path, "w") as file:
            file.write(text)

    def make(self, name, limit=UNLIMITED):
        path = os.path.join(self.top, name)
        os.mkdir(path)
        self.names.append(name)
        if limit:
            self.write(os.path.join(path, "memory.max" if self.version == 2 else "memory.limit_in_bytes"), str(limit))
        if limit and self.version == 2:  # as the kubelet does: a container ends whole
            self.write(os.path.join(path, "memory.oom.group"), "1")

    def enter(self, name):
        """For preexec_fn."""
        return lambda: self.write(os.path.join(self.top, name, "cgroup.procs"), "0")

    def members(self, name, file):
        with open(os.path.join(self.top, name, file)) as stat:
            return dict(line.split() for line in stat)

    def shared_mib(self, name=""):
        """Pages of tmpfs that are charged to it and what is below it."""
        stat = self.members(name, "memory.stat")
        return round(int(stat["shmem" if self.version == 2 else "total_shmem"]) / MIB)

    def kills(self, name):
        return int(self.members(name, "memory.events" if self.version == 2 else "memory.oom_control")["oom_kill"])

    def remove(self, name):
        for _ in range(200):
            try:
                os.rmdir(os.path.join(self.top, name))
                break
            except OSError:
                time.sleep(0.05)
        if name in self.names:
            self.names.remove(name)

    def close(self):
        for name in [*self.names, ""]:
            self.remove(name)


class Node:
    """A tmpfs, a model, and a daemon in its group."""

    def __init__(self, program, groups, place):
        self.program, self.groups, self.place, self.daemon = program, groups, place, None
        self.memory, self.model = os.path.join(place, "memory"), os.path.join(place, "model.bin")
        self.directory = os.path.join(self.memory, "models")  # others have folders beside it
        os.mkdir(self.memory)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400m,mode=0755", "models", self.memory], check=True)
        os.mkdir(self.directory)
        block = os.urandom(MIB)
        with open(self.model, "wb") as file:
            for number in range(MODEL_MIB):
                file.write(bytes([number]) + block[1:])
        self.digest = self.sha256(self.model)
        self.held = socket.socket()  # nobody else gets the port, before the daemon has it and between two of them
        self.held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.held.bind(("127.0.0.1", 0))
        self.port = self.held.getsockname()[1]

    @staticmethod
    def sha256(path):
        digest = hashlib.sha256()
        with open(path, "rb") as file:
            while block := file.read(MIB):
                digest.update(block)
        return digest.hexdigest()

    def config(self, models=True):
        path = os.path.join(self.place, "node.yaml")
        with open(path, "w") as file:
            file.write(f"apiVersion: sluice/v1alpha1\nkind: Node\ndirectory: {self.directory}\nlisten: 127.0.0.1:{self.port}\n")
            if models:
                file.write(f"---\napiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {{name: m}}\nsource: {{uri: 'file://{self.model}'}}\n")
        return path

    def start(self, group, models=True):
        """The daemon in that group, until it is ready."""
        log = open(os.path.join(self.place, "daemon.log"), "a")
        self.daemon = subprocess.Popen([self.program, "serve", self.config(models)], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                       preexec_fn=self.groups.enter(group))
        self.wait(lambda: self.get("/readyz").startswith("HTTP/1.1 200"))

    def wait(self, probe):
        end = time.monotonic() + SECONDS
        while not probe():
            if time.monotonic() > end or self.daemon.poll() is not None:
                with open(os.path.join(self.place, "daemon.log")) as log:
                    sys.exit("the daemon is not ready: " + log.read()[-1500:])
            time.sleep(0.05)

    def get(self, path):
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=30) as peer:
                peer.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
                parts = []
                while part := peer.recv(65536):
                    parts.append(part)
                return b"".join(parts).decode()
        except OSError:
            return ""

    def stop(self, number):
        self.daemon.send_signal(number)
        self.daemon.wait()

    def run(self, group, *arguments):
        return subprocess.run([self.program, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              preexec_fn=self.groups.enter(group))

    def published(self):
        return os.path.join(self.directory, "m", "current", "model.bin")

    def close(self):
        if self.daemon and self.daemon.poll() is None:
            self.stop(signal.SIGKILL)
        subprocess.run(["umount", self.memory], check=False)


def touch_in(groups, group, path):
    """A pod that maps the file and reads every page."""
    child = os.fork()
    if child == 0:
        groups.enter(group)()
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
            os._exit(0 if sum(view[at] for at in range(0, len(view), 4096)) > 0 else 1)
    assert os.waitpid(child, 0)[1] == 0


def fill_in(groups, group, path, mib):
    """A pod that writes so much into a file; how it ended, as subprocess tells."""
    code = f"f = open({path!r}, 'wb')\nfor _ in range({mib}): f.write(bytes(1 << 20)); f.flush()"
    return subprocess.run([sys.executable, "-c", code], preexec_fn=groups.enter(group)).returncode


def steps(program, groups, node):
    told = {"version": groups.version, "kernel": os.uname().release, "model_mib": MODEL_MIB}
    for name in ("daemon", "reader", "loader"):
        groups.make(name)
    node.start("daemon")
    told["daemon_loaded"] = {name: groups.shared_mib(name) for name in ("daemon", "reader")}
    touch_in(groups, "reader", node.published())
    told["reader_touched"] = {name: groups.shared_mib(name) for name in ("daemon", "reader")}

    done = node.run("loader", "load", f"file://{node.model}", "--to", os.path.join(node.memory, "own"))
    assert done.returncode == 0, done.stderr
    told["loader_ended"] = {name: groups.shared_mib(name) for name in ("daemon", "loader")}

    groups.make("greedy", 24 * MIB)
    told["greedy_ended"] = fill_in(groups, "greedy", os.path.join(node.directory, "greedy.bin"), 32)
    told["greedy_kills"] = groups.kills("greedy")
    told["other_kills"] = sum(groups.kills(name) for name in ("daemon", "reader", "loader"))
    told["greedy_holds"] = groups.shared_mib("greedy")
    told["daemon_answers"] = node.get("/healthz").startswith("HTTP/1.1 200")
    told["right"] = node.sha256(node.published()) == node.digest

    limit = 40 * MIB
    groups.make("narrow", limit)
    refused = node.run("narrow", "load", f"file://{node.model}", "--to", os.path.join(node.memory, "narrow"))
    told["refused"] = refused.returncode, refused.stderr.strip().splitlines()[-1]

    node.stop(signal.SIGKILL)
    groups.remove("daemon")
    told["daemon_gone"] = {"all": groups.shared_mib(), "files": node.sha256(node.published()) == node.digest}
    groups.make("daemon", 200 * MIB)
    node.start("daemon")
    told["daemon_again"] = {name or "all": groups.shared_mib(name) for name in ("daemon", "")}
    found = re.search(r"^sluice_node_budget_bytes\S* (\S+)$", node.get("/metrics"), re.MULTILINE)
    told["budget_mib"], told["limit_mib"] = round(float(found[1]) / MIB), 200
    node.stop(signal.SIGTERM)
    shutil.rmtree(node.memory, ignore_errors=True)
    told["removed"] = groups.shared_mib()
    return told


def main():
    place = tempfile.mkdtemp(prefix="who-pays-")
    groups = Groups()
    node = None
    try:
        node = Node(sys.argv[1], groups, place)
        print(json.dumps(steps(sys.argv[1], groups, node)))
    finally:
        if node:
            node.close()
        groups.close()
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
