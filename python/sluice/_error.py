"""Errors of the library as exceptions."""
from __future__ import annotations

from typing import Any, Union

from ._library import Error

_KINDS = {
    1: "INTERNAL", 2: "USAGE", 3: "AUTH", 4: "NOT_FOUND", 5: "INTEGRITY", 6: "NO_SPACE", 7: "NET", 8: "TIMEOUT", 9: "GPU",
    10: "FORMAT", 11: "CANCELED",
}


class SluiceError(Exception):
    """kind is one of docs/reference/errors.md; code says more, or is empty."""

    kind: str
    code: str

    def __init__(self, error: Union[Error, str], kind: str = "INTERNAL", code: str = "") -> None:
        if isinstance(error, Error):
            kind, code = _KINDS.get(error.kind, "INTERNAL"), error.code.decode("utf-8", "replace")
            error = error.message.decode("utf-8", "replace")
        super().__init__(error)
        self.kind, self.code = kind, code

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (str(self), self.kind, self.code))


def check(result: int, error: Error) -> None:
    if result < 0:
        raise SluiceError(error)
