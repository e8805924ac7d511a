"""Memory of a model as arrays of whoever asks: NumPy, torch, anything that takes DLPack or __cuda_array_interface__."""
from __future__ import annotations

import ctypes
import operator
import sys
from typing import Any, Optional

from . import _dlpack

# struct codes for memoryviews, and what NumPy and __cuda_array_interface__ call them.
_FORMATS = {
    "BOOL": "?", "U8": "B", "I8": "b", "U16": "H", "I16": "h", "U32": "I", "I32": "i", "U64": "Q", "I64": "q", "F16": "e",
    "F32": "f", "F64": "d",
}
_NUMPY = {
    "BOOL": "|b1", "U8": "|u1", "I8": "|i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4", "U64": "<u8",
    "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8", "C64": "<c8", "C128": "<c16",
}
_ML_DTYPES = {
    "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
}


def row_by_row(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides, in elements, of a tensor that lies so."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def _check_stream(stream: Any) -> None:
    """0 could be two streams, and is none."""
    try:
        number = operator.index(stream)
    except TypeError:
        number = 0
    if number == 0 or number < -1:
        raise BufferError(f"{stream!r} is no stream: None, -1, 1, 2 or the address of one")


class Array:
    """Some memory with a type and a shape. owner is what keeps it mapped."""

    name: str
    dtype: str  # "BF16"; "" of files
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    nbytes: int
    device: str  # "cpu", "cuda:0"
    is_file: bool

    def __init__(
        self, owner: Any, address: int, nbytes: int, name: str, dtype: str, dlpack: tuple[int, int, int],
        shape: tuple[int, ...], strides: Optional[tuple[int, ...]], ordinal: int, writable: bool, is_file: bool = False,
    ) -> None:
        self._owner, self._address, self.nbytes = owner, address, nbytes
        self.name, self.dtype, self.shape, self.is_file = name, dtype, shape, is_file
        self.strides = row_by_row(shape) if strides is None else strides
        self._dlpack, self._ordinal, self._writable = dlpack, ordinal, writable
        self.device = "cpu" if ordinal < 0 else f"cuda:{ordinal}"

    def __repr__(self) -> str:
        where = "" if self._ordinal < 0 else f" on {self.device}"
        return f"<sluice.{type(self).__name__} {self.name!r} {self.dtype or 'file'} {list(self.shape)}{where}>"

    def _ready(self) -> None:
        """Block until the memory may be looked at."""

    # ---- bytes, NumPy ------------------------------------------------------------------------------

    def _host(self) -> None:
        if self._ordinal >= 0:
            raise TypeError(f"'{self.name}' is in memory of {self.device}: take it with torch() or by DLPack")

    def memoryview(self) -> memoryview:
        """Its bytes, as they lie; read-only unless attached with writable=True."""
        self._host()
        self._ready()
        array = (ctypes.c_uint8 * self.nbytes).from_address(self._address) if self.nbytes else (ctypes.c_uint8 * 0)()
        array._sluice_owner = self._owner  # type: ignore[attr-defined]  # as long as anybody looks at it
        view = memoryview(array).cast("B")
        return view if self._writable else view.toreadonly()

    def tobytes(self) -> bytes:
        return bytes(self.memoryview())

    if sys.version_info >= (3, 12):

        def __buffer__(self, flags: int) -> memoryview:
            """memoryview(tensor): elements and shape, for types that Python has; bytes of files."""
            view, kind = self.memoryview(), _FORMATS.get(self.dtype)
            if self.strides != row_by_row(self.shape):
                raise BufferError(f"'{self.name}' does not lie row by row: use numpy() or memoryview()")
            if self.is_file:
                return view
            if kind is None or 0 in self.shape:
                raise BufferError(f"'{self.name}' is nothing that a buffer can tell: use numpy() or memoryview()")
            return view.cast(kind, self.shape)

    def numpy(self) -> Any:
        """A NumPy array on the same memory. bfloat16 and float8 need ml_dtypes; without it they are unsigned integers."""
        import numpy

        kind: Any = _NUMPY.get(self.dtype) or ("|u1" if self.is_file else None)
        if kind is None and self.dtype in _ML_DTYPES:
            kind = "<u2" if self._dlpack[1] == 16 else "|u1"
            try:
                import ml_dtypes

                kind = getattr(ml_dtypes, _ML_DTYPES[self.dtype])
            except (ImportError, AttributeError):
                pass
        view = self.memoryview()
        if kind is None:
            raise TypeError(f"NumPy has no type for {self.dtype}: use memoryview()")
        kind = numpy.dtype(kind)
        if not self.nbytes:
            return numpy.empty(self.shape, dtype=kind)
        return numpy.ndarray(self.shape, kind, view, strides=tuple(step * kind.itemsize for step in self.strides))

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> Any:
        array = self.numpy()
        if dtype is not None and array.dtype != dtype:
            return array.astype(dtype)
        return array.copy() if copy else array

    # ---- DLPack, GPUs ------------------------------------------------------------------------------

    def torch(self) -> Any:
        """A torch tensor on the same memory. torch knows no read-only tensors: on the host attach with writable=True unless
        nothing writes to it; on a GPU a write to it is an error of the GPU, which ends the process's work there."""
        import torch

        short = {"BOOL": "bool", **_ML_DTYPES}.get(self.dtype, "") if self._dlpack[1] == 8 else ""
        if not short:
            return torch.from_dlpack(self)
        if not hasattr(torch, short):
            raise TypeError(f"this torch has no {short}: use memoryview()")
        return torch.from_dlpack(_Bytes(self)).view(getattr(torch, short))  # not every torch takes them through DLPack

    def __dlpack_device__(self) -> tuple[int, int]:
        return (_dlpack.CPU, 0) if self._ordinal < 0 else (_dlpack.CUDA, self._ordinal)

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: Any = None) -> Any:
        """stream: whichever; what a model holds was complete before it could be had, so nothing is waited for."""
        return self._capsule(self._dlpack, stream, max_version, dl_device, copy)

    def _capsule(self, dtype: tuple[int, int, int], stream: Any, max_version: Any, dl_device: Any, copy: Any) -> Any:
        if not dtype[1]:
            raise BufferError(f"DLPack has no type for {self.dtype or 'files'}: use memoryview()")
        if copy or (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()):
            raise BufferError("sluice gives its own memory only: copy it afterwards")
        if self._ordinal >= 0 and stream is not None:
            _check_stream(stream)
        self._ready()
        return _dlpack.capsule(
            self._owner, self._address, self.__dlpack_device__(), self.shape, self.strides, dtype, not self._writable,
            max_version,
        )

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3. There is none on the host, and none for types that NumPy lacks: those go by DLPack."""
        if self._ordinal < 0 or self.dtype not in _NUMPY:
            raise AttributeError("__cuda_array_interface__")
        self._ready()
        item = self._dlpack[1] // 8
        dense = self.strides == row_by_row(self.shape)
        return {
            "shape": self.shape, "typestr": _NUMPY[self.dtype], "data": (self._address, not self._writable), "version": 3,
            "strides": None if dense else tuple(step * item for step in self.strides), "stream": None,
        }


class _Bytes:
    """A tensor of one-byte elements, seen as unsigned integers."""

    def __init__(self, array: Array) -> None:
        self._array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: Any = None) -> Any:
        return self._array._capsule((1, 8, 1), stream, max_version, dl_device, copy)
