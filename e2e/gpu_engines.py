"""What torch, CuPy or JAX make of tensors of a pool on a real GPU: arguments engine, socket, model, and a file of JSON with each tensor's
SHA-256. Prints "ok WHAT" or "FAIL WHAT" for each trial, and ends with tensors alive and work in flight. 77: the engine is not there, or sees
no GPU."""
import hashlib
import json
import sys

import sluice


def absent(why):
    print(why)
    sys.exit(77)


class Torch:
    def __init__(self):
        import torch
        if not torch.cuda.is_available():
            absent("torch sees no GPU")
        self.torch = torch

    def take(self, tensor):
        return self.torch.from_dlpack(tensor)

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


class Cupy:
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


class Jax:
    def __init__(self):
        import jax
        if jax.default_backend() not in ("gpu", "cuda"):
            absent("JAX sees no GPU")
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


def main(engine, socket, model, digests):
    with open(digests, encoding="utf-8") as file:
        wanted = json.load(file)
    try:
        engine = {"torch": Torch, "cupy": Cupy, "jax": Jax}[engine]()
    except Exception as why:
        absent(f"{type(why).__name__}: {why}".replace("\n", " "))
    first, second = (sluice.attach(model, "cuda:0", socket=socket, timeout=60) for _ in range(2))
    names = list(first)[:4]
    attempt("reads tensors by DLPack", lambda: all(is_right(engine, first, name, wanted) for name in names))
    attempt("drops a model with work in flight", lambda: drop_in_flight(engine, second, names))
    attempt("works after that", lambda: is_right(engine, first, names[0], wanted))
    alive = [engine.take(first[name]) for name in names]
    attempt("leaves with tensors alive and work in flight", lambda: [engine.work(array) for array in alive] is not None)
    globals()["alive"] = alive  # until the interpreter's end, and longer


if __name__ == "__main__":
    main(*sys.argv[1:])
