"""A process that uses a model in memory of a GPU, the fake driver's, as checks_gpu_pool.py tells it: arguments socket, device.

It attaches, then prints the SHA-256 of every tensor as JSON, and for each line on stdin once more. Memory of the fake
driver can be read as any."""
import ctypes
import hashlib
import json
import sys

import sluice


def digest(tensor):
    address = tensor.__cuda_array_interface__["data"][0]
    return hashlib.sha256((ctypes.c_uint8 * tensor.nbytes).from_address(address)).hexdigest()


def main(socket, device):
    model = sluice.attach("m", device, socket=socket, timeout=120)
    while True:
        print(json.dumps({name: digest(model[name]) for name in model}), flush=True)
        if not sys.stdin.readline():
            return


main(*sys.argv[1:])
