"""What the package zipslicer has, on sluice: `import sluice.zipslicer as zipslicer`. Checkpoints are read over a network, too, parts of
tensors are read alone, changes can be saved, and new keys are fine. Where it differs is told in docs/python.md."""
from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, NamedTuple, Optional, Union

from . import _frameworks
from ._dtypes import library, torch_dtype
from ._edit import Editor
from ._model import Model, Slice, open_model
from ._options import Credentials
from ._write import Writer

__all__ = [
    "LazyStateDict", "TensorMeta", "create_storage", "get_typed_storage", "load",
    "dtype_by_name", "dtype_sizes",  # pyright: ignore[reportUnsupportedDunderAll]
]

_DTYPES = ("float64", "float32", "bfloat16", "float16", "int64", "int32", "int16", "uint8", "int8", "bool")


def __getattr__(name: str) -> Any:
    """The original's tables of torch's types, made when somebody asks: torch is imported then."""
    if name == "dtype_sizes":
        torch = library("torch")
        return {getattr(torch, each): torch.empty(0, dtype=getattr(torch, each)).element_size() for each in _DTYPES}
    if name == "dtype_by_name":
        return {f"torch.{each}": getattr(library("torch"), each) for each in _DTYPES}
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def create_storage(buf: Any) -> Any:
    """torch's storage on the memory of a buffer, which may not be empty."""
    torch = library("torch")
    kind = getattr(torch, "UntypedStorage", None) or getattr(torch, "_UntypedStorage")
    return kind.from_buffer(buf, dtype=torch.uint8)


def get_typed_storage(backing_storage: Any, dtype: Any) -> Any:
    """A storage of bytes as one of elements."""
    return library("torch").storage.TypedStorage(wrap_storage=backing_storage, dtype=dtype)


class TensorMeta(NamedTuple):
    """What get_meta() gives."""

    shape: Any  # torch.Size
    dtype: Any  # torch.dtype

    def size(self) -> Any:
        """As a tensor's."""
        return self.shape


class LazyStateDict(OrderedDict[str, Any]):
    """A state dict whose tensors are read when they are asked for, and not kept unless cache_tensors is true. What is assigned and deleted
    is so in memory alone, until save() or save_changes()."""

    def __init__(self, model: Model, dtype: Any = None, cache_tensors: bool = False) -> None:
        super().__init__()
        self._model, self.dtype, self.cache_tensors = model, dtype, cache_tensors
        self._order: dict[str, None] = dict.fromkeys(model)
        self._put: dict[str, Any] = {}
        self._kept: dict[str, Any] = {}

    # ---- reading -----------------------------------------------------------------------------------

    def _read(self, key: str) -> Any:
        return _frameworks.cast("torch", self._model[key], self.dtype)

    def __getitem__(self, key: str) -> Any:
        if key not in self._order:
            raise KeyError(key)
        if key in self._put:
            return self._put[key]
        if key in self._kept:
            return self._kept[key]
        tensor = self._read(key)
        if self.cache_tensors:
            self._kept[key] = tensor
        return tensor

    def get(self, key: str, default: Any = None) -> Any:
        """self[key], or default."""
        return self[key] if key in self._order else default

    def _stored(self, key: str) -> str:
        if key not in self._order or key not in self._model:
            raise KeyError(key)
        return key

    def reform_tensor(self, k: str) -> Any:
        """A tensor as the checkpoint has it, read again, whatever was assigned."""
        return self._read(self._stored(k))

    def validate_tensor_ref(self, k: str) -> Optional[bool]:
        """True: torch has the type that the checkpoint says. None: it has not."""
        try:
            torch_dtype(self._model.meta(self._stored(k)).dtype)
        except TypeError:
            return None
        return True

    def get_meta(self, k: str) -> TensorMeta:
        """Shape and type, without reading it."""
        if k not in self._order:
            raise KeyError(k)
        if k in self._put:
            return TensorMeta(self._put[k].shape, self._put[k].dtype)
        meta = self._model.meta(k)
        return TensorMeta(library("torch").Size(_frameworks.stored_shape(meta.dtype, meta.shape)), torch_dtype(meta.dtype))

    def get_slice(self, key: str) -> Union[Slice, Any]:
        """`d.get_slice("w")[0:128, ::2]` reads what is in the brackets."""
        return self._put[key] if key in self._put else self._model.slice(key)

    def keys(self) -> Any:
        """In the checkpoint's order, new ones last."""
        return self._order.keys()

    def items(self) -> Any:
        """One after the other, each read when it comes."""
        return ((key, self[key]) for key in list(self._order))

    def values(self) -> Any:
        """As items()."""
        return (self[key] for key in list(self._order))

    def __iter__(self) -> Iterator[str]:
        return iter(self._order)

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, key: object) -> bool:
        return key in self._order

    def __bool__(self) -> bool:
        return bool(self._order)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    def __repr__(self) -> str:
        return f"<sluice.zipslicer.LazyStateDict of {self._model.uri!r}: {len(self)} tensors>"

    # ---- changes -----------------------------------------------------------------------------------

    def __setitem__(self, key: str, value: Any) -> None:
        self._order.setdefault(key)
        self._put[key] = value
        self._kept.pop(key, None)

    def __delitem__(self, key: str) -> None:
        del self._order[key]
        self._put.pop(key, None)
        self._kept.pop(key, None)

    def pop(self, key: str, *default: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """As of any dict."""
        if key not in self._order and default:
            return default[0]
        value = self[key]
        del self[key]
        return value

    def update(self, *others: Any, **named: Any) -> None:
        """As of any dict."""
        for key, value in dict(*others, **named).items():
            self[key] = value

    def setdefault(self, key: str, default: Any = None) -> Any:
        """As of any dict."""
        if key not in self._order:
            self[key] = default
        return self[key]

    def clear(self) -> None:
        """Nothing is left of it, in memory."""
        for key in list(self._order):
            del self[key]

    def popitem(self, last: bool = True) -> tuple[str, Any]:
        """As of any OrderedDict."""
        if not self._order:
            raise KeyError("dictionary is empty")
        key = next(reversed(list(self._order)) if last else iter(self._order))
        return key, self.pop(key)

    def copy(self) -> Any:
        """All of it, in memory."""
        return dict(self.items())

    def changed(self) -> list[str]:
        """Keys that were assigned."""
        return [key for key in self._order if key in self._put]

    def deleted(self) -> list[str]:
        """Keys of the checkpoint that are no more."""
        return [key for key in self._model if key not in self._order]

    def save(self, uri: Any, **options: Any) -> None:
        """All of it as a new model, one tensor after the other; options are sluice.save()'s. Tensors that were not changed go through
        memory one at a time."""
        with Writer(uri, **options) as writer:
            for key in self._order:
                writer.write(key, self[key])

    def save_changes(self) -> None:
        """What was assigned and deleted, in the checkpoint itself, which must be a local file. A crash leaves it as it was, or as it shall
        be."""
        path = self._model.uri
        known = set(self._model)
        with Editor(path) as changes:
            for key in self.deleted():
                del changes[key]
            for key in self.changed():
                (changes.replace if key in known else changes.append)(key, self._put[key])
        self._model.close()
        self._model = open_model(path, framework="torch")
        self._put.clear()

    def close(self) -> None:
        """Give files and connections back; tensors stay good."""
        self._model.close()


def load(
    ckpt: Union[str, "os.PathLike[str]"], map_location: Any = "cpu", dtype: Any = None, cache_tensors: bool = False,
    debug: bool = False, *, credentials: Optional[Credentials] = None,
) -> LazyStateDict:
    """Open a checkpoint: a path or a URI, of torch or of any other format.

    map_location  where tensors are put.
    dtype         cast to it what is of its kind.
    debug         changes nothing.
    """
    return LazyStateDict(open_model(ckpt, framework="torch", device=map_location, credentials=credentials), dtype, cache_tensors)
