"""safetensors.torch, on sluice."""
from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Optional, Union

from .._dtypes import DTYPES, library, of_torch, torch_dtype
from .._kinds import is_dict
from .._write import on_host
from . import TensorSpec, deserialize, safe_open, serialize, serialize_file

__all__ = ["load", "load_file", "load_model", "save", "save_file", "save_model"]


def storage_ptr(tensor: Any) -> int:
    """Where its storage begins; 0 of one without memory."""
    try:
        if hasattr(tensor, "untyped_storage"):
            return int(tensor.untyped_storage().data_ptr())
        return int(tensor.storage().data_ptr())
    except (NotImplementedError, RuntimeError):
        return 0


def storage_size(tensor: Any) -> int:
    """Bytes of its storage; of one without memory those that it would have."""
    try:
        if hasattr(tensor, "untyped_storage"):
            return int(tensor.untyped_storage().nbytes())
        return int(tensor.storage().nbytes())
    except (NotImplementedError, RuntimeError):
        return int(tensor.nelement() * tensor.element_size())


def _end_ptr(tensor: Any) -> int:
    """One past its last element."""
    if not tensor.nelement():
        return int(tensor.data_ptr())
    last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride()))
    return int(tensor.data_ptr() + (last + 1) * tensor.element_size())


def _apart(names: set[str], tensors: dict[str, Any]) -> list[set[str]]:
    """Those of one storage that overlap, in groups of neighbours."""
    areas = sorted((tensors[name].data_ptr(), _end_ptr(tensors[name]), name) for name in names)
    groups: list[set[str]] = []
    until = -1
    for start, stop, name in areas:
        if groups and start < until:
            groups[-1].add(name)
        else:
            groups.append({name})
        until = stop
    return groups


def _find_shared_tensors(state_dict: dict[str, Any]) -> list[set[str]]:
    """Names by the memory that they have, which is one name each where nothing is shared."""
    meta = library("torch").device("meta")
    storages: dict[Any, set[str]] = defaultdict(set)
    for name, tensor in state_dict.items():
        if tensor.device != meta and storage_ptr(tensor) and storage_size(tensor):
            storages[(tensor.device, storage_ptr(tensor), storage_size(tensor))].add(name)
    found: list[set[str]] = []
    for names in storages.values():
        found.extend(_apart(names, state_dict) if len(names) > 1 else [names])
    return found


def _is_complete(tensor: Any) -> bool:
    """All of its storage is in it."""
    return bool(
        tensor.data_ptr() == storage_ptr(tensor) and tensor.nelement() * tensor.element_size() == storage_size(tensor)
    )


def _kept(complete: set[str], preferred: set[str], discarded: set[str]) -> str:
    for wanted in (complete & preferred, complete - discarded, complete):
        if wanted:
            return min(wanted)
    raise AssertionError("none is complete")


def _remove_duplicate_names(
    state_dict: dict[str, Any], *, preferred_names: Optional[Iterable[str]] = None, discard_names: Optional[Iterable[str]] = None
) -> dict[str, list[str]]:
    """{name that is kept: names of the same memory, which are not}."""
    found: dict[str, list[str]] = defaultdict(list)
    for shared in _find_shared_tensors(state_dict):
        complete = {name for name in shared if _is_complete(state_dict[name])}
        if not complete:
            raise RuntimeError(
                f"of {sorted(shared)}, which share memory, none has all of it: what is kept under one name would be more than is "
                "used; clone() them before saving"
            )
        keep = _kept(complete, set(preferred_names or ()), set(discard_names or ()))
        for name in sorted(shared - {keep}):
            found[keep].append(name)
    return found


def _without_copies(state_dict: dict[str, Any], metadata: Optional[dict[str, str]]) -> Optional[dict[str, str]]:
    for kept, dropped in _remove_duplicate_names(state_dict).items():
        for name in dropped:
            metadata = {} if metadata is None else metadata
            metadata.setdefault(name, kept)
            del state_dict[name]
    return metadata


def save_model(
    model: Any, filename: str, metadata: Optional[dict[str, str]] = None, force_contiguous: bool = True
) -> None:
    """Save a module; of names that share memory one is written, and the metadata say which."""
    state_dict = model.state_dict()
    metadata = _without_copies(state_dict, metadata)
    if force_contiguous:
        state_dict = {name: tensor.contiguous() for name, tensor in state_dict.items()}
    try:
        save_file(state_dict, filename, metadata=metadata)
    except ValueError as error:
        raise ValueError(f"{error} Or use save_model(..., force_contiguous=True).") from error


def _complaint(model: Any, missing: set[str], unexpected: list[str]) -> str:
    said = f"Error(s) in loading state_dict for {type(model).__name__}:"
    for what, names in (("Missing", missing), ("Unexpected", unexpected)):
        if names:
            said += f"\n    {what} key(s) in state_dict: " + ", ".join(f'"{name}"' for name in sorted(names))
    return said


def load_model(
    model: Any, filename: Union[str, "os.PathLike[str]"], strict: bool = True, device: Union[str, int] = "cpu", *,
    backend: str = "mmap",
) -> tuple[Any, list[str]]:
    """Fill a module: (names that were missing, names that it has not)."""
    state_dict = load_file(filename, device=device, backend=backend)
    dropped = _remove_duplicate_names(model.state_dict(), preferred_names=state_dict.keys())
    missing_list, unexpected = model.load_state_dict(state_dict, strict=False)
    missing = set(missing_list)
    for names in dropped.values():
        unexpected.extend(name for name in names if name not in missing)
        missing.difference_update(names)
    if strict and (missing or unexpected):
        raise RuntimeError(_complaint(model, missing, unexpected))
    return missing, unexpected


def save(tensors: dict[str, Any], metadata: Optional[dict[str, str]] = None) -> bytes:
    """Tensors as bytes of a file."""
    kept: list[Any] = []
    return serialize(_specs(tensors, kept), metadata=metadata)


def save_file(
    tensors: dict[str, Any], filename: Union[str, "os.PathLike[str]"], metadata: Optional[dict[str, str]] = None
) -> None:
    """Write tensors to a file or a URI."""
    kept: list[Any] = []
    serialize_file(_specs(tensors, kept), filename, metadata=metadata)


def load_file(
    filename: Union[str, "os.PathLike[str]"], device: Union[str, int] = "cpu", *, backend: str = "mmap"
) -> dict[str, Any]:
    """Every tensor of a file or a URI."""
    with safe_open(filename, framework="pt", device=device, backend=backend) as file:
        found: dict[str, Any] = file.get_tensors()
        return found


def load(data: bytes) -> dict[str, Any]:
    """Every tensor in bytes of a file."""
    torch = library("torch")
    found: dict[str, Any] = {}
    for name, view in deserialize(data):
        dtype, shape = torch_dtype(view["dtype"]), view["shape"]
        if view["dtype"] == "F4" and shape:
            shape = [*shape[:-1], shape[-1] // 2]
        lying = torch.frombuffer(view["data"], dtype=torch.uint8).view(dtype) if view["data"] else torch.empty(0, dtype=dtype, device="cpu")
        found[name] = lying.reshape(shape)
    return found


def _checked(tensors: Any) -> None:
    torch = library("torch")
    if not is_dict(tensors):
        raise ValueError(f"Expected a dict of [str, torch.Tensor] but received {type(tensors)}")
    sparse: list[str] = []
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"Key `{name}` is invalid, expected torch.Tensor but received {type(tensor)}")
        if tensor.layout != torch.strided:
            sparse.append(name)
    if sparse:
        raise ValueError(f"You are trying to save a sparse tensors: `{sparse}`: call `.to_dense()` on them before saving.")
    shared = [names for names in _find_shared_tensors(tensors) if len(names) > 1]
    if shared:
        raise RuntimeError(
            f"Some tensors share memory, which would be written twice, and be two when loaded: {shared}. Use `save_model`."
        )


def _specs(tensors: Any, kept: list[Any]) -> dict[str, TensorSpec]:
    """kept holds what is copied from elsewhere to the host."""
    _checked(tensors)
    found: dict[str, TensorSpec] = {}
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            raise ValueError(
                f"You are trying to save a non contiguous tensor: `{name}`. Call `.contiguous()` on it before saving."
            )
        host = on_host(tensor)
        kept.append(host)
        of_torch(host.dtype)
        found[name] = TensorSpec(
            dtype=str(host.dtype).split(".")[-1], shape=list(host.shape), data_ptr=host.data_ptr(),
            data_len=host.nelement() * host.element_size(),
        )
    return found


_TYPES = {row.name: row.torch for row in DTYPES.values() if row.dlpack[1] and row.name not in ("C32", "C128")}
