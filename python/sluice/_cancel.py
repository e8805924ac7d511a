"""What ends a call of the library before its time: Ctrl-C, a task that is canceled, a stream that nobody takes from any more."""
from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator
from contextvars import ContextVar
from typing import Any, Optional, TypeVar, Union

from . import _fork, _waits
from ._blocks import contextmanager

_Result = TypeVar("_Result")


class Raised:
    """An exception on its way to where it is raised again. It knows the frames that it went through, and they know who keeps it: whoever
    raises it keeps it no longer, or all that these frames hold would wait for the collector of cycles."""

    def __init__(self) -> None:
        self._error: Optional[BaseException] = None

    def __bool__(self) -> bool:
        return self._error is not None

    def keep(self, error: Optional[BaseException]) -> None:
        """Instead of what was kept; None: nothing."""
        self._error = error

    def again(self) -> None:
        """Raise it, if there is one."""
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            del error


class Cancel:
    """A descriptor that becomes readable when whoever has this says so. Whoever works under it keeps it alive. Any thread."""

    def __init__(self) -> None:
        self._ends, self._process = os.pipe(), _fork.process
        self.fd = self._ends[0]

    @property
    def is_here(self) -> bool:
        """Was it made by this process? Else it is the pipe of the one that forked this one."""
        return self._process == _fork.process

    def cancel(self) -> None:
        """End what works under it, and what will; again is fine."""
        if self.is_here:
            os.write(self._ends[1], b"!")

    def __del__(self) -> None:
        for end in self.__dict__.pop("_ends", ()):
            os.close(end)


_CURRENT: ContextVar[Optional[Cancel]] = ContextVar("sluice", default=None)


def current() -> Optional[Cancel]:
    """What this thread works under."""
    found = _CURRENT.get()
    return found if found is not None and found.is_here else None


def under(cancel: Cancel, function: Callable[..., _Result], *arguments: Any, **options: Any) -> _Result:
    """A call on this thread that ends with the cancel, wherever it waits for the library."""
    before = _CURRENT.set(cancel)
    try:
        return function(*arguments, **options)
    finally:
        _CURRENT.reset(before)


_UNTIL: ContextVar[Optional[float]] = ContextVar("sluice until", default=None)  # by the monotonic clock


def may_be_ended() -> bool:
    """Has what this thread works under an end that somebody set, but for Ctrl-C?"""
    return current() is not None or _UNTIL.get() is not None


def checked(timeout: float) -> float:
    """Seconds that a caller gave."""
    if isinstance(timeout, (str, bytes, bool)) or not hasattr(timeout, "__float__"):
        raise TypeError(f"timeout is seconds, a number, not {timeout!r}")
    if not timeout >= 0:
        raise ValueError(f"timeout is seconds, 0 or more, not {timeout!r}")
    return timeout


class Limit:
    """Seconds that a call may wait in all, in however many steps; None: any time. What its caller does between the steps does not count."""

    def __init__(self, seconds: Optional[float]) -> None:
        self.left = None if seconds is None else checked(seconds)

    @contextmanager
    def step(self) -> Generator[None, None, None]:
        """What waits in the block ends within the limit, and within those of blocks around it."""
        begin, outer = time.monotonic(), _UNTIL.get()
        until = None if self.left is None else begin + self.left
        before = _UNTIL.set(outer if until is None else until if outer is None else min(until, outer))
        try:
            yield
        finally:
            _UNTIL.reset(before)
            if self.left is not None:
                self.left = max(self.left - (time.monotonic() - begin), 0.0)


def limit_of(timeout: Union[Limit, float, None]) -> Limit:
    """What is a limit stays the same one."""
    return timeout if isinstance(timeout, Limit) else Limit(timeout)


LONGEST_MS = 2**31 - 1  # 24 days


def milliseconds(timeout: Optional[float]) -> int:
    """For a call of the library, which takes 0 as any time; within what this thread's step has left."""
    until = _UNTIL.get()
    left = [] if until is None else [max(until - time.monotonic(), 0.0)]
    if timeout is not None:
        left.append(checked(timeout))
    return max(int(min(*left, LONGEST_MS / 1000) * 1000), 1) if left else 0


class _Aside:
    """Work on a thread of its own, which the main thread waits for: whatever interrupts it, the work has ended before it goes on, since
    it writes to memory that is given back then."""

    def __init__(self, work: Callable[[], None], cancel: Callable[[], None]) -> None:
        self._work, self._cancel = work, cancel
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._entered = self._given_up = False
        self._raised = Raised()

    def _run(self) -> None:
        with self._lock:
            if self._given_up:
                return
            self._entered = True
        try:
            self._work()
        except BaseException as error:  # raised again by the main thread
            self._raised.keep(error)
        finally:
            self._ended.set()

    def _give_up(self) -> None:
        with self._lock:
            self._given_up = True
            entered = self._entered
        self._cancel()
        while entered and not self._ended.is_set():
            try:
                self._ended.wait()
            except BaseException:  # one more interrupt
                continue

    def run(self) -> None:
        """What it raises is raised."""
        try:
            threading.Thread(target=self._run, name="sluice", daemon=True).start()
            _waits.until(self._ended)
        except BaseException:
            self._give_up()
            raise
        self._raised.again()


def aside(work: Callable[[], None], cancel: Cancel) -> None:
    """Work that an interrupt of the main thread cancels."""
    _Aside(work, cancel.cancel).run()


def interruptible(work: Callable[[int], None], brief: bool = False) -> None:
    """work(cancel_fd), so that Ctrl-C ends it. Off the main thread, which alone gets signals, what the thread works under ends it. brief:
    it waits for nobody, so that an interrupt may come when it has ended; a thread would take longer than the work."""
    if brief and current() is None:
        work(-1)
        return
    if threading.current_thread() is threading.main_thread():
        cancel = Cancel()
        aside(lambda: work(cancel.fd), cancel)
        return
    outer = current()
    work(outer.fd if outer else -1)
