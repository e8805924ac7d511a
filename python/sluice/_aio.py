"""The calls that people wait for, for programs with an event loop: each runs in a thread, and ends when its task is canceled."""
from __future__ import annotations

import contextvars
import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, Optional, TypeVar

from ._cancel import Cancel, under
from ._files import pull
from ._frameworks import as_here
from ._load import load, stream
from ._model import open_model
from ._module import load_into_module
from ._pool import attach
from ._write import save

if TYPE_CHECKING:
    import asyncio  # which takes longer than all of sluice, and is imported where it is used

    from typing_extensions import ParamSpec

    _Given = ParamSpec("_Given")
_Result = TypeVar("_Result")
_EXAMPLES = {
    "aopen": """>>> import asyncio
>>> len(asyncio.run(sluice.aopen("m.safetensors")))
2""",
    "aload": """>>> import asyncio
>>> asyncio.run(sluice.aload("m.safetensors", framework="numpy"))["w"].shape
(4, 6)""",
    "asave": """>>> import asyncio, numpy
>>> asyncio.run(sluice.asave({"a": numpy.ones(2)}, "awaited.safetensors"))""",
    "apull": """>>> import asyncio
>>> asyncio.run(sluice.apull("m.safetensors", "awaited"))""",
    "aload_into_module": """>>> asyncio.run(sluice.aload_into_module(module, "m.safetensors"))  # doctest: +SKIP
([], [])""",
    "aattach": """>>> model = await sluice.aattach("gpt-j-6b")  # doctest: +SKIP""",
    "astream": """>>> import asyncio
>>> async def names():
...     return sorted([name async for name, _ in sluice.astream("m.safetensors", framework="numpy")])
>>> asyncio.run(names())
['b', 'w']""",
}


async def _ended(work: "asyncio.Future[Any]") -> None:
    """Until the thread has ended, however often the task is canceled meanwhile: it may write to memory."""
    import asyncio

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
    import asyncio

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


def _named(made: Any, function: Callable[..., Any], name: str) -> None:
    """The signature is the function's."""
    functools.update_wrapper(made, function)
    made.__name__ = made.__qualname__ = name
    made.__doc__ = f"{name[1:]}(), awaited: parameters, errors and what comes back are its.\n\n" + _EXAMPLES[name]
    made.__module__ = __name__


def _awaiting(name: str, function: "Callable[_Given, _Result]") -> "Callable[_Given, Coroutine[Any, Any, _Result]]":
    async def made(*arguments: "_Given.args", **options: "_Given.kwargs") -> _Result:
        return await _awaited(Cancel(), function, *arguments, **options)

    _named(made, function, name)
    return made


def _streaming(
    name: str, function: "Callable[_Given, Generator[tuple[str, Any], None, None]]"
) -> "Callable[_Given, AsyncGenerator[tuple[str, Any], None]]":
    async def made(*arguments: "_Given.args", **options: "_Given.kwargs") -> AsyncGenerator[tuple[str, Any], None]:
        cancel, arriving = Cancel(), function(*arguments, **options)

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
            await _awaited(Cancel(), arriving.close)

    _named(made, function, name)
    made.__doc__ = f"{name[1:]}(), for `async for`: parameters and errors are its.\n\n" + _EXAMPLES[name]
    return made


aopen = _awaiting("aopen", open_model)
aload = _awaiting("aload", load)
asave = _awaiting("asave", save)
apull = _awaiting("apull", pull)
aload_into_module = _awaiting("aload_into_module", load_into_module)
aattach = _awaiting("aattach", attach)
astream = _streaming("astream", stream)
