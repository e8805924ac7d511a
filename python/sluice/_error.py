"""Errors of the library as exceptions."""
from __future__ import annotations

import re
from typing import Any, Union

from ._library import Error

_KINDS = {
    1: "INTERNAL", 2: "USAGE", 3: "AUTH", 4: "NOT_FOUND", 5: "INTEGRITY", 6: "NO_SPACE", 7: "NET", 8: "TIMEOUT", 9: "GPU",
    10: "FORMAT", 11: "CANCELED",
}
# Flags of the program, as the parameters are called here that do the same.
_FLAGS = {
    "replace": "replace=True", "include": "include=", "exclude": "exclude=", "key-file": "key=", "passphrase-file": "key=", "encrypt": "key=",
    "to-format tensorizer": 'format="tensorizer"', "to-format tensors": 'format="tensorizer"',
}
_BOTH = "give its key with --key-file or its passphrase with --passphrase-file"
_FLAG = re.compile(f"(?<= )--({'|'.join(sorted(_FLAGS, key=len, reverse=True))})(?![\\w-])")


def in_python(message: str) -> str:
    """A sentence of the library's, which speaks to whoever uses the program."""
    return _FLAG.sub(lambda found: _FLAGS[found[1]], message.replace(_BOTH, "give key=, a sluice.Key or a passphrase"))


def _told(error: Union[Error, str], kind: str, code: str) -> tuple[str, str, str]:
    if not isinstance(error, Error):
        return error, kind, code
    message = in_python(error.message.decode("utf-8", "replace"))
    return message, _KINDS.get(error.kind, "INTERNAL"), error.code.decode("utf-8", "replace")


class SluiceError(Exception):
    """kind is one of docs/reference/errors.md; code says more, or is empty. Those of some kinds are exceptions of Python's, too: NOT_FOUND is a
    FileNotFoundError, AUTH a PermissionError, TIMEOUT a TimeoutError, NET a ConnectionError, USAGE and FORMAT are ValueErrors.

    >>> try:
    ...     sluice.open("nowhere.safetensors")
    ... except FileNotFoundError as error:
    ...     print(error.kind)
    NOT_FOUND
    """

    kind: str
    code: str

    def __new__(cls, error: Union[Error, str], kind: str = "INTERNAL", code: str = "") -> "SluiceError":
        """Of the class that this kind has."""
        message, kind, _ = _told(error, kind, code)
        made = _CLASSES.get(kind, cls) if cls is SluiceError else cls
        return OSError.__new__(made, message) if issubclass(made, OSError) else Exception.__new__(made, message)

    def __init__(self, error: Union[Error, str], kind: str = "INTERNAL", code: str = "") -> None:
        message, self.kind, self.code = _told(error, kind, code)
        super().__init__(message)

    def __reduce__(self) -> tuple[Any, ...]:
        return (SluiceError, (str(self), self.kind, self.code))


class SluiceNotFoundError(SluiceError, FileNotFoundError):
    """The model, the object or the tensor does not exist."""


class SluicePermissionError(SluiceError, PermissionError):
    """The store, the daemon or the system refuses access."""


class SluiceTimeoutError(SluiceError, TimeoutError):
    """The call did not end within its timeout."""


class SluiceConnectionError(SluiceError, ConnectionError):
    """A store or a daemon cannot be reached, or ended the connection."""


class SluiceValueError(SluiceError, ValueError):
    """An argument is wrong, or a file does not follow its format."""


_CLASSES: dict[str, type[SluiceError]] = {
    "NOT_FOUND": SluiceNotFoundError, "AUTH": SluicePermissionError, "TIMEOUT": SluiceTimeoutError, "NET": SluiceConnectionError,
    "USAGE": SluiceValueError, "FORMAT": SluiceValueError,
}
for _class in (SluiceError, *_CLASSES.values()):  # a traceback names it as `except` does
    _class.__module__ = "sluice"


def check(result: int, error: Error) -> None:
    if result < 0:
        raise SluiceError(error)
