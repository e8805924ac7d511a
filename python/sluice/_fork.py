"""A process that was forked has this one's memory and descriptors, but none of its threads, and whatever lock one of them had stays taken."""
from __future__ import annotations

import os
import threading
import weakref
from typing import Any

_known: "weakref.WeakSet[Any]" = weakref.WeakSet()
_lock = threading.Lock()
process = os.getpid()  # this one, without a call of the system


def known(thing: Any) -> None:
    """In a process that is forked later, thing.forked() is called first."""
    with _lock:
        _known.add(thing)


def _after() -> None:
    global _lock, process
    _lock, process = threading.Lock(), os.getpid()
    for thing in list(_known):
        thing.forked()


os.register_at_fork(after_in_child=_after)
