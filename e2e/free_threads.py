"""Threads in models of a pool that come and go, for a Python without a global lock; torch is used where it is installed.

    free_threads.py SOCKET FILE     m of the pool is FILE; prints whose arrays were compared, and whether the lock stayed away
"""
import sys
import threading

import numpy
import sluice

try:
    import torch
except ImportError:
    torch = None

THREADS, ROUNDS = 8, 20


def together(work):
    """By many threads, begun at one moment; what they raised."""
    raised, begin = [], threading.Barrier(THREADS)

    def run(at):
        begin.wait()
        try:
            work(at)
        except BaseException as error:  # told by the main thread
            raised.append(error)

    threads = [threading.Thread(target=run, args=(at,)) for at in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not raised, raised


def main(socket, path):
    wanted = sluice.load(path, framework="numpy")

    def same(model, at):
        for name in list(model)[at % 3::3]:
            tensor = model[name]
            assert numpy.array_equal(tensor.numpy(), wanted[name]), name
            assert numpy.array_equal(numpy.from_dlpack(tensor), wanted[name]), name
            if torch is not None:
                assert numpy.array_equal(tensor.torch().numpy(), wanted[name]), name

    def comes_and_goes(at):
        for _ in range(ROUNDS):
            with sluice.attach("m", socket=socket, timeout=60) as model:
                kept = model[next(iter(model))].numpy()
                same(model, at)
            assert numpy.array_equal(kept, wanted[next(iter(wanted))])

    together(comes_and_goes)
    for _ in range(ROUNDS):
        shared = sluice.attach("m", socket=socket, timeout=60)

        def leaves(at):
            try:
                same(shared, at)
                shared.close()
                same(shared, at)
            except ValueError as error:
                assert "closed" in str(error), error

        together(leaves)
    if torch is not None:
        def streams(at):
            found = dict(sluice.stream(path, group_bytes=5000))
            assert all(numpy.array_equal(found[name].numpy(), array) for name, array in wanted.items())

        together(streams)
    print("numpy", "torch" if torch else "", "no lock" if not getattr(sys, "_is_gil_enabled", lambda: True)() else "lock")


if __name__ == "__main__":
    main(*sys.argv[1:])
