"""What calls wait for while nothing is reached there: the logger "sluice" tells, whose warnings go to standard error unless a program
says otherwise."""
from __future__ import annotations

import ctypes
import logging
import threading

from ._structs import optional

_LOG = logging.getLogger("sluice")
_EVERY_SECONDS = 0.5
_TEXT_BYTES = 1000


def _tell(told: int) -> int:
    waits_for = optional("sluice_waits_for")
    text = ctypes.create_string_buffer(_TEXT_BYTES)
    number: int = waits_for(text, _TEXT_BYTES) if waits_for else 0
    if number > told:
        _LOG.warning("%s", text.value.decode("utf-8", "replace"))
    return max(told, number)


def until(ended: threading.Event) -> None:
    """Wait for it, and tell what it waits for."""
    told = 0
    while not ended.wait(_EVERY_SECONDS):
        told = _tell(told)
