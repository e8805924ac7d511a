"""What a model says of itself under keys: texts of safetensors, and numbers, texts and arrays of GGUF."""
from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, Union, cast, overload

from ._error import SluiceError
from ._native import Source, Value

TEXT, ARRAY = 8, 9
# By the numbers that GGUF gives its types; as struct and memoryview call them.
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_DEPTH = 5  # of arrays in arrays; the library refuses more


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


class _Parser:
    """Elements that follow each other. The library has seen them, but what is read again may have changed."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def _take(self, count: int) -> bytes:
        begin, self._at = self._at, self._at + count
        if self._at > len(self._data):
            raise SluiceError("an array ends within its elements", "FORMAT", "gg.truncated")
        return self._data[begin:self._at]

    def _length(self, width: int = 8) -> int:
        return int.from_bytes(self._take(width), "little")

    def elements(self, kind: int, count: int, depth: int) -> Any:
        """As many of a type as there are."""
        form = _NUMBERS.get(kind)
        if form is not None:
            numbers: Any = memoryview(self._take(struct.calcsize("<" + form) * count))
            return numbers.cast(form)
        if count > len(self._data) or depth == _DEPTH or kind not in (TEXT, ARRAY):
            raise SluiceError("an array is not as it was when the model was opened", "FORMAT", "gg.limit")
        if kind == TEXT:
            return [_text(self._take(self._length())) for _ in range(count)]
        return [list(self.elements(self._length(4), self._length(), depth + 1)) for _ in range(count)]


class Values(Sequence[Any]):
    """An array of a GGUF file's metadata: a sequence of numbers, bools, texts or lists. A long one is read when its first element is asked
    for, which is an error once the model is closed; its length is known before. SluiceError as of open().

    >>> tokens = sluice.open("m.gguf").metadata()["tokenizer.ggml.tokens"]
    >>> len(tokens), tokens[0], tokens[1:], tokens == ["<s>", "a", "b"]
    (3, '<s>', ['a', 'b'], True)
    """

    def __init__(self, source: Source, value: Value) -> None:
        self._source, self._value = source, value
        self._held: Any = None

    def _all(self) -> Any:
        """Two that ask at once both read it, and have the same."""
        if self._held is None:
            value = self._value
            data = value.data if value.data is not None else self._source.value_bytes(value)
            self._held = _Parser(data).elements(value.element, value.length, 0)
        return self._held

    def __len__(self) -> int:
        return self._value.length

    @overload
    def __getitem__(self, index: int) -> Any: ...

    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...

    def __getitem__(self, index: Union[int, slice]) -> Any:
        found = self._all()[index]
        return list(found) if isinstance(index, slice) else found

    def __iter__(self) -> Iterator[Any]:
        return iter(self._all())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (list, tuple, Values)):
            return NotImplemented
        them = cast("Sequence[Any]", other)
        return len(self) == len(them) and list(self) == list(them)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)

    def __repr__(self) -> str:
        return f"<sluice.Values of {self._value.key!r}: {len(self)}>"


def _one(source: Source, value: Value) -> Any:
    if value.kind == ARRAY:
        return Values(source, value)
    data = value.data if value.data is not None else source.value_bytes(value)
    return _text(data) if value.kind == TEXT else struct.unpack("<" + _NUMBERS[value.kind], data)[0]


def metadata(source: Source) -> dict[str, Any]:
    """In the file's order; of two with one key the first."""
    found: dict[str, Any] = {}
    for value in source.values():
        if value.key not in found:
            found[value.key] = _one(source, value)
    return found
