"""Files of ranks: what an engine saved of each rank's own tensors goes back into them by name, as vLLM's loader for `sharded_state` does."""
from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

NAMED_MAX = 5


def of_rank(text: str, rank: int) -> str:
    """A place with `{rank}` in it, or `{rank:03d}`."""
    return re.sub(r"\{rank(?::0(\d)d)?\}", lambda found: str(rank).zfill(int(found[1] or 0)), text)


def _bounds(tensor: Any) -> tuple[int, int]:
    """Where its elements begin and end in memory."""
    begin = int(tensor.data_ptr())
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride()))
    return begin, begin + (last + 1) * int(tensor.element_size())


def _is_covered(name: str, tensor: Any, other: str, by: Any) -> bool:
    """Does filling the other fill this one, too? Of two that are the same the first by name counts."""
    (begin, end), (first, last) = _bounds(tensor), _bounds(by)
    if other == name or not by.is_contiguous() or first > begin or last < end:
        return False
    return first < begin or last > end or not tensor.is_contiguous() or other < name


def distinct(state: Mapping[str, Any]) -> dict[str, Any]:
    """Of tensors that share memory the ones that cover all of it: only those are saved, and filled."""
    groups: dict[tuple[Any, int], list[tuple[str, Any]]] = {}
    for name, tensor in state.items():
        if tensor.numel():
            storage = getattr(tensor, "untyped_storage", None) or tensor.storage  # before torch 2
            groups.setdefault((tensor.device, int(storage().data_ptr())), []).append((name, tensor))
    return {
        name: tensor for group in groups.values() for name, tensor in group
        if not any(_is_covered(name, tensor, other, by) for other, by in group)
    }


def _some(names: Iterable[str]) -> str:
    found = sorted(names)
    more = f" and {len(found) - NAMED_MAX} more" if len(found) > NAMED_MAX else ""
    return ", ".join(found[:NAMED_MAX]) + more


def fill(model: Any, tensors: Iterable[tuple[str, Any]], rank: int) -> None:
    """Copy them into the parameters of these names. A parameter that is padded is filled in part, as by vLLM; one that gets nothing is
    an error, as is a tensor that has none."""
    left = distinct(model.state_dict())
    narrow: list[str] = []
    for name, tensor in tensors:
        if name not in left:
            raise ValueError(f"'{name}' in the files of rank {rank} fills no parameter of this model: they were saved of another model, "
                             "or by another version of the engine")
        place = left.pop(name).data
        if tensor.dim() != place.dim() or any(size > room for size, room in zip(tensor.shape, place.shape)):
            raise ValueError(f"'{name}' in the files of rank {rank} has shape {list(tensor.shape)}, its parameter {list(place.shape)}: "
                             "they were saved with other sizes or ranks")
        if tensor.shape != place.shape:
            narrow.append(name)
        for dim, size in enumerate(tensor.shape):
            place = place.narrow(dim, 0, size)
        place.copy_(tensor)
    if left:
        raise ValueError(f"the files of rank {rank} lack {len(left)} of the model's tensors: {_some(left)}")
    if narrow:
        warnings.warn(f"narrower than the padded parameters that they fill: {_some(narrow)}", RuntimeWarning, stacklevel=2)
