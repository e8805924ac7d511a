"""Network namespaces that stand for machines: a switch, an origin, and nodes, each behind a link of its own speed.

Everything is made below one prefix and taken down by close(); nothing of the machine's own network is touched.
"""
import os
import subprocess

ORIGIN = "10.77.0.1"
MTU = "9000"  # as in most datacentres; with small packets the links cost more than those who use them


def call(*words, check=True):
    done = subprocess.run(words, capture_output=True, text=True)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


class Net:
    def __init__(self, nodes, link_mbit, origin_mbit):
        self.prefix = f"slfan{os.getpid()}"
        self.names = []
        self.switch = self.add("sw")
        self.inside(self.switch, "ip", "link", "add", "br0", "type", "bridge", "forward_delay", "0")
        self.inside(self.switch, "ip", "link", "set", "br0", "up")
        self.origin = self.join("o", ORIGIN, origin_mbit)
        self.nodes = [self.join(f"n{i}", self.address(i), link_mbit) for i in range(nodes)]

    @staticmethod
    def address(node):
        return f"10.77.0.{10 + node}"

    def add(self, name):
        full = f"{self.prefix}{name}"
        call("ip", "netns", "add", full)
        self.names.append(full)
        self.inside(full, "ip", "link", "set", "lo", "up")
        return full

    def join(self, name, address, mbit):
        space = self.add(name)
        port = f"p{name}"
        call("ip", "-n", self.switch, "link", "add", port, "mtu", MTU, "type", "veth", "peer", "name", "eth0", "mtu", MTU, "netns",
             space)
        self.inside(self.switch, "ip", "link", "set", port, "master", "br0", "up")
        self.inside(space, "ip", "address", "add", f"{address}/24", "dev", "eth0")
        self.inside(space, "ip", "link", "set", "eth0", "up")
        self.limit(space, name, mbit)
        return space

    def limit(self, space, name, mbit):
        """Both directions of a machine's link."""
        for where, device in ((space, "eth0"), (self.switch, f"p{name}")):
            self.inside(where, "tc", "qdisc", "replace", "dev", device, "root", "tbf", "rate", f"{mbit}mbit",
                        "burst", "64kb", "latency", "100ms")

    def limit_node(self, node, mbit):
        self.limit(self.nodes[node], f"n{node}", mbit)

    def cut_node(self, node, whole=False):
        call("ip", "-n", self.switch, "link", "set", f"pn{node}", "up" if whole else "down")

    @staticmethod
    def inside(space, *words):
        return call("ip", "netns", "exec", space, *words)

    def sent_by_origin(self):
        """Bytes that left the origin, headers of all layers included."""
        return int(self.inside(self.origin, "cat", "/sys/class/net/eth0/statistics/tx_bytes"))

    def close(self):
        for name in reversed(self.names):
            call("ip", "netns", "delete", name, check=False)
