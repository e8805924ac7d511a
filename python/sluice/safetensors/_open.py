"""safe_open() and what it gives."""
from __future__ import annotations

import os
from typing import Any, Optional, Union, cast

from .. import _dtypes
from .._model import Model, open_model
from .._native import Entry
from .._options import Framework
from .._slices import resolve as basic
from ._error import SafetensorError, translated
from ._index import resolve

_FRAMEWORKS = {
    "pt": "torch", "torch": "torch", "pytorch": "torch", "np": "numpy", "numpy": "numpy", "tf": "tensorflow",
    "tensorflow": "tensorflow", "jax": "jax", "flax": "jax", "mlx": "mlx", "paddle": "paddle",
}


def _framework(name: Any) -> Framework:
    if not isinstance(name, str):
        raise TypeError(f"argument 'framework': '{type(name).__name__}' object cannot be converted to 'str'")
    if name not in _FRAMEWORKS:
        raise SafetensorError(f"framework {name} is invalid")
    found = _FRAMEWORKS[name]
    if found in ("tensorflow", "mlx", "paddle"):
        raise SafetensorError(f"framework {name} is not among those of sluice: use numpy")
    return cast("Framework", found)


def _device(device: Any, framework: str) -> str:
    if isinstance(device, bool) or not isinstance(device, (str, int)) and type(device).__name__ != "device":
        raise SafetensorError(f"device {device!r} is invalid")
    name = f"cuda:{device}" if isinstance(device, int) else str(device)
    kind, _, number = name.partition(":")
    known = ("cpu", "cuda", "mps", "npu", "xpu", "xla", "mlu", "hpu", "musa")
    if kind not in known or (number and not number.isdigit()) or (kind == "cpu" and number):
        raise SafetensorError(f"device {name} is invalid")
    if framework == "numpy" and kind != "cpu":
        raise SafetensorError(f"Device {name} is not supported for framework {framework}")
    return name


def _dtype_known(framework: str, entry: Entry) -> None:
    """AttributeError and TypeError are the framework's own."""
    if entry.dtype not in _dtypes.DTYPES:
        raise SafetensorError(f"Dtype not understood: {entry.dtype}")
    if framework == "numpy":
        _dtypes.numpy_dtype(entry.dtype)


class PySafeSlice:
    """A tensor that brackets take a part of; only that is read."""

    def __init__(self, opened: "_Opened", entry: Entry) -> None:
        self._opened, self._entry = opened, entry

    def get_shape(self) -> list[int]:
        """Of the whole tensor."""
        return list(self._entry.shape)

    def get_dtype(self) -> str:
        """"BF16"."""
        return self._entry.dtype

    def __getitem__(self, index: Any) -> Any:
        if self._opened.indexes_as_torch:
            return self._as_torch(index)
        taken = resolve(index, self._entry.shape)
        with translated(f"Could not read tensor {self._entry.name} from file"):
            return self._opened.model.read_slice(self._entry, taken)


    def _as_torch(self, index: Any) -> Any:
        """What is neither numbers nor ranges, and what is out of bounds, torch takes, or refuses, itself."""
        try:
            taken = basic(index, self._entry.shape)
        except (IndexError, TypeError, ValueError):
            taken = None
        if taken is None or taken.flips or self._entry.dtype == "F4":
            return self._opened.tensors([self._entry.name])[self._entry.name][index]
        with translated(f"Could not read tensor {self._entry.name} from file"):
            return self._opened.model.read_slice(self._entry, taken)


class _Opened:
    """A file, and what its tensors become."""

    def __init__(self, filename: Any, framework: Any, device: Any, backend: Any) -> None:
        self.framework = _framework(framework)
        if backend not in ("mmap", "pread"):
            raise SafetensorError(f'backend "{backend}" is invalid (expected one of: "mmap", "pread")')
        # As the original: it hands such slices to torch, which maps the file.
        self.indexes_as_torch = self.framework == "torch" and backend == "mmap"
        where = _device(device, self.framework)
        path = os.fspath(cast("Union[str, os.PathLike[str]]", filename))
        with translated("Error while deserializing header", os.fsdecode(path)):
            self.model: Model = open_model(path, framework=self.framework, device=where)

    def entry(self, name: Any) -> Entry:
        """By name."""
        if not isinstance(name, str):
            raise TypeError(f"argument 'name': '{type(name).__name__}' object cannot be converted to 'str'")
        try:
            return self.model.entry(name)
        except KeyError:
            raise SafetensorError(f"File does not contain tensor {name}") from None

    def tensors(self, names: list[str]) -> dict[str, Any]:
        """Many at once."""
        entries = [self.entry(name) for name in names]
        for entry in entries:
            _dtype_known(self.framework, entry)
        with translated("Could not read tensors from file"):
            return dict(zip(names, self.model.get_many(entries)))


class safe_open:
    """A file of tensors that are read when they are asked for. filename: a path, or a URI; it may be of any format."""

    def __init__(
        self, filename: Union[str, "os.PathLike[str]"], framework: str, device: Any = "cpu", *, backend: str = "mmap"
    ) -> None:
        self._inner: Optional[_Opened] = _Opened(filename, framework, device, backend)

    def _open(self) -> _Opened:
        if self._inner is None:
            raise SafetensorError("File is closed")
        return self._inner

    def metadata(self) -> Optional[dict[str, str]]:
        """What the file says of itself; None: nothing."""
        found = self._open().model.metadata()
        return {key: value for key, value in found.items() if isinstance(value, str)} or None

    def keys(self) -> list[str]:
        """Names, sorted."""
        return sorted(self._open().model)

    def offset_keys(self) -> list[str]:
        """Names, as the tensors lie."""
        return self._open().model.offset_keys()

    def get_tensor(self, name: str) -> Any:
        """All of one."""
        return self._open().tensors([name])[name]

    def get_tensors(self) -> dict[str, Any]:
        """All of all."""
        return self._open().tensors(self.offset_keys())

    def get_slice(self, name: str) -> PySafeSlice:
        """One to take a part of."""
        inner = self._open()
        return PySafeSlice(inner, inner.entry(name))

    def __enter__(self) -> "safe_open":
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        if self._inner is not None:
            self._inner.model.close()
        self._inner = None


class _safe_open_handle(safe_open):  # pyright: ignore[reportUnusedClass]
    """The same of a file that is open; of its name, as the original does."""

    def __init__(self, f: Any, framework: str, device: Any = "cpu", *, backend: str = "mmap") -> None:
        super().__init__(f.name, framework, device, backend=backend)
