"""What is computed when it is first asked for, and kept."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

_Value = TypeVar("_Value")


class once(Generic[_Value]):
    """functools.cached_property without its lock. Until Python 3.11 that is one for all objects: a process that was forked while any thread
    was inside would wait for it for ever. Two threads may both compute it, and both get what was there first."""

    def __init__(self, function: Callable[[Any], _Value]) -> None:
        self._function, self._name, self.__doc__ = function, function.__name__, function.__doc__

    def __get__(self, owner: Any, kind: Any = None) -> _Value:
        if owner is None:
            return self  # type: ignore[return-value]
        kept: dict[str, Any] = owner.__dict__
        found: _Value = kept.setdefault(self._name, self._function(owner))
        return found
