"""What a value is that may be anything, so that type checkers know its parts, too."""
from __future__ import annotations

import operator
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional, Union

if TYPE_CHECKING:
    from typing_extensions import TypeGuard


Texts = Union[str, Iterable[str]]  # one, or several


def texts(given: Optional[Texts], what: str) -> list[str]:
    """Names or patterns: one text is one, and not its letters. None: none."""
    if given is None:
        return []
    found: list[Any] = [given]
    if not isinstance(given, (str, bytes)):
        try:
            found = list(given)
        except TypeError:
            pass
    for text in found:
        if not isinstance(text, str):
            raise TypeError(f"{what} is a str, or several, not {text!r}")
    return found


def whole(given: Any, what: str) -> int:
    """A whole number."""
    if isinstance(given, bool) or not hasattr(given, "__index__"):
        raise TypeError(f"{what} is a whole number, not {given!r}")
    return operator.index(given)


def number(given: Any, what: str, end: int = 1 << 64) -> int:
    """A whole number from 0 on. ctypes would take another one for what is larger or below."""
    found = whole(given, what)
    if not 0 <= found < end:
        raise ValueError(f"{what} is a number from 0 to {end - 1}, not {found}")
    return found


def flag(given: Any, what: str) -> bool:
    """True or False. A text is neither, whatever it says."""
    if isinstance(given, bool) or type(given).__name__ in ("bool_", "bool"):  # NumPy's
        return bool(given)
    raise TypeError(f"{what} is True or False, not {given!r}")


def called(given: Any, what: str) -> Any:
    """A function, or None."""
    if given is None or callable(given):
        return given
    raise TypeError(f"{what} is a function, not {given!r}")


def told(given: Any, what: str) -> Optional[str]:
    """A text, or None."""
    if given is None or isinstance(given, str):
        return given
    raise TypeError(f"{what} is a str, not {given!r}")


def encoded(given: str, what: str) -> bytes:
    """In UTF-8, as models have it. A half of a character is in no text of theirs."""
    try:
        return given.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise ValueError(f"{what} is not a text that can be written down: {given!r}") from None


def renamed(call: str, old: str, new: str, given: Any, before: Any) -> Any:
    """What a caller gave by the name that a parameter has, or by the one that it had."""
    if before is None:
        return given
    warnings.warn(f"{call}({old}=…) is called {call}({new}=…)", DeprecationWarning, stacklevel=3)
    return before if given is None else given


def is_tuple(value: object) -> TypeGuard[tuple[Any, ...]]:
    """A tuple of anything."""
    return isinstance(value, tuple)


def is_dict(value: object) -> TypeGuard[dict[Any, Any]]:
    """A dict of anything."""
    return isinstance(value, dict)


def is_mapping(value: object) -> TypeGuard[Mapping[Any, Any]]:
    """A mapping of anything."""
    return isinstance(value, Mapping)


def is_list(value: object) -> TypeGuard[Sequence[Any]]:
    """A sequence of anything but characters or bytes."""
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))
