"""What torch, CuPy or JAX make of tensors of a pool on a real GPU: arguments engine, socket, model, and a file of JSON with each tensor's
SHA-256. The model has a tensor of each type. Prints "ok WHAT" or "FAIL WHAT" for each trial, and ends with tensors alive and work in flight.
77: the engine is not there, or sees no GPU.

`memory` stands in for an engine: it reads the memory of the tests' driver, so that all of this runs without a GPU."""
import ctypes
import hashlib
import json
import os
import subprocess
import sys

import sluice


def absent(why):
    print(why)
    sys.exit(77)


class Engine:
    lacks = ()  # types that it may not take


class Torch(Engine):
    """torch refuses what is read-only, by either protocol, but for DLPack of consumers that do not ask: Array.torch() is the way."""

    def __init__(self):
        import torch
        if not torch.cuda.is_available():
            absent("torch sees no GPU")
        self.torch = torch

    def take(self, tensor):
        return tensor.torch()

    def work(self, array):
        """Asynchronous, and reads all of it many times."""
        total = self.torch.zeros((), device="cuda")
        for _ in range(64):
            total += array.view(self.torch.uint8).sum(dtype=self.torch.float32)
        return total

    def wait(self):
        self.torch.cuda.synchronize()

    def bytes(self, array):
        return array.contiguous().view(self.torch.uint8).cpu().numpy().tobytes()

    def by_interface(self, tensor):
        """torch.as_tensor() refuses the read-only flag, and says so."""
        try:
            self.torch.as_tensor(tensor)
        except TypeError as why:
            return "read only" in str(why)
        return False

    def fill(self, room, value):
        room.torch().fill_(value)

    def write(self, tensor):
        self.take(tensor).fill_(1)
        self.wait()


class Cupy(Engine):
    lacks = ("BF16", "F8_E4M3", "F8_E5M2")

    def __init__(self):
        import cupy
        cupy.cuda.runtime.getDeviceCount()
        self.cupy = cupy

    def take(self, tensor):
        return self.cupy.from_dlpack(tensor)

    def work(self, array):
        return sum(array.view(self.cupy.uint8).sum() for _ in range(64))

    def wait(self):
        self.cupy.cuda.Device().synchronize()

    def bytes(self, array):
        return self.cupy.ascontiguousarray(array).tobytes()

    def by_interface(self, tensor):
        return self.bytes(self.cupy.asarray(tensor)) == self.bytes(self.take(tensor))

    def fill(self, room, value):
        self.cupy.asarray(room).fill(value)

    def write(self, tensor):
        self.take(tensor).fill(1)
        self.wait()


class Jax(Engine):
    """Arrays of JAX cannot be written to, so it makes no deposits by itself."""
    lacks = ("F8_E4M3", "F8_E5M2")

    def __init__(self):
        import jax
        if jax.default_backend() not in ("gpu", "cuda"):
            absent("JAX sees no GPU")
        jax.config.update("jax_enable_x64", True)
        self.jax = jax

    def take(self, tensor):
        return self.jax.dlpack.from_dlpack(tensor)

    def work(self, array):
        return [array.sum() for _ in range(64)]

    def wait(self):
        (self.jax.numpy.zeros(()) + 0).block_until_ready()

    def bytes(self, array):
        import numpy
        return numpy.asarray(array).tobytes()


class Memory(Engine):
    def take(self, tensor):
        return tensor, tensor.__dlpack__(stream=1)  # the capsule keeps the memory

    def work(self, array):
        return self.bytes(array)[:1]

    def wait(self):
        pass

    def bytes(self, array):
        tensor = array[0]
        return ctypes.string_at(tensor._address, tensor.nbytes) if tensor.nbytes else b""

    def by_interface(self, tensor):
        data, read_only = tensor.__cuda_array_interface__["data"]
        return read_only and ctypes.string_at(data, tensor.nbytes) == self.bytes((tensor, None))

    def fill(self, room, value):
        (ctypes.c_float * (room.nbytes // 4)).from_address(room._address)[:] = [value] * (room.nbytes // 4)

    def write(self, tensor):
        ctypes.memset(tensor._address, 1, 64)


ENGINES = {"torch": Torch, "cupy": Cupy, "jax": Jax, "memory": Memory}


def attempt(what, work):
    try:
        good, why = work(), ""
    except Exception as error:  # whatever it is, the rest is worth as much
        good, why = False, f": {type(error).__name__}: {error}".replace("\n", " ")
    print("ok" if good else "FAIL", what + why, flush=True)


def is_right(engine, model, name, wanted):
    return hashlib.sha256(engine.bytes(engine.take(model[name]))).hexdigest() == wanted[name]


def drop_in_flight(engine, model, names):
    """The last tensor, and with it the model, goes while kernels still read it."""
    results = [engine.work(engine.take(model[name])) for name in names]
    model.close()
    engine.wait()
    return all(result is not None for result in results)


def deposit(engine, source, socket):
    """A derived model, written by the engine, dense and with strides, and read by whoever attaches to it next."""
    with sluice.Deposit(source, f"engine-{type(engine).__name__}", 1 << 20, socket=socket) as made:
        engine.fill(made.room("dense", "F32", (64, 64)), 3.0)
        engine.fill(made.room("strided", "F32", (8, 2), (4, 1)), 5.0)
    with sluice.attach(source.name, source.device, socket=socket, deposit=f"engine-{type(engine).__name__}", timeout=60) as found:
        values = [set(memoryview(engine.bytes(engine.take(found[name]))).cast("f")) for name in ("dense", "strided")]
        return values == [{3.0}, {5.0}]


def write(engine, arguments):
    """A process that writes to what is read-only is lost by that; nobody else is."""
    done = subprocess.run([sys.executable, os.path.abspath(__file__), *arguments, "write"], capture_output=True, text=True)
    return done.returncode != 0


def main(name, socket, model, digests, work=""):
    with open(digests, encoding="utf-8") as file:
        wanted = json.load(file)
    try:
        engine = ENGINES[name]()
    except Exception as why:
        absent(f"{type(why).__name__}: {why}".replace("\n", " "))
    first, second = (sluice.attach(model, "cuda:0", socket=socket, timeout=60) for _ in range(2))
    if work == "write":
        engine.write(first["f32"])
        return
    for tensor in sorted(tensor for tensor in first if first[tensor].dtype not in engine.lacks):
        attempt(f"reads {first[tensor].dtype} by DLPack" if first[tensor].nbytes else "reads a tensor without bytes",
                lambda tensor=tensor: is_right(engine, first, tensor, wanted))
    if hasattr(engine, "by_interface"):
        attempt("goes by __cuda_array_interface__ as the handbook says", lambda: engine.by_interface(first["f32"]))
    if hasattr(engine, "fill"):
        attempt("deposits what it wrote, dense and with strides", lambda: deposit(engine, first, socket))
    names = ["f32", "i32", "f16", "u8"]
    attempt("drops a model with work in flight", lambda: drop_in_flight(engine, second, names))
    attempt("works after that", lambda: is_right(engine, first, names[0], wanted))
    if hasattr(engine, "write"):
        attempt("loses a process that writes to it, and that alone", lambda: write(engine, (name, socket, model, digests)) and
                is_right(engine, first, "f32", wanted))
    alive = [engine.take(first[tensor]) for tensor in names]
    attempt("leaves with tensors alive and work in flight", lambda: [engine.work(array) for array in alive] is not None)
    globals()["alive"] = alive  # until the interpreter's end, and longer


if __name__ == "__main__":
    main(*sys.argv[1:])
