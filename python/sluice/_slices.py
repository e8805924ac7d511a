"""What stands in brackets, as ranges with steps above 0: torch's rules, and negative steps, which torch has none of."""
from __future__ import annotations

import builtins
import operator
from typing import Any, NamedTuple

from ._kinds import is_tuple, whole


class Ranges(NamedTuple):
    """What is read, a range a dimension, and what becomes of it afterwards."""

    ranges: tuple[tuple[int, int, int], ...]  # start, stop, step > 0
    read_shape: tuple[int, ...]
    flips: tuple[int, ...]  # dimensions that are turned round
    shape: tuple[int, ...]  # in the end: without the dimensions of whole numbers, with those of None


def _expanded(index: Any, rank: int) -> tuple[Any, ...]:
    """As many as there are dimensions, besides None."""
    parts = index if is_tuple(index) else (index,)
    named = sum(part is not None and part is not Ellipsis for part in parts)
    dots = sum(part is Ellipsis for part in parts)
    if dots > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    if named > rank:
        raise IndexError(f"too many indices for a tensor of dimension {rank}")
    rest = (builtins.slice(None),) * (rank - named)
    if not dots:
        return tuple(parts) + rest
    at = next(i for i, part in enumerate(parts) if part is Ellipsis)
    return tuple(parts[:at]) + rest + tuple(parts[at + 1:])


def _number(part: Any, size: int, dim: int) -> int:
    if isinstance(part, bool) or str(getattr(part, "dtype", "")).endswith("bool"):
        raise TypeError("a slice is of numbers, ranges, None and an ellipsis, not of truth values")
    try:
        if getattr(part, "ndim", 0):
            raise TypeError  # operator.index() would take a tensor of one element for a number
        number = operator.index(part)
    except TypeError:
        raise TypeError(
            f"a slice is of numbers, ranges, None and an ellipsis, not {type(part).__name__}: take those of the array"
        ) from None
    if not -size <= number < size:
        raise IndexError(f"index {number} is out of bounds for dimension {dim} with size {size}")
    return number % size


def _range(part: Any, size: int) -> tuple[tuple[int, int, int], int, bool]:
    """The range with a step above 0, its length, and is it turned round."""
    start, stop, step = part.indices(size)
    count = len(range(start, stop, step))
    if count == 0:
        return (0, 0, 1), 0, False
    if step > 0:
        return (start, start + (count - 1) * step + 1, step), count, False
    last = start + (count - 1) * step
    return (last, start + 1, -step), count, True


def resolve(index: Any, shape: tuple[int, ...]) -> Ranges:
    """What an index takes of a tensor of this shape. IndexError and TypeError as torch has them."""
    ranges: list[tuple[int, int, int]] = []
    read: list[int] = []
    final: list[int] = []
    flips: list[int] = []
    for part in _expanded(index, len(shape)):
        if part is None:
            final.append(1)
            continue
        dim, size = len(ranges), shape[len(ranges)]
        if isinstance(part, builtins.slice):
            found, count, turned = _range(part, size)
            ranges.append(found)
            read.append(count)
            final.append(count)
            if turned:
                flips.append(dim)
        else:
            at = _number(part, size, dim)
            ranges.append((at, at + 1, 1))
            read.append(1)
    return Ranges(tuple(ranges), tuple(read), tuple(flips), tuple(final))


def in_one_piece(ranges: tuple[tuple[int, int, int], ...], shape: tuple[int, ...]) -> bool:
    """Do the elements lie one behind the other in the tensor?"""
    behind = False  # a dimension before has more than one index: from here on all is taken
    for (start, stop, step), size in zip(ranges, shape):
        if step > 1 or (behind and stop - start < size):
            return False
        behind = behind or stop - start > 1
    return True


def dimension(dim: int, shape: tuple[int, ...], name: str) -> int:
    """Which one is meant, from 0 on."""
    found = whole(dim, "dim")
    if not -len(shape) <= found < len(shape):
        raise IndexError(f"'{name}' has {len(shape)} dimensions: no dim {dim}")
    return found % len(shape)


def part_of(size: int, rank: int, of: int) -> builtins.slice:
    """The rows of one of several ranks: of equal length, but for the last ones."""
    rank, of = whole(rank, "rank"), whole(of, "of")
    if of < 1 or not 0 <= rank < of:
        raise ValueError(f"rank {rank} of {of}: a rank is 0 to {max(of, 1) - 1}")
    each = -(-size // of)
    return builtins.slice(min(rank * each, size), min((rank + 1) * each, size))
