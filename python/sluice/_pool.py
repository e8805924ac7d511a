"""Models of the pool: a mapping of names to tensors, which can be used while the load still runs."""
from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from ctypes import byref, c_uint64, c_void_p, sizeof
from typing import Any, Optional

from . import _dlpack
from ._library import (
    KIND_FILE, PRESENT_ONLY, PRIVATE, AttachOptions, DepositOptions, Error, ModelInfo, Tensor as RawTensor, library,
)

_KINDS = {
    1: "INTERNAL", 2: "USAGE", 3: "AUTH", 4: "NOT_FOUND", 5: "INTEGRITY", 6: "NO_SPACE", 7: "NET", 8: "TIMEOUT", 9: "GPU",
    10: "FORMAT", 11: "CANCELED",
}
# struct codes for memoryviews, and what NumPy calls them; other types are seen as bytes or as 16-bit numbers.
_FORMATS = {
    "BOOL": "?", "U8": "B", "I8": "b", "U16": "H", "I16": "h", "U32": "I", "I32": "i", "U64": "Q", "I64": "q", "F16": "e",
    "F32": "f", "F64": "d",
}
_NUMPY = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4", "U64": "<u8", "I64": "<i8",
    "F16": "<f2", "F32": "<f4", "F64": "<f8", "C64": "<c8", "C128": "<c16",
}
_ML_DTYPES = {
    "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
}


class SluiceError(Exception):
    """kind is one of docs/reference/errors.md; code says more, or is empty."""

    def __init__(self, error: Error) -> None:
        super().__init__(error.message.decode("utf-8", "replace"))
        self.kind = _KINDS.get(error.kind, "INTERNAL")
        self.code = error.code.decode("utf-8", "replace")


def _check(result: int, error: Error) -> None:
    if result < 0:
        raise SluiceError(error)


class _Lease:
    """What is mapped, until the last tensor of it is gone."""

    def __init__(self, options: AttachOptions) -> None:
        self.handle = c_void_p()
        error = Error()
        _check(library.sluice_attach(byref(options), byref(self.handle), byref(error)), error)

    def __del__(self) -> None:
        library.sluice_detach(self.handle)


class Tensor:
    """One tensor. Its memory can be had once it is ready: every way to it waits for that."""

    def __init__(self, lease: _Lease, raw: RawTensor, writable: bool) -> None:
        self._lease = lease
        self._number, self._address, self.nbytes = raw.number, raw.data or 0, raw.bytes
        self._writable = writable
        self._dlpack = (raw.dlpack_code, raw.dlpack_bits, raw.dlpack_lanes)
        self.name = ctypes.string_at(raw.name, raw.name_bytes).decode("utf-8", "surrogateescape")
        self.dtype = raw.dtype.decode()
        self.is_file = raw.kind == KIND_FILE
        self.shape = tuple(raw.shape[i] for i in range(raw.rank))
        self.strides = tuple(raw.strides[i] for i in range(raw.rank)) if raw.strides else self._row_by_row()

    def _row_by_row(self) -> tuple:
        strides, step = [], 1
        for extent in reversed(self.shape):
            strides.append(step)
            step *= max(extent, 1)
        return tuple(reversed(strides))

    def __repr__(self) -> str:
        return f"<sluice.Tensor {self.name!r} {self.dtype or 'file'} {list(self.shape)}>"

    @property
    def ready(self) -> bool:
        return library.sluice_ready(self._lease.handle, self._number) == 1

    def wait(self, timeout: Optional[float] = None) -> "Tensor":
        """Until it is in place and checked; timeout in seconds. An interrupt (Ctrl-C) ends it within a second."""
        left = None if timeout is None else max(int(timeout * 1000), 0)
        while True:
            error = Error()
            slice_ms = 1000 if left is None else min(left, 1000)
            if library.sluice_wait(self._lease.handle, self._number, slice_ms, -1, byref(error)) == 0:
                return self
            left = None if left is None else left - slice_ms
            if error.kind != 8 or (left is not None and left <= 0):
                raise SluiceError(error)

    def _bytes(self) -> Any:
        self.wait()
        array = (ctypes.c_uint8 * self.nbytes).from_address(self._address) if self.nbytes else (ctypes.c_uint8 * 0)()
        array._sluice_lease = self._lease  # as long as anybody looks at it
        return array

    def memoryview(self) -> memoryview:
        """Its bytes; read-only unless attached with writable=True."""
        view = memoryview(self._bytes()).cast("B")
        return view if self._writable else view.toreadonly()

    def tobytes(self) -> bytes:
        return bytes(self.memoryview())

    def numpy(self) -> Any:
        """A NumPy array on the same memory. bfloat16 and float8 need ml_dtypes; without it they are unsigned integers."""
        import numpy

        kind = _NUMPY.get(self.dtype) or ("u1" if self.is_file else None)
        view = numpy.frombuffer(self.memoryview(), dtype="u1")
        if kind is None and self.dtype in _ML_DTYPES:
            kind = "<u2" if self._dlpack[1] == 16 else "u1"
            try:
                import ml_dtypes

                kind = getattr(ml_dtypes, _ML_DTYPES[self.dtype])
            except (ImportError, AttributeError):
                pass
        if kind is None:
            raise TypeError(f"NumPy has no type for {self.dtype}: use memoryview()")
        array = view.view(kind) if self.nbytes else numpy.empty(0, dtype=kind)
        item = array.dtype.itemsize
        return numpy.lib.stride_tricks.as_strided(
            array, self.shape, tuple(step * item for step in self.strides), writeable=self._writable
        )

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> Any:
        array = self.numpy()
        if dtype is not None and array.dtype != dtype:
            return array.astype(dtype)
        return array.copy() if copy else array

    def torch(self) -> Any:
        """A torch tensor on the same memory. torch knows no read-only tensors: attach with writable=True unless nothing
        writes to it."""
        import torch

        short = _ML_DTYPES.get(self.dtype, "") if self._dlpack[1] == 8 else ""
        if not short:
            return torch.from_dlpack(self)
        if not hasattr(torch, short):
            raise TypeError(f"this torch has no {short}: use memoryview()")
        return torch.from_dlpack(_Bytes(self)).view(getattr(torch, short))  # not every torch takes them through DLPack

    def __dlpack_device__(self) -> tuple:
        return (_dlpack.CPU, 0)

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: Any = None) -> Any:
        if not self._dlpack[1]:
            raise BufferError(f"DLPack has no type for {self.dtype}")
        if copy or (dl_device is not None and tuple(dl_device) != (_dlpack.CPU, 0)):
            raise BufferError("sluice gives its own memory only: copy it afterwards")
        self.wait()
        return _dlpack.capsule(
            self._lease, self._address, self.shape, self.strides, self._dlpack, not self._writable, max_version
        )


class _Bytes:
    """A tensor of one-byte elements, seen as unsigned integers."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def __dlpack_device__(self) -> tuple:
        return (_dlpack.CPU, 0)

    def __dlpack__(self, *, max_version: Any = None, **_: Any) -> Any:
        own = self._tensor
        own.wait()
        return _dlpack.capsule(own._lease, own._address, own.shape, own.strides, (1, 8, 1), not own._writable, max_version)


class Model(Mapping):
    """Names to tensors; files such as config.json are in `files`. The lease lasts as long as anything of it is in use."""

    def __init__(self, lease: _Lease, writable: bool) -> None:
        self._lease = lease
        info = self._info()
        self.name, self.key, self.identity = info.name.decode(), info.key.decode(), bytes(info.identity)
        self._tensors: dict[str, Tensor] = {}
        self.files: dict[str, Tensor] = {}
        for number in range(info.tensor_count):
            raw, error = RawTensor(size=sizeof(RawTensor)), Error()
            _check(library.sluice_tensor_at(lease.handle, number, byref(raw), byref(error)), error)
            tensor = Tensor(lease, raw, writable)
            (self.files if tensor.is_file else self._tensors).setdefault(tensor.name, tensor)

    def _info(self) -> ModelInfo:
        info = ModelInfo(size=sizeof(ModelInfo))
        library.sluice_model_info(self._lease.handle, byref(info))
        return info

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        return f"<sluice.Model {self.name!r} {len(self)} tensors>"

    @property
    def nbytes(self) -> int:
        return self._info().bytes

    @property
    def ready(self) -> bool:
        return self._info().state == 1

    def wait(self, timeout: Optional[float] = None) -> "Model":
        """Until all of it is there; timeout in seconds, for each tensor."""
        for tensor in (*self._tensors.values(), *self.files.values()):
            tensor.wait(timeout)
        return self


def _text(value: Optional[str]) -> Optional[bytes]:
    return None if value is None else value.encode()


def attach(
    name: str, device: str = "cpu", *, key: Optional[str] = None, socket: Optional[str] = None, load: bool = True,
    writable: bool = False, timeout: Optional[float] = None,
) -> Model:
    """Attach to a model of the pool, which may still be loading.

    device    "cpu" only, so far.
    key       of a derived model, as it was deposited.
    load      begin a load if it is not in memory; else that is an error.
    writable  a private view: a page that is written to is copied, and nobody else sees it. torch does not know read-only
              tensors, and a write to one ends the process.
    timeout   seconds until the daemon knows what is in the model; None waits for ever.
    """
    flags = (PRIVATE if writable else 0) | (0 if load else PRESENT_ONLY)
    options = AttachOptions(
        size=sizeof(AttachOptions), model=_text(name), socket=_text(socket), key=_text(key),
        device=b"host" if device == "cpu" else _text(device), flags=flags,
        timeout_ms=0 if timeout is None else max(int(timeout * 1000), 1),
    )
    return Model(_Lease(options), writable)


class Deposit:
    """A derived model in the making; as a context manager it is committed at the end, unless something failed."""

    def __init__(self, source: Model, key: str, nbytes: int, *, socket: Optional[str] = None) -> None:
        self._handle, error = c_void_p(), Error()
        options = DepositOptions(
            size=sizeof(DepositOptions), model=_text(source.name), key=_text(key), socket=_text(socket), bytes=nbytes
        )
        ctypes.memmove(options.identity, source.identity, 32)
        _check(library.sluice_deposit_begin(byref(options), byref(self._handle), byref(error)), error)

    def add(self, name: str, dtype: str, shape: tuple, data: Any) -> None:
        """data: any contiguous buffer with the bytes of the tensor, row by row."""
        view, error, place = memoryview(data).cast("B"), Error(), c_void_p()
        sizes = (c_uint64 * max(len(shape), 1))(*shape)
        _check(
            library.sluice_deposit_add(
                self._handle, name.encode(), dtype.encode(), len(shape), sizes, None, view.nbytes, byref(place), byref(error)
            ),
            error,
        )
        if view.nbytes:
            memoryview((ctypes.c_uint8 * view.nbytes).from_address(place.value)).cast("B")[:] = view

    def commit(self) -> None:
        error = Error()
        _check(library.sluice_deposit_commit(self._handle, byref(error)), error)

    def close(self) -> None:
        handle, self._handle = self._handle, c_void_p()
        library.sluice_deposit_end(handle)

    def __enter__(self) -> "Deposit":
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        try:
            if kind is None:
                self.commit()
        finally:
            self.close()
