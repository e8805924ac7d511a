"""Tensors for engines whose ranks each take a part of them: they look like torch's, and only what is taken is read.

narrow, brackets, chunk and split of an unread tensor give unread tensors of fewer rows or columns. Whatever else is done with one reads
it first, all of it that is left, and is done with what was read.
"""
from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, Optional, Union

from ._ahead import MISSING, Foreseen
from ._dtypes import find, library, torch_dtype
from ._kinds import is_list, is_tuple
from ._model import Model
from ._native import Entry
from ._slices import resolve

SMALL_BYTES = 1 << 20  # a part of a smaller tensor costs as much as all of it
Taken = tuple[Union[slice, int], ...]  # of each dimension of the stored tensor


class Stored:
    """What an unread tensor is of. It keeps the model open."""

    def __init__(self, model: Model, entry: Entry, taken: Taken, foreseen: Foreseen) -> None:
        self.model, self.entry, self.taken, self.foreseen = model, entry, taken, foreseen
        self.held: Any = None

    def read(self) -> Any:
        """A tensor of torch, checked where it is the whole; kept, since somebody may have its address."""
        if self.held is None:
            part = resolve(self.taken, self.entry.shape)
            found = self.foreseen.take(self.entry, part)
            if found is MISSING:
                whole = self.taken == tuple(slice(0, size) for size in self.entry.shape)
                found = self.model.get_many([self.entry])[0] if whole else self.model.read_slice(self.entry, part)
            self.held = found
        return self.held

    def shape(self) -> tuple[int, ...]:
        """Of what is taken."""
        return tuple(part.stop - part.start for part in self.taken if isinstance(part, slice))

    def part(self, dim: int, part: Union[slice, int]) -> Stored:
        """Less of the dimension that is seen as the dim-th; a number takes it away."""
        at, first = [(number, int(each.start)) for number, each in enumerate(self.taken) if isinstance(each, slice)][dim]
        moved = first + part if isinstance(part, int) else slice(first + int(part.start), first + int(part.stop))
        return Stored(self.model, self.entry, self.taken[:at] + (moved,) + self.taken[at + 1:], self.foreseen)


def _narrow(stored: Stored, dim: Any, start: Any, length: Any) -> Optional[Stored]:
    """None: torch says what is wrong."""
    shape = stored.shape()
    if not (isinstance(dim, int) and isinstance(start, int) and isinstance(length, int) and -len(shape) <= dim < len(shape)):
        return None
    start += shape[dim] if start < 0 else 0
    if start < 0 or length < 0 or start + length > shape[dim]:
        return None
    return stored.part(dim % len(shape), slice(start, start + length))


def _brackets(stored: Stored, index: Any) -> Optional[Stored]:
    """Whole numbers and ranges without steps, from the first dimension on. None: torch does it."""
    parts: tuple[Any, ...] = index if is_tuple(index) else (index,)
    shape, dim = stored.shape(), 0
    if len(parts) > len(shape):
        return None
    for part, size in zip(parts, shape):
        if isinstance(part, slice):
            first, last, step = part.indices(size)
            if step != 1:
                return None
            stored = stored.part(dim, slice(first, max(first, last)))
            dim += 1
        elif isinstance(part, int) and not isinstance(part, bool) and -size <= part < size:
            stored = stored.part(dim, part % size)
        else:
            return None
    return stored


def _split(stored: Stored, lengths: Any, dim: Any = 0) -> Optional[list[Optional[Stored]]]:
    """As many as there are lengths; one length: as many as it takes."""
    shape = stored.shape()
    if not isinstance(dim, int) or not -len(shape) <= dim < len(shape):
        return None
    if isinstance(lengths, int):
        if lengths < 1:
            return None
        lengths = [min(lengths, shape[dim] - first) for first in range(0, shape[dim], lengths)]
    if not is_list(lengths) or sum(lengths) != shape[dim]:
        return None
    return [_narrow(stored, dim, sum(lengths[:at]), length) for at, length in enumerate(lengths)]


def _chunk(stored: Stored, chunks: Any, dim: Any = 0) -> Optional[list[Optional[Stored]]]:
    shape = stored.shape()
    if not isinstance(chunks, int) or chunks < 1 or not isinstance(dim, int) or not -len(shape) <= dim < len(shape):
        return None
    return _split(stored, max(-(-shape[dim] // chunks), 1), dim)


# What is the same of an unread tensor and of the one that it stands for.
SEEN = ("shape", "dtype", "device", "ndim", "layout", "requires_grad", "is_cuda", "is_meta")
ASKED = ("size", "dim", "numel", "nelement", "element_size", "is_floating_point", "is_complex", "__len__")
VIEWS: dict[str, Callable[..., Any]] = {"narrow": _narrow, "__getitem__": _brackets, "split": _split, "chunk": _chunk}


@functools.lru_cache(maxsize=None)
def _unread() -> Any:
    """The class: torch is imported where it is wanted."""
    torch = library("torch")
    tensor: Any = torch.Tensor
    cheap = {getattr(tensor, name).__get__ for name in SEEN} | {getattr(tensor, name) for name in ASKED}
    views = {getattr(tensor, name): view for name, view in VIEWS.items()}

    def real(value: Any) -> Any:
        if isinstance(value, Unread):
            return value.stored.read()
        if is_tuple(value):
            return tuple(map(real, value))
        return [real(each) for each in value] if isinstance(value, list) else value  # pyright: ignore

    def shown(made: Any) -> Any:
        return tuple(map(shown, made)) if isinstance(made, list) else Unread(made)  # pyright: ignore

    def _shape_of(unread: Any) -> Any:
        return torch.empty(unread.shape, dtype=unread.dtype, device="meta")

    class Unread(tensor):  # type: ignore[misc,unused-ignore]
        """A part of a stored tensor."""

        @staticmethod
        def __new__(cls: Any, stored: Stored) -> Any:
            dtype = torch_dtype(stored.entry.dtype)
            made = tensor._make_wrapper_subclass(cls, stored.shape(), dtype=dtype, device=stored.model.device)
            made.stored = stored
            return made

        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            options: dict[str, Any] = kwargs or {}
            if func in cheap:
                with torch._C.DisableTorchFunction():
                    return func(*args, **options)
            if func is tensor.copy_ and len(args) > 1 and isinstance(args[1], Unread) and args[0].is_meta:
                return func(args[0], _shape_of(args[1]), *args[2:], **options)  # a dry run, as vLLM's before it takes what it reloads
            made = views[func](args[0].stored, *args[1:], **options) if func in views and isinstance(args[0], Unread) else None
            if made is not None:
                return shown(made)
            return func(*real(args), **{name: real(value) for name, value in options.items()})

        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            options: dict[str, Any] = kwargs or {}
            return func(*real(args), **{name: real(value) for name, value in options.items()})

    return Unread


def weights(model: Model, keep: Optional[Callable[[str], bool]] = None) -> Iterator[tuple[str, Any]]:
    """(name, tensor) of all, or of those that are kept: small ones, and those whose hashes are over the whole, as stream() brings them; then the others, unread."""
    entries = {entry.name: entry for entry in model.entries() if keep is None or keep(entry.name)}

    def parted(name: str) -> bool:
        row = find(entries[name].dtype)
        return entries[name].nbytes >= SMALL_BYTES and row is not None and row.bits >= 8 and not model.hashes(entries[name])

    yield from model.stream(filter=lambda name: name in entries and not parted(name))
    rest = [entries[name] for name in model.offset_keys() if name in entries and parted(name)]
    foreseen = Foreseen(model, rest)
    try:
        for entry in rest:
            yield entry.name, _unread()(Stored(model, entry, tuple(slice(0, size) for size in entry.shape), foreseen))
            foreseen.passed(entry)
    finally:
        foreseen.close()
