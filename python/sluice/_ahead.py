"""What will be asked for next, read while what was asked for is used: of models that are not local files, as soon as they are read in an
order that is known."""
from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from . import _cancel, _slices
from ._native import Entry
from ._stream import Stream

if TYPE_CHECKING:
    from ._model import Model

AHEAD_BYTES = 64 << 20  # of a group; two of them are in memory, or the largest tensor
FIRST_BYTES = 16 << 20  # of the first one; the next is begun when something of it was taken
IN_ORDER = 2  # tensors, after which more are read than were asked for
MISSING: Any = object()


class Job(NamedTuple):
    """A tensor, or a part of one."""

    name: Any  # what it is asked for by
    nbytes: int
    entry: Entry
    taken: Optional[_slices.Ranges]  # None: all of it


def _groups(jobs: Sequence[Job]) -> Iterator[list[Job]]:
    """The first one is smaller: who asked for two in order may want no third."""
    group: list[Job] = []
    size, most = 0, min(FIRST_BYTES, AHEAD_BYTES)
    for job in jobs:
        if group and size + job.nbytes > most:
            yield group
            group, size, most = [], 0, AHEAD_BYTES
        group.append(job)
        size += job.nbytes
    if group:
        yield group


class Ahead:
    """Some jobs, in the order in which they will be asked for. What is not there, for whatever reason, is for the caller to read. reading: it
    must not know who owns this, so that who drops that ends the thread."""

    def __init__(self, reading: Model, jobs: Sequence[Job]) -> None:
        self._jobs = jobs
        self._at = 0
        self._stream = Stream(reading, list(_groups(jobs)), None, read=reading.read_jobs, threads=2)
        self._stream.__enter__()

    def take(self, name: Any) -> Any:
        """The next one; MISSING: another is the next, or it could not be read."""
        if self._at == len(self._jobs) or self._jobs[self._at].name != name:
            return MISSING
        self._at += 1
        return self._stream.take(name, MISSING)

    def close(self) -> None:
        """Nothing is read any more, and nothing kept."""
        self._stream.__exit__(None, None, None)

    def __del__(self) -> None:
        if "_stream" in self.__dict__:
            self.close()


class InOrder:
    """Of one model, whose tensors somebody asks for one by one: as they lie, as they are listed, or by their names' order."""

    def __init__(self, model: Model) -> None:
        self._reading = model.for_itself()
        self._lock = threading.Lock()
        self._orders: list[tuple[list[Entry], dict[int, int]]] = []
        self._last: Optional[tuple[int, int]] = None  # thread, number
        self._run = 0
        self._ahead: Optional[Ahead] = None

    def _successors(self, number: int) -> Iterator[list[Entry]]:
        """In each order what comes behind a tensor."""
        if not self._orders:
            listed = self._reading.entries()
            lying = sorted(listed, key=lambda entry: (entry.object, entry.offset))
            for order in (lying, listed, sorted(listed, key=lambda entry: entry.name)):
                self._orders.append((order, {entry.number: at for at, entry in enumerate(order)}))
        for order, places in self._orders:
            at = places.get(number)
            if at is not None:
                yield order[at + 1:]

    def _follow(self, entry: Entry) -> None:
        """Another one is asked for, and is not on its way: whether it comes behind the last one."""
        here = threading.get_ident(), entry.number
        last, self._last = self._last, here
        if last == here:
            return
        self.drop()
        behind = last is not None and last[0] == here[0]
        rest = [order for order in self._successors(last[1]) if order and order[0].number == entry.number] if behind and last else []
        self._run = self._run + 1 if rest else 1
        if self._run >= IN_ORDER:
            jobs = [Job(each.number, each.nbytes, each, None) for each in rest[0][1:]]
            if jobs:
                self._ahead = Ahead(self._reading, jobs)

    def take(self, entry: Entry) -> Any:
        """What was read ahead; MISSING: read it."""
        if _cancel.may_be_ended() or not self._lock.acquire(blocking=False):
            return MISSING  # what is canceled, or out of time, must end; and of several threads each reads its own
        try:
            if self._ahead is not None and self._last is not None and self._last[0] == threading.get_ident():
                found = self._ahead.take(entry.number)
                if found is not MISSING:
                    self._last = threading.get_ident(), entry.number
                    return found
            self._follow(entry)
            return MISSING
        finally:
            self._lock.release()

    def drop(self) -> None:
        """What is on its way is for nobody."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.close()

    def forked(self) -> None:
        """Whoever was inside is not here."""
        self._lock, self._ahead, self._last = threading.Lock(), None, None


class Foreseen:
    """Parts that a rank takes of tensors which come in a known order: what it took of a layer it will take of the next one."""

    def __init__(self, model: Model, entries: Sequence[Entry]) -> None:
        self._reading, self._entries = model.for_itself(), entries
        self._places = {entry.number: at for at, entry in enumerate(entries)}
        self._known: dict[Any, list[_slices.Ranges]] = {}
        self._learned: dict[int, list[_slices.Ranges]] = {}
        self._ahead: Optional[Ahead] = None

    @staticmethod
    def _kind(entry: Entry) -> Any:
        """Equal for the same tensor of each layer."""
        return re.sub(r"\d+", "#", entry.name), entry.shape, entry.dtype

    def _jobs(self, at: int, nbytes: Callable[[Entry, _slices.Ranges], int]) -> list[Job]:
        found: list[Job] = []
        for entry in self._entries[at:]:
            parts = self._known.get(self._kind(entry))
            if parts is None:
                break
            found += [Job((entry.number, part.ranges), nbytes(entry, part), entry, part) for part in parts]
        return found

    def take(self, entry: Entry, taken: _slices.Ranges) -> Any:
        """What was read ahead; MISSING: read it."""
        if _cancel.may_be_ended():
            return MISSING
        found = MISSING if self._ahead is None else self._ahead.take((entry.number, taken.ranges))
        self._learn(entry, taken)
        if found is MISSING:
            self.close()
            self._begin(entry)
        return found

    def _learn(self, entry: Entry, taken: _slices.Ranges) -> None:
        parts = self._learned.setdefault(entry.number, [])
        parts.append(taken)
        self._known[self._kind(entry)] = parts

    def passed(self, entry: Entry) -> None:
        """All is taken of it that will be."""
        self._known.setdefault(self._kind(entry), [])

    def _begin(self, entry: Entry) -> None:
        jobs = self._jobs(self._places[entry.number] + 1, self._reading.nbytes_of)
        if jobs:
            self._ahead = Ahead(self._reading, jobs)

    def close(self) -> None:
        """Nothing is read any more."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.close()
