"""What a value is that may be anything, so that type checkers know its parts, too."""
from __future__ import annotations

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
    found = [given] if isinstance(given, str) else list(given)
    for text in found:
        if not isinstance(text, str):
            raise TypeError(f"{what} is a str, or several, not {text!r}")
    return found


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
