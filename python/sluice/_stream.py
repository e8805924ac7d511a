"""Tensors of a model as they arrive, while a thread reads those behind them."""
from __future__ import annotations

import atexit
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Optional

from . import _cancel, _fork, _frameworks, _progress
from ._error import SluiceError
from ._native import Entry

if TYPE_CHECKING:
    from ._model import Model

GROUP_BYTES = 256 << 20  # what stream() has in memory: three of these, or the largest tensor


def _groups(entries: Sequence[Entry], group_bytes: int) -> Iterator[list[Entry]]:
    group: list[Entry] = []
    size = 0
    for entry in entries:
        if group and size + entry.nbytes > group_bytes:
            yield group
            group, size = [], 0
        group.append(entry)
        size += entry.nbytes
    if group:
        yield group


Reads = Callable[[Any, Optional[Callable[[int, Any], object]], Optional[_progress.Progress]], Sequence[Any]]


class Stream:
    """Threads read group after group, each its own; one or two of them are in memory, the second as soon as something was taken. Of two
    threads one fetches while the other waits for the last bytes of its group: then whoever takes must name what it takes, in order."""

    def __init__(
        self, model: Model, groups: Sequence[Sequence[Any]], tell: Optional[_progress.Progress], limit: Optional[_cancel.Limit] = None,
        read: Optional[Reads] = None, threads: int = 1,
    ) -> None:
        self._read_many: Reads = read or model.get_many
        self._tell, self._limit = tell, limit or _cancel.Limit(None)
        sizes = [sum(entry.nbytes for entry in group) for group in groups]
        self._total = sum(sizes)
        self._waiting = deque(zip(groups, accumulate(sizes, initial=0)))  # groups, and how many bytes come before each
        self._cancel = _cancel.current() or _cancel.Cancel()
        self._as_here = _frameworks.as_here(model.device)
        self._changed = threading.Condition()
        self._ready: deque[tuple[str, Any]] = deque()
        self._left: deque[int] = deque()  # of each group that was begun, how many tensors were not taken
        self._begun = 0  # groups
        self._being_read: set[int] = set()  # their numbers: what was taken of them is also with who reads them
        self._taken = self._ended = self._stopped = False
        self._raised = _cancel.Raised()
        self._reading = min(threads, max(len(groups), 1))  # how many threads are at work
        self._threads = [
            threading.Thread(target=_cancel.under, args=(self._cancel, self._run), name="sluice stream", daemon=True)
            for _ in range(self._reading)
        ]

    def __enter__(self) -> "Stream":
        _streams.add(self)
        _fork.known(self)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        _streams.discard(self)
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
            if self._reading:
                self._cancel.cancel()
        if threading.current_thread() not in self._threads:  # the collector of cycles can come here on one of them, with the lock
            for thread in self._threads:
                thread.join()
        self._raised.keep(None)
        self._ready.clear()

    def forked(self) -> None:
        """Its threads are not here, and what they wait for is the parent's."""
        _streams.discard(self)
        self._changed, self._threads, self._reading, self._ended = threading.Condition(), [], 0, True
        self._ready.clear()
        self._raised.keep(SluiceError("this stream was begun before this process was forked: begin it again here", "USAGE", "forked"))

    def _arrived(self, name: str, array: Any) -> None:
        with self._changed:
            if self._stopped:
                raise GeneratorExit
            self._ready.append((name, array))
            self._changed.notify_all()

    def _in_memory(self) -> int:
        """How many groups are. The lock is held."""
        taken = self._begun - len(self._left)
        return len(self._left) + sum(number < taken for number in self._being_read)

    def _may_go_on(self) -> bool:
        return self._in_memory() < 1 + self._taken or self._stopped or self._ended or not self._waiting

    def _next_group(self, read: int) -> Optional[tuple[int, Sequence[Any], int]]:
        """Behind the one that was read: its number, and how many bytes come before it. As soon as there is room for it; None: there is none,
        or nobody wants it."""
        with self._changed:
            self._being_read.discard(read)
            self._changed.notify_all()
            self._changed.wait_for(self._may_go_on)
            if self._stopped or self._ended or not self._waiting:
                return None
            number, (group, before) = self._begun, self._waiting.popleft()
            self._begun += 1
            self._being_read.add(number)
            self._left.append(len(group))
            return number, group, before

    def _run(self) -> None:
        number = -1
        try:
            while (begun := self._next_group(number)) is not None:
                number, group, before = begun
                with self._limit.step(), self._as_here():
                    self._read(group, _progress.within(self._tell, before, self._total))
        except BaseException as error:  # raised again where the stream is taken from
            with self._changed:
                if not self._ended:
                    self._raised.keep(error)
                self._ended = True
        finally:
            with self._changed:
                self._reading -= 1
                self._ended = self._ended or not self._reading
                self._changed.notify_all()

    def _read(self, group: Sequence[Any], tell: Optional[_progress.Progress]) -> None:
        arrived: set[int] = set()

        def done(index: int, array: Any) -> None:
            arrived.add(index)
            self._arrived(group[index].name, array)

        for index, array in enumerate(self._read_many(group, done, tell)):
            if index not in arrived:
                self._arrived(group[index].name, array)

    def _count(self) -> None:
        """One of the first group was taken. The lock is held."""
        self._taken = True
        self._left[0] -= 1
        if not self._left[0]:
            self._left.popleft()
        self._changed.notify_all()

    def take(self, name: Any, missing: Any) -> Any:
        """The one of this name, of a group before which all were taken. missing: there will be none."""
        with self._changed:
            while True:
                for at, pair in enumerate(self._ready):
                    if pair[0] == name:
                        del self._ready[at]
                        self._count()
                        return pair[1]
                if self._ended:
                    return missing
                self._changed.wait()

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ready or self._ended)
                if not self._ready:
                    self._raised.again()
                    return
                pair = self._ready.popleft()
                self._count()
            yield pair


def arriving(
    model: "Model", entries: Sequence[Entry], group_bytes: int, limit: _cancel.Limit, tell: Optional[_progress.Progress]
) -> Iterator[tuple[str, Any]]:
    """(name, tensor) of these, in groups of so many bytes."""
    with Stream(model, list(_groups(entries, group_bytes)), tell, limit) as stream:
        yield from stream


_streams: set[Stream] = set()  # that have threads


@atexit.register
def _end_streams() -> None:
    """An interpreter that ends stops threads wherever they are. Within a call of torch that ends the whole process."""
    for stream in list(_streams):
        stream.__exit__(None, None, None)
