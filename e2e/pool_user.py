"""A process that uses a model of the pool, as checks_pool.py tells it: arguments socket, model, number of its tensor.

It attaches and says so, then waits for its tensor. Words on stdin, a line of JSON each on stdout: "hash" of the tensor,
"part TENSOR DIMENSION RANK OF" the hash of a rank's part, "state" of the load, "time COUNT" attaches (the median in seconds); it
ends with stdin."""
import hashlib
import json
import statistics
import sys
import time

import sluice


def time_attaches(socket, name, count):
    seconds = []
    for _ in range(count):
        start = time.perf_counter()
        model = sluice.attach(name, socket=socket, load=False)
        seconds.append(time.perf_counter() - start)
        del model
    return statistics.median(seconds)


def main(socket, name, number):
    def say(value):
        print(json.dumps(value), flush=True)

    model = sluice.attach(name, socket=socket)
    say("attached")
    view = model[f"t{number}"].memoryview()
    for line in sys.stdin:
        word, *more = line.split()
        if word == "hash":
            say(hashlib.sha256(view).hexdigest())
        elif word == "part":
            say(hashlib.sha256(model.shard(more[0], *map(int, more[1:])).tobytes()).hexdigest())
        elif word == "state":
            say("ready" if model.ready else "loading")
        else:
            say(time_attaches(socket, name, int(more[0])))


main(*sys.argv[1:])
