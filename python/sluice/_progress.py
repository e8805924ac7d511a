"""Bars: tqdm's where it is installed, else a line of our own; off unless asked for."""
from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Generator
from typing import Any, Optional, Union

from ._blocks import contextmanager
from ._kinds import called

Wanted = Union[bool, Callable[[int, int], object], None]  # True: a bar; False and None: nothing
Progress = Callable[[int, int], object]


class _Line:
    """A line on standard error that is written over, ten times a second at most."""

    def __init__(self, what: str) -> None:
        self._what, self._next, self._began = what, 0.0, time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now < self._next and done < total:
            return
        self._next = now + 0.1
        rate = done / max(now - self._began, 1e-3) / 1e6
        sys.stderr.write(f"\r{self._what}: {done / 1e6:,.1f} of {total / 1e6:,.1f} MB, {rate:,.0f} MB/s ")
        sys.stderr.flush()

    def close(self) -> None:
        """What was written stays."""
        sys.stderr.write("\n")


class _Tqdm:
    """tqdm chooses what a notebook and a terminal are shown."""

    def __init__(self, what: str, bar: Any) -> None:
        self._bar = bar(desc=what, unit="B", unit_scale=True, total=0)

    def __call__(self, done: int, total: int) -> None:
        self._bar.total = total
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        """Leave it as it is."""
        self._bar.close()


def _bar(what: str) -> Any:
    try:
        from tqdm.auto import tqdm  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        return _Line(what)
    return _Tqdm(what, tqdm)


def _growing(show: Progress) -> Progress:
    """Several threads tell; what is shown only grows."""
    lock, most = threading.Lock(), [0]

    def told(done: int, total: int) -> None:
        with lock:
            most[0] = max(most[0], done)
            show(most[0], total)

    return told


def within(tell: Optional[Progress], before: int, total: int) -> Optional[Progress]:
    """For a part of the work: what it tells is told as of all of it."""
    return None if tell is None else lambda done, _: tell(before + done, total)


def without_secrets(what: str) -> str:
    """A URI for people: without users, passwords and signatures. What is none stays as it is."""
    scheme, mark, rest = what.partition("://")
    if not mark:
        return what
    place, slash, path = rest.split("?")[0].partition("/")
    return scheme + mark + place.rpartition("@")[2] + slash + path


@contextmanager
def shown(wanted: Wanted, what: str) -> Generator[Optional[Progress], None, None]:
    """What a call of the library tells its progress to; None: nobody asks. A bar is called what, which may be a URI."""
    if not isinstance(wanted, bool):
        called(wanted, "progress")
    if wanted is None or wanted is False:
        yield None
    elif wanted is True:
        bar = _bar(without_secrets(what))
        try:
            yield _growing(bar)
        finally:
            bar.close()
    else:
        yield wanted
