"""Ports for servers of checks that run side by side: nobody else takes one between its choice and the server's bind().

They lie below those that the kernel gives to whoever asks for any. A process takes a block of them, which it holds by a
socket with the block's name, so the block is free again when the process ends, however it ends.
"""
import socket

BLOCK, BLOCKS = 100, 100
LOWEST = 2048


def kernels_own():
    """The first and the last port that the kernel chooses by itself."""
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        return tuple(int(word) for word in file.read().split())


def first_port():
    """Of the first block: below what the kernel chooses, or else above."""
    low, high = kernels_own()
    for first in (low - BLOCK * BLOCKS, high + 1):
        if first >= LOWEST and first + BLOCK * BLOCKS <= 65536:
            return first
    raise RuntimeError(f"net.ipv4.ip_local_port_range is {low} to {high}, which leaves no {BLOCK * BLOCKS} ports to the servers of checks")


def bindable(port):
    """Is it nobody's now, on any address?"""
    with socket.socket() as probe:
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True


class Ports:
    """Gives each port once; another block follows when one is used up."""

    def __init__(self):
        self.held, self.left = [], iter(())

    def take_block(self):
        first = first_port()
        for number in range(BLOCKS):
            name = socket.socket(socket.AF_UNIX)
            try:
                name.bind(f"\0sluice-e2e-ports-{first + number * BLOCK}")
            except OSError:
                name.close()
                continue
            self.held.append(name)
            self.left = iter(range(first + number * BLOCK, first + (number + 1) * BLOCK))
            return
        raise RuntimeError("every block of ports is taken by another run")

    def take(self):
        while True:
            for port in self.left:
                if bindable(port):
                    return port
            self.take_block()

    def forget(self):
        """For a process that was forked: what its parent holds is not its own."""
        for name in self.held:
            name.close()
        self.held, self.left = [], iter(())


PORTS = Ports()
free_port = PORTS.take
