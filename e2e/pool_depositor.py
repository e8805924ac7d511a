"""A process that deposits, as checks_python.py tells it: arguments socket, model, key.

It announces a deposit, writes half of it, says so on stdout, and waits for stdin: a line commits, the end aborts."""
import sys

import sluice

TENSOR_BYTES = 1 << 20


def main(socket, name, key):
    source = sluice.attach(name, socket=socket)
    deposit = sluice.Deposit(source, key, 2 * TENSOR_BYTES, socket=socket)
    deposit.add("first", "U8", (TENSOR_BYTES,), bytes(TENSOR_BYTES))
    print("half", flush=True)
    if sys.stdin.readline():
        deposit.add("second", "U8", (TENSOR_BYTES,), bytes(TENSOR_BYTES))
        deposit.commit()
    deposit.close()


main(*sys.argv[1:])
