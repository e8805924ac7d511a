"""The calls that people wait for, for programs with an event loop: each runs in a thread, and ends when its task is canceled."""
from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Optional, TypeVar

from ._cancel import Cancel, under
from ._files import pull
from ._frameworks import as_here
from ._load import load, stream
from ._model import Model, open_model
from ._module import load_into_module
from ._pool import PoolModel, attach
from ._write import save

_Result = TypeVar("_Result")


async def _ended(work: "asyncio.Future[Any]") -> None:
    """Until the thread has ended, however often the task is canceled meanwhile: it may write to memory."""
    while not work.done():
        try:
            await asyncio.wait({work})
        except asyncio.CancelledError:
            continue
    if not work.cancelled():
        work.exception()  # which is told to nobody: the task is canceled


def _within(context: "Callable[[], AbstractContextManager[Any]]", function: Callable[..., _Result], *arguments: Any, **options: Any) -> _Result:
    with context():
        return function(*arguments, **options)


async def _awaited(cancel: Cancel, function: Callable[..., _Result], *arguments: Any, **options: Any) -> _Result:
    call = partial(contextvars.copy_context().run, _within, as_here("cuda"), under, cancel, function, *arguments, **options)
    work: "asyncio.Future[_Result]" = asyncio.get_running_loop().run_in_executor(None, call)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        cancel.cancel()
        await _ended(work)
        raise
    finally:
        del work  # it has the exception, which knows this frame


async def awaited(function: Callable[..., _Result], *arguments: Any, **options: Any) -> _Result:
    """Any call of ours, in a thread."""
    return await _awaited(Cancel(), function, *arguments, **options)


async def aopen(uri: Any, **options: Any) -> Model:
    """open(), awaited."""
    return await _awaited(Cancel(), open_model, uri, **options)


async def aload(uri: Any, **options: Any) -> dict[str, Any]:
    """load(), awaited."""
    return await _awaited(Cancel(), load, uri, **options)


async def asave(tensors: Any, uri: Any, **options: Any) -> None:
    """save(), awaited."""
    await _awaited(Cancel(), save, tensors, uri, **options)


async def apull(uri: Any, directory: Any, **options: Any) -> None:
    """pull(), awaited."""
    await _awaited(Cancel(), pull, uri, directory, **options)


async def aload_into_module(module: Any, uri: Any, **options: Any) -> tuple[list[str], list[str]]:
    """load_into_module(), awaited."""
    return await _awaited(Cancel(), load_into_module, module, uri, **options)


async def aattach(name: str, device: Any = "cpu", **options: Any) -> PoolModel:
    """attach(), awaited."""
    return await _awaited(Cancel(), attach, name, device, **options)


async def astream(uris: Any, **options: Any) -> AsyncIterator[tuple[str, Any]]:
    """stream(), for `async for`."""
    cancel, arriving = Cancel(), stream(uris, **options)

    def following() -> Optional[tuple[str, Any]]:
        return next(arriving, None)

    try:
        while True:
            pair = await _awaited(cancel, following)
            if pair is None:
                return
            yield pair
    finally:
        cancel.cancel()  # what is being read, which closing waits for
        await _awaited(Cancel(), arriving.close)  # type: ignore[attr-defined]
