"""Memory of a model as arrays of whoever asks: NumPy, torch, anything that takes DLPack or __cuda_array_interface__."""
from __future__ import annotations

import ctypes
import math
import operator
import sys
from collections.abc import Callable
from typing import Any, Optional

from . import _dlpack
from ._dtypes import DTYPES, find, library

_NUMPY = {row.name: row.numpy for row in DTYPES.values() if row.numpy}


View = memoryview  # a method of Array has its name


def row_by_row(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides, in elements, of a tensor that lies so."""
    step = 1
    strides: list[int] = []
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
        raise BufferError(f"{stream!r} is not a stream: None, -1, 1, 2 or the address of one")


class Memory:
    """Mapped memory: it stays as long as this object, or a DLPack tensor made from it."""

    model: Optional[ctypes.c_void_p] = None
    deposit: Optional[ctypes.c_void_p] = None
    memory: Optional[ctypes.c_void_p] = None


class Array:
    """Some memory with a type and a shape."""

    name: str
    dtype: str  # "BF16"; "" of files
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    nbytes: int
    device: str  # "cpu", "cuda:0"
    is_file: bool

    def __init__(
        self, memory: Callable[[], Memory], address: int, nbytes: int, name: str, dtype: str, dlpack: tuple[int, int, int],
        shape: tuple[int, ...], strides: Optional[tuple[int, ...]], ordinal: int, writable: bool, is_file: bool = False,
        private: bool = False,
    ) -> None:
        self._memory, self._address, self.nbytes = memory, address, nbytes
        self.name, self.dtype, self.shape, self.is_file = name, dtype, shape, is_file
        self.strides = row_by_row(shape) if strides is None else strides
        self._dlpack, self._ordinal, self._writable, self._private = dlpack, ordinal, writable, private
        self.device = "cpu" if ordinal < 0 else f"cuda:{ordinal}"
        self._lent: Optional[Memory] = None

    def __repr__(self) -> str:
        where = "" if self._ordinal < 0 else f" on {self.device}"
        return f"<sluice.{type(self).__name__} {self.name!r} {self.dtype or 'file'} {list(self.shape)}{where}>"

    def _owner(self) -> Memory:
        """What keeps its memory, whose address is known from now on."""
        return self._memory()

    def _ready(self, write: bool) -> None:
        """Block until the memory may be looked at, or written to."""

    @property
    def size(self) -> int:
        """How many elements."""
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        """How many dimensions."""
        return len(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of an element; 0 where elements are smaller than a byte or lie in blocks."""
        return self._dlpack[1] // 8 if self.dtype else 1

    # ---- bytes, NumPy ------------------------------------------------------------------------------

    def _host(self) -> None:
        if self._ordinal >= 0:
            raise TypeError(f"'{self.name}' is in memory of {self.device}: take it with torch() or by DLPack")

    def memoryview(self) -> memoryview:
        """Its bytes, as they lie; read-only unless attached with writable=True."""
        self._host()
        memory = self._owner()
        self._ready(self._writable)
        array = (ctypes.c_uint8 * self.nbytes).from_address(self._address) if self.nbytes else (ctypes.c_uint8 * 0)()
        array._sluice_memory = memory  # type: ignore[attr-defined]  # as long as anybody looks at it
        view = memoryview(array).cast("B")
        return view if self._writable else view.toreadonly()

    def tobytes(self) -> bytes:
        """A copy of its bytes, as they lie."""
        return bytes(self.memoryview())

    if sys.version_info >= (3, 12):

        def __buffer__(self, flags: int) -> View:
            """memoryview(tensor): elements and shape, for types that Python has; bytes of files."""
            view: Any = self.memoryview()
            kind = DTYPES[self.dtype].format if self.dtype in DTYPES else ""
            if self.strides != row_by_row(self.shape):
                raise BufferError(f"'{self.name}' does not lie row by row: use numpy() or memoryview()")
            if self.is_file:
                return self.memoryview()
            if not kind or 0 in self.shape:
                raise BufferError(f"'{self.name}' has a type that the buffer protocol lacks: use numpy() or memoryview()")
            shaped: View = view.cast(kind, self.shape)
            return shaped

    def numpy(self) -> Any:
        """A NumPy array on the same memory. bfloat16 and float8 need ml_dtypes; without it they are unsigned integers."""
        numpy = library("numpy")

        kind: Any = _NUMPY.get(self.dtype) or ("|u1" if self.is_file else None)
        row = find(self.dtype)
        if kind is None and row is not None and row.ml_dtypes:
            kind = "<u2" if self._dlpack[1] == 16 else "|u1"
            try:
                kind = getattr(library("ml_dtypes"), row.ml_dtypes)
            except (ImportError, AttributeError):
                pass
        view = self.memoryview()
        if kind is None:
            raise TypeError(f"NumPy has no type for {self.dtype}: use memoryview()")
        kind = numpy.dtype(kind)
        if not self.nbytes:
            empty = numpy.empty(self.shape, dtype=kind)
            empty.flags.writeable = self._writable
            return empty
        return numpy.ndarray(self.shape, kind, view, strides=tuple(step * kind.itemsize for step in self.strides))

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> Any:
        array = self.numpy()
        if dtype is not None and array.dtype != dtype:
            if copy is False:
                raise ValueError(f"'{self.name}' is {array.dtype}: as {library('numpy').dtype(dtype)} it is a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    # ---- DLPack, GPUs ------------------------------------------------------------------------------

    def torch(self) -> Any:
        """A torch tensor on the same memory. On the host it may be written to: what is written is copied, page by page, and seen by
        this process alone (not if attached with writable=False or register=True: then a write ends the process). On a GPU a write
        is an error of the GPU, which ends the process's work there."""
        torch = library("torch")

        row = find(self.dtype)
        if row is None or self.dtype in ("U8", "I8") or (row.bits != 8 and row.dlpack[1]):
            return torch.from_dlpack(_Typed(self, self._dlpack))
        if not hasattr(torch, row.torch):
            raise TypeError(f"this torch has no {row.torch}: use memoryview()")
        same = (1, 8, 1) if row.bits == 8 else (0, row.bits, 1)  # as many bytes: not every torch takes the type through DLPack
        return torch.from_dlpack(_Typed(self, same)).view(getattr(torch, row.torch))

    def __dlpack_device__(self) -> tuple[int, int]:
        return (_dlpack.CPU, 0) if self._ordinal < 0 else (_dlpack.CUDA, self._ordinal)

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: Any = None) -> Any:
        """stream: whichever; what a model holds was complete before anybody sees it, so nothing is waited for."""
        return self.capsule(self._dlpack, False, stream, max_version, dl_device, copy)

    def capsule(
        self, dtype: tuple[int, int, int], private: bool, stream: Any, max_version: Any, dl_device: Any, copy: Any
    ) -> Any:
        """As __dlpack__(), of a type that the consumer knows. private: what is this process's alone is not said to be read-only."""
        writable = self._writable or (private and self._private)
        if not dtype[1]:
            raise BufferError(f"DLPack has no type for {self.dtype or 'files'}: use memoryview()")
        if copy or (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()):
            raise BufferError("sluice gives its own memory only: copy it afterwards")
        if self._ordinal >= 0 and stream is not None:
            _check_stream(stream)
        memory = self._owner()
        self._ready(writable or self._private)  # what is read-only is only said to be
        return _dlpack.capsule(
            memory, self._address, self.__dlpack_device__(), self.shape, self.strides, dtype, not writable,
            max_version,
        )

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3. There is none on the host, and none for types that NumPy lacks: those go by DLPack."""
        if self._ordinal < 0 or self.dtype not in _NUMPY:
            raise AttributeError("__cuda_array_interface__")
        self._lent = self._owner()  # who takes an address keeps the object that told it, and nothing else
        self._ready(False)
        item = self._dlpack[1] // 8
        dense = self.strides == row_by_row(self.shape)
        return {
            "shape": self.shape, "typestr": _NUMPY[self.dtype], "data": (self._address, not self._writable), "version": 3,
            "strides": None if dense else tuple(step * item for step in self.strides), "stream": None,
        }


class _Typed:
    """A tensor as torch takes it: of a type that torch knows, and not read-only, since torch has no such tensors."""

    def __init__(self, array: Array, dtype: tuple[int, int, int]) -> None:
        self._array, self._dtype = array, dtype

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: Any = None) -> Any:
        return self._array.capsule(self._dtype, True, stream, max_version, dl_device, copy)
