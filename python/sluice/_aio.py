"""The calls that people wait for, for programs with an event loop: each runs in a thread, and ends when its task is canceled."""
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from ._files import pull
from ._load import load, stream
from ._model import Model, open_model
from ._module import load_into_module
from ._pool import PoolModel, attach
from ._write import save

_END: Any = object()


async def aopen(uri: Any, **options: Any) -> Model:
    """open(), awaited."""
    return await asyncio.to_thread(open_model, uri, **options)


async def aload(uri: Any, **options: Any) -> dict[str, Any]:
    """load(), awaited."""
    return await asyncio.to_thread(load, uri, **options)


async def asave(tensors: Any, uri: Any, **options: Any) -> None:
    """save(), awaited."""
    await asyncio.to_thread(save, tensors, uri, **options)


async def apull(uri: Any, directory: Any, **options: Any) -> None:
    """pull(), awaited."""
    await asyncio.to_thread(pull, uri, directory, **options)


async def aload_into_module(module: Any, uri: Any, **options: Any) -> tuple[list[str], list[str]]:
    """load_into_module(), awaited."""
    return await asyncio.to_thread(load_into_module, module, uri, **options)


async def aattach(name: str, device: Any = "cpu", **options: Any) -> PoolModel:
    """attach(), awaited."""
    return await asyncio.to_thread(attach, name, device, **options)


async def astream(uris: Any, **options: Any) -> AsyncIterator[tuple[str, Any]]:
    """stream(), for `async for`."""
    arriving = stream(uris, **options)
    try:
        while True:
            pair = await asyncio.to_thread(next, arriving, _END)
            if pair is _END:
                return
            yield pair
    finally:
        await asyncio.to_thread(arriving.close)  # type: ignore[attr-defined]
