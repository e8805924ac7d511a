"""Tensors of a model as they arrive, while a thread reads those behind them."""
from __future__ import annotations

import atexit
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
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
    """One thread reads group after group; at most one is read ahead of what was taken."""

    def __init__(
        self, model: Model, groups: Sequence[Sequence[Any]], tell: Optional[_progress.Progress], limit: Optional[_cancel.Limit] = None,
        read: Optional[Reads] = None,
    ) -> None:
        self._read_many: Reads = read or model.get_many
        self._groups, self._tell, self._limit = groups, tell, limit or _cancel.Limit(None)
        self._cancel = _cancel.current() or _cancel.Cancel()
        self._as_here = _frameworks.as_here(model.device)
        self._changed = threading.Condition()
        self._ready: deque[tuple[str, Any]] = deque()
        self._left: deque[int] = deque()  # of each group that was begun, how many tensors were not taken
        self._ended = self._stopped = False
        self._raised = _cancel.Raised()
        self._thread: Optional[threading.Thread] = threading.Thread(
            target=_cancel.under, args=(self._cancel, self._run), name="sluice stream", daemon=True
        )

    def __enter__(self) -> "Stream":
        _streams.add(self)
        _fork.known(self)
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        _streams.discard(self)
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
            if not self._ended:
                self._cancel.cancel()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._raised.keep(None)
        self._ready.clear()

    def forked(self) -> None:
        """Its thread is not here, and what it waits for is the parent's."""
        _streams.discard(self)
        self._changed, self._thread, self._ended = threading.Condition(), None, True
        self._ready.clear()
        self._raised.keep(SluiceError("this stream was begun before this process was forked: begin it again here", "USAGE", "forked"))

    def _arrived(self, name: str, array: Any) -> None:
        with self._changed:
            if self._stopped:
                raise GeneratorExit
            self._ready.append((name, array))
            self._changed.notify_all()

    def _await_room(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: len(self._left) < 2 or self._stopped)
            return not self._stopped

    def _run(self) -> None:
        sizes = [sum(entry.nbytes for entry in group) for group in self._groups]
        total, before = sum(sizes), 0
        try:
            for group, size in zip(self._groups, sizes):
                if not self._await_room():
                    return
                with self._changed:
                    self._left.append(len(group))
                with self._limit.step(), self._as_here():
                    self._read(group, _progress.within(self._tell, before, total))
                before += size
        except BaseException as error:  # raised again where the stream is taken from
            self._raised.keep(error)
        finally:
            with self._changed:
                self._ended = True
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


_streams: set[Stream] = set()  # that have a thread


@atexit.register
def _end_streams() -> None:
    """An interpreter that ends stops threads wherever they are. Within a call of torch that ends the whole process."""
    for stream in list(_streams):
        stream.__exit__(None, None, None)
