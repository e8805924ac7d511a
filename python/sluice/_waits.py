"""What calls wait for while nothing is reached there: the logger "sluice" tells, whose warnings go to standard error unless a program
says otherwise."""
from __future__ import annotations

import ctypes
import threading

from ._structs import optional

_EVERY_SECONDS = 0.5
_TEXT_BYTES = 1000


def _latest() -> tuple[int, str]:
    """The last sentence of this process, by whichever call, and its number; 0 where there is none."""
    waits_for = optional("sluice_waits_for")
    text = ctypes.create_string_buffer(_TEXT_BYTES)
    number: int = waits_for(text, _TEXT_BYTES) if waits_for else 0
    return number, text.value.decode("utf-8", "replace")


def until(ended: threading.Event) -> None:
    """Wait for it, and tell what it waits for; what calls before it waited for is no news."""
    told, _ = _latest()
    while not ended.wait(_EVERY_SECONDS):
        number, text = _latest()
        if number > told:
            import logging  # a fifth of the time of `import sluice`, for who waits

            logging.getLogger("sluice").warning("%s", text)
            told = number
