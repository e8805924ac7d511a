"""Generators as `with` blocks."""
from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Generic, Optional, TypeVar

if TYPE_CHECKING:
    from typing_extensions import ParamSpec

    _Given = ParamSpec("_Given")
_Value = TypeVar("_Value")


class _Block(Generic[_Value]):
    def __init__(self, steps: Generator[_Value, None, None]) -> None:
        self._steps = steps

    def __enter__(self) -> _Value:
        return next(self._steps)

    def __exit__(self, kind: Any, value: Optional[BaseException], trace: Any) -> None:
        if value is None:
            next(self._steps, None)
            return
        try:
            self._steps.throw(value)
        except BaseException as error:
            if error is not value:
                raise
            error.__traceback__ = trace  # without this frame, which knows it
        finally:
            del value, trace


def contextmanager(function: "Callable[_Given, Generator[_Value, None, None]]") -> "Callable[_Given, AbstractContextManager[_Value]]":
    """contextlib's, whose blocks make a cycle until Python 3.10: exception, traceback, frame of the block, exception. What the frames of whoever
    raised hold would wait for the collector. The generator yields once, and raises again what was raised in the block, or another."""
    def made(*arguments: "_Given.args", **options: "_Given.kwargs") -> "AbstractContextManager[_Value]":
        return _Block(function(*arguments, **options))

    made.__name__, made.__doc__ = function.__name__, function.__doc__
    return made
