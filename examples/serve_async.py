"""Tensors of a model for the tasks of an event loop: it stays free while they are read, and a task that is canceled reads nothing more.

    python serve_async.py s3://models/gpt-j-6b/
"""
import asyncio
import sys

import sluice


async def largest(uri):
    """The name and the size of the largest tensor that was read."""
    found = ("", 0)
    async for name, tensor in sluice.astream(uri, framework="numpy"):
        found = max(found, (name, tensor.nbytes), key=lambda each: each[1])
    return found


async def main(uri):
    async with await sluice.aopen(uri, framework="numpy") as model:
        first = next(iter(model))
        reading = asyncio.create_task(sluice.aload(uri, framework="numpy"))  # which nobody will want
        found = await largest(uri)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        print(f"{len(model)} tensors, {first} first; the largest is {found[0]}, {found[1]} bytes")


asyncio.run(main(sys.argv[1]))
