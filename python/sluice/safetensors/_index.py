"""What stands in brackets, by safetensors' rules: no negative ends, no steps below 1, and nothing past the end."""
from __future__ import annotations

import operator
from typing import Any, NamedTuple, Optional, Union

from .._kinds import is_tuple
from .._slices import Ranges
from ._error import SafetensorError


class _Narrow(NamedTuple):
    start: Optional[int]
    stop: Optional[int]
    step: int

    def said(self) -> str:
        """As it is shown in messages."""
        step = "" if self.step == 1 else f":{self.step}"
        return f"{'' if self.start is None else self.start}:{'' if self.stop is None else self.stop}{step}"


_Indexer = Union[_Narrow, int]


def _bound(value: Any) -> Optional[int]:
    if value is None:
        return None
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"'{type(value).__name__}' object cannot be interpreted as an integer")
    number = int(value.__index__())
    if number < 0:
        raise OverflowError("can't convert negative int to unsigned")
    return number


def _narrow(part: Any) -> _Narrow:
    start, stop = _bound(part.start), _bound(part.stop)
    step = 1 if part.step is None else int(part.step)
    if step < 1:
        raise SafetensorError(f"Slice step must be a positive integer, got {step}")
    return _Narrow(start, stop, step)


def _whole(item: Any) -> Optional[int]:
    """None: it is none, such as an array, which has an index by name alone."""
    try:
        return operator.index(item)
    except TypeError:
        return None


def _select(number: int, dim: int, shape: tuple[int, ...]) -> int:
    size = shape[dim] if dim < len(shape) else 0
    if number < 0 and size + number < 0:
        raise SafetensorError(f"Invalid index {number} for dimension {dim} of size {size}")
    return size + number if number < 0 else number


def _items(index: Any) -> Optional[list[Any]]:
    if is_tuple(index):
        return list(index)
    if isinstance(index, list):
        if index:
            raise SafetensorError("Non empty lists are not implemented")
        return None
    return [index]


def _indexers(index: Any, shape: tuple[int, ...]) -> list[_Indexer]:
    items = _items(index)
    if items is None:
        return [_Narrow(0, 0, 1)]
    dots = sum(item is Ellipsis for item in items)
    if dots > 1:
        raise SafetensorError("Only one ellipsis (...) is allowed in slice index")
    rest = max(len(shape) - (len(items) - dots), 0)
    found: list[_Indexer] = []
    for item in items:
        if item is Ellipsis:
            found.extend([_Narrow(None, None, 1)] * rest)
        elif isinstance(item, slice):
            found.append(_narrow(item))
        elif (number := _whole(item)) is not None:
            found.append(_select(number, len(found), shape))
        else:
            raise SafetensorError(
                f"Unsupported slice index at position {len(found)}: expected slice, int, or ellipsis"
            )
    return found


def _range(indexer: _Indexer, size: int) -> tuple[int, int, int]:
    if isinstance(indexer, int):
        return indexer, indexer + 1, 1
    return indexer.start or 0, size if indexer.stop is None else indexer.stop, indexer.step


def _wrong(found: list[_Indexer], shape: tuple[int, ...]) -> Optional[str]:
    if len(found) > len(shape):
        return "more slicing indexes than dimensions in tensor"
    for dim, indexer in enumerate(found):
        start, stop, _ = _range(indexer, shape[dim])
        if start >= shape[dim] or stop > shape[dim]:
            asked = start if start >= shape[dim] else max(stop - 1, 0)
            return f"index {asked} out of bounds for tensor dimension #{dim} of size {shape[dim]}"
    return None


def resolve(index: Any, shape: tuple[int, ...]) -> Ranges:
    """What an index takes of a tensor of this shape, or SafetensorError."""
    found = _indexers(index, shape)
    wrong = _wrong(found, shape)
    if wrong is not None:
        shown = ", ".join(str(one) if isinstance(one, int) else one.said() for one in found)
        raise SafetensorError(f"Error during slicing [{shown}] with shape {list(shape)}: {wrong}")
    found += [_Narrow(None, None, 1)] * (len(shape) - len(found))
    ranges: list[tuple[int, int, int]] = []
    read: list[int] = []
    final: list[int] = []
    for size, indexer in zip(shape, found):
        start, stop, step = _range(indexer, size)
        count = len(range(start, stop, step))
        ranges.append((start, start + (count - 1) * step + 1, step) if count else (0, 0, 1))
        read.append(count)
        if not isinstance(indexer, int):
            final.append(count)
    return Ranges(tuple(ranges), tuple(read), (), tuple(final))
