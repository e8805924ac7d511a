"""A .tensors file as keys of Redis, as tensorizer lays them out."""
from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

_HEAD = struct.Struct("<5sIQ24xQ8xQ")  # magic, version, flags, bytes, tensors; then follows the index, with its length first
_META_TENSORS, _LONG_SHAPES, _VERSIONED = 4, 5, 1 << 1


class Piece(NamedTuple):
    """A value of Redis, and the key of the header of its tensor; the file's own has none."""

    of: str
    key: str
    data: bytes


def _exactly(file: Any, offset: int, count: int) -> bytes:
    file.seek(offset)
    data: bytes = file.read(count)
    if len(data) != count:
        raise ValueError("the file is shorter than its index says")
    return data


class _Index:
    """What is read of an index, from its beginning on."""

    def __init__(self, data: bytes, versioned: bool) -> None:
        self._data, self._at, self._versioned = data, 0, versioned

    def _take(self, form: str) -> tuple[Any, ...]:
        found = struct.unpack_from("<" + form, self._data, self._at)
        self._at += struct.calcsize("<" + form)
        return found

    def entry(self) -> tuple[str, int, int, int]:
        """(name, place of the header, place of the data, bytes of the data)"""
        long = self._versioned and self._take("I")[0] >= _LONG_SHAPES
        name: bytes = self._take(f"{self._take('H')[0]}s")[0]
        self._take("B")
        self._take(f"{self._take('B')[0]}s")
        self._take(f"{self._take('B')[0]}{'Q' if long else 'I'}")
        header, data, count = self._take("QQQ")
        if not 0 < data - header < 1 << 32:
            raise ValueError(f"the header of '{name!r}' is not before its data")
        return name.decode("utf-8"), header, data, count


def pieces(file: Any, prefix: str) -> Iterator[Piece]:
    """In the order in which tensorizer sets them."""
    first = _exactly(file, 0, _HEAD.size + 8)
    magic, version, flags, _, count = _HEAD.unpack_from(first)
    if magic != b"|TZR|":
        raise ValueError("only a .tensors file can be put into Redis so")
    raw = _exactly(file, len(first), struct.unpack_from("<Q", first, _HEAD.size)[0])
    yield Piece("", f"{prefix}:header:0", first + raw)
    index = _Index(raw, version >= _META_TENSORS and bool(flags & _VERSIONED))
    for _ in range(count):
        name, header, data, length = index.entry()
        of = f"{prefix}:{name}:{header}"
        yield Piece(of, of, _exactly(file, header, data - header))
        yield Piece(of, f"{prefix}:{name}:{data}", _exactly(file, data, length))
