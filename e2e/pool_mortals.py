"""Processes that attach to a model of the pool until they are killed: arguments socket, model, how many, seed.

One after another, each with SIGKILL at a moment of chance; prints how many of them had attached before."""
import os
import random
import signal
import sys
import time

import sluice


def live(socket, name, told):
    while True:
        model = sluice.attach(name, socket=socket)
        os.write(told, b"x")
        del model


def main(socket, name, count, seed):
    chance, attached = random.Random(int(seed)), 0
    for _ in range(int(count)):
        hears, tells = os.pipe()
        child = os.fork()
        if child == 0:
            live(socket, name, tells)
        os.close(tells)
        time.sleep(chance.random() * 0.012)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        attached += bool(os.read(hears, 1))
        os.close(hears)
    print(attached)


main(*sys.argv[1:])
