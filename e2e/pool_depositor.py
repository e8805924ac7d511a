"""A process that deposits, as checks_python.py tells it: arguments socket, model, key, device.

It announces a deposit, writes half of it, says so on stdout, and waits for stdin: a line commits, the end aborts. On a GPU, the fake
driver's, memory can be written as any."""
import ctypes
import sys

import sluice

TENSOR_BYTES = 1 << 20


def add(deposit, name, value):
    room = deposit.room(name, "U8", (TENSOR_BYTES,))
    if room.device == "cpu":
        room.memoryview()[:] = bytes([value]) * TENSOR_BYTES
    else:
        ctypes.memset(room.__cuda_array_interface__["data"][0], value, TENSOR_BYTES)


def main(socket, name, key, device="cpu"):
    source = sluice.attach(name, device, socket=socket)
    deposit = sluice.Deposit(source, key, 2 * TENSOR_BYTES, socket=socket)
    add(deposit, "first", 1)
    print("half", flush=True)
    if sys.stdin.readline():
        add(deposit, "second", 2)
        deposit.commit()
    deposit.close()


main(*sys.argv[1:])
