"""Models of the pool: a mapping of names to tensors, which can be used while the load still runs."""
from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator, Mapping
from ctypes import byref, c_uint64, c_void_p, sizeof
from functools import cached_property
from typing import Any, Optional

from ._array import Array
from ._error import SluiceError, check as _check
from ._library import (
    KIND_FILE, PRESENT_ONLY, PRIVATE, REGISTER, AttachOptions, DepositOptions, Error, ModelInfo, Tensor as RawTensor, library,
)

class _Lease:
    """What is mapped, until the last tensor of it is gone."""

    def __init__(self, options: AttachOptions) -> None:
        self.handle = c_void_p()
        error = Error()
        _check(library.sluice_attach(byref(options), byref(self.handle), byref(error)), error)

    def __del__(self) -> None:
        library.sluice_detach(self.handle)


def _wait(call: Callable[[int, Error], int], timeout: Optional[float]) -> None:
    """Until call(ms, error) is 0; in slices, so that an interrupt (Ctrl-C) ends it within a second."""
    left = None if timeout is None else max(int(timeout * 1000), 0)
    while True:
        error = Error()
        slice_ms = 1000 if left is None else min(left, 1000)
        if call(slice_ms, error) == 0:
            return
        left = None if left is None else left - slice_ms
        if error.kind != 8 or (left is not None and left <= 0):
            raise SluiceError(error)


class Tensor(Array):
    """One tensor of a model. Its memory can be had once it is ready: every way to it waits for that."""

    def __init__(self, lease: _Lease, raw: RawTensor, writable: bool) -> None:
        self._number = raw.number
        super().__init__(
            lease, raw.data or 0, raw.bytes, _name(raw), raw.dtype.decode(),
            (raw.dlpack_code, raw.dlpack_bits, raw.dlpack_lanes), tuple(raw.shape[i] for i in range(raw.rank)),
            tuple(raw.strides[i] for i in range(raw.rank)) if raw.strides else None, raw.device, writable, raw.kind == KIND_FILE,
        )

    @property
    def ready(self) -> bool:
        return bool(library.sluice_ready(self._owner.handle, self._number) == 1)

    def wait(self, timeout: Optional[float] = None) -> "Tensor":
        """Until it is in place and checked; timeout in seconds. An interrupt (Ctrl-C) ends it within a second."""
        _wait(lambda ms, error: library.sluice_wait(self._owner.handle, self._number, ms, -1, byref(error)), timeout)
        return self

    def _ready(self) -> None:
        self.wait()


def _name(raw: RawTensor) -> str:
    return ctypes.string_at(raw.name, raw.name_bytes).decode("utf-8", "surrogateescape")


class Model(Mapping[str, Tensor]):
    """Names to tensors; files such as config.json are in `files`. The lease lasts as long as anything of it is in use.

    Names are read when they are asked for, since a model may have tens of thousands.
    """

    def __init__(self, lease: _Lease, writable: bool) -> None:
        self._lease, self._writable = lease, writable
        info = self._info()
        self.name, self.key, self.identity = info.name.decode(), info.key.decode(), bytes(info.identity)
        self._made: dict[int, Tensor] = {}

    def _info(self) -> ModelInfo:
        info = ModelInfo(size=sizeof(ModelInfo))
        library.sluice_model_info(self._lease.handle, byref(info))
        return info

    def _tensor(self, number: int) -> Tensor:
        if number not in self._made:
            raw, error = RawTensor(size=sizeof(RawTensor)), Error()
            _check(library.sluice_tensor_at(self._lease.handle, number, byref(raw), byref(error)), error)
            self._made[number] = Tensor(self._lease, raw, self._writable)
        return self._made[number]

    @cached_property
    def _numbers(self) -> tuple[dict[str, int], dict[str, int]]:
        """{name: number} of tensors and of files; of two with one name the first."""
        tensors: dict[str, int] = {}
        files: dict[str, int] = {}
        raw = RawTensor(size=sizeof(RawTensor))
        at, handle, place = library.sluice_tensor_at, self._lease.handle, byref(raw)
        for number in range(self._info().tensor_count):
            at(handle, number, place, None)
            (files if raw.kind == KIND_FILE else tensors).setdefault(_name(raw), number)
        return tensors, files

    @cached_property
    def files(self) -> dict[str, Tensor]:
        return {name: self._tensor(number) for name, number in self._numbers[1].items()}

    def __getitem__(self, name: str) -> Tensor:
        return self._tensor(self._numbers[0][name])

    def __contains__(self, name: object) -> bool:
        return name in self._numbers[0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers[0])

    def __len__(self) -> int:
        return len(self._numbers[0])

    def __repr__(self) -> str:
        return f"<sluice.Model {self.name!r} {len(self)} tensors>"

    @property
    def nbytes(self) -> int:
        return int(self._info().bytes)

    @property
    def device(self) -> str:
        """Where its tensors are, as this process counts: "cpu", "cuda:0"."""
        ordinal = self._info().device
        return "cpu" if ordinal < 0 else f"cuda:{ordinal}"

    @property
    def ready(self) -> bool:
        return bool(self._info().state == 1)

    def wait(self, timeout: Optional[float] = None) -> "Model":
        """Until all of it is there; timeout in seconds."""
        _wait(lambda ms, error: library.sluice_wait_all(self._lease.handle, ms, -1, byref(error)), timeout)
        return self


def _text(value: Optional[str]) -> Optional[bytes]:
    return None if value is None else value.encode()


def _device(name: str) -> bytes:
    return {"cpu": b"host", "cuda": b"cuda:0"}.get(name) or name.encode()


def attach(
    name: str, device: str = "cpu", *, key: Optional[str] = None, socket: Optional[str] = None, load: bool = True,
    writable: bool = False, register: bool = False, timeout: Optional[float] = None,
) -> Model:
    """Attach to a model of the pool, which may still be loading.

    device    "cpu", or a GPU as this process counts them: "cuda:0". The daemon must keep the model there.
    key       of a derived model, as it was deposited.
    load      begin a load if it is not in memory; else that is an error.
    writable  a private view: a page that is written to is copied, and nobody else sees it. torch does not know read-only
              tensors, and a write to one ends the process. Not on a GPU.
    register  pin the host's memory with the GPU's driver, so that copies to a GPU run at full speed and asynchronously.
    timeout   seconds until the daemon knows what is in the model; None waits for ever.
    """
    flags = (PRIVATE if writable else 0) | (0 if load else PRESENT_ONLY) | (REGISTER if register else 0)
    options = AttachOptions(
        size=sizeof(AttachOptions), model=_text(name), socket=_text(socket), key=_text(key), device=_device(device), flags=flags,
        timeout_ms=0 if timeout is None else max(int(timeout * 1000), 1),
    )
    return Model(_Lease(options), writable)


# How DLPack calls what can be deposited.
_DLPACK = {
    "BOOL": (6, 8, 1), "U8": (1, 8, 1), "I8": (0, 8, 1), "U16": (1, 16, 1), "I16": (0, 16, 1), "U32": (1, 32, 1),
    "I32": (0, 32, 1), "U64": (1, 64, 1), "I64": (0, 64, 1), "F16": (2, 16, 1), "BF16": (4, 16, 1), "F32": (2, 32, 1),
    "F64": (2, 64, 1), "C32": (5, 32, 1), "C64": (5, 64, 1), "C128": (5, 128, 1), "F8_E4M3": (10, 8, 1),
    "F8_E5M2": (12, 8, 1), "F8_E8M0": (14, 8, 1), "F8_E4M3FNUZ": (11, 8, 1), "F8_E5M2FNUZ": (13, 8, 1),
}


class _Deposited:
    """The memory of a deposit, until the last array on it is gone."""

    def __init__(self, options: DepositOptions) -> None:
        self.handle = c_void_p()
        error = Error()
        _check(library.sluice_deposit_begin(byref(options), byref(self.handle), byref(error)), error)

    def __del__(self) -> None:
        library.sluice_deposit_end(self.handle)


class Room(Array):
    """Where a tensor of a deposit goes: writable until the commit, read-only from then on."""


class Deposit:
    """A derived model in the making; as a context manager it is committed at the end, unless something failed.

    device  where its memory is: that of the source, unless given.
    """

    def __init__(
        self, source: Model, key: str, nbytes: int, *, socket: Optional[str] = None, device: Optional[str] = None
    ) -> None:
        self._device = source.device if device is None else device
        options = DepositOptions(
            size=sizeof(DepositOptions), model=_text(source.name), key=_text(key), socket=_text(socket),
            device=_device(self._device), bytes=nbytes,
        )
        ctypes.memmove(options.identity, source.identity, 32)
        self._memory: Optional[_Deposited] = _Deposited(options)

    def _open(self) -> _Deposited:
        if self._memory is None:
            raise ValueError("the deposit is over")
        return self._memory

    @staticmethod
    def _nbytes(dtype: str, shape: tuple[int, ...], strides: Optional[tuple[int, ...]]) -> int:
        bits = _DLPACK.get(dtype, (0, 8, 1))[1]  # the library refuses what it does not know
        if strides is None or 0 in shape:
            return bits // 8 * math.prod(shape)
        return bits // 8 * (1 + sum((size - 1) * step for size, step in zip(shape, strides)))

    def room(self, name: str, dtype: str, shape: tuple[int, ...], strides: Optional[tuple[int, ...]] = None) -> Room:
        """Room for a tensor, for you to fill: `deposit.room("w", "BF16", w.shape).torch().copy_(w)`. strides are in elements."""
        memory, error, place = self._open(), Error(), c_void_p()
        sizes = (c_uint64 * max(len(shape), 1))(*shape)
        steps = None if strides is None else (c_uint64 * max(len(strides), 1))(*strides)
        nbytes = self._nbytes(dtype, shape, strides)
        _check(
            library.sluice_deposit_add(
                memory.handle, name.encode(), dtype.encode(), len(shape), sizes, steps, nbytes, byref(place), byref(error)
            ),
            error,
        )
        ordinal = library.sluice_deposit_device(memory.handle)
        return Room(memory, place.value or 0, nbytes, name, dtype, _DLPACK[dtype], tuple(shape), strides, ordinal, True)

    def add(self, name: str, dtype: str, shape: tuple[int, ...], data: Any) -> None:
        """data: any contiguous buffer with the bytes of the tensor, row by row. On a GPU use room()."""
        view = memoryview(data).cast("B")
        if self._device not in ("cpu", "host"):
            raise TypeError(f"memory of {self._device} cannot be filled from a buffer: use room()")
        if view.nbytes != self._nbytes(dtype, shape, None):
            raise ValueError(f"{list(shape)} of {dtype} are no {view.nbytes} bytes")
        self.room(name, dtype, shape).memoryview()[:] = view

    def commit(self) -> None:
        """Publish what was added. On a GPU all that writes to it must have been enqueued: it is waited for."""
        error = Error()
        _check(library.sluice_deposit_commit(self._open().handle, byref(error)), error)

    def close(self) -> None:
        """What is not committed is dropped. Arrays on its memory stay good."""
        memory, self._memory = self._memory, None
        if memory is not None:
            library.sluice_deposit_abort(memory.handle)

    def __enter__(self) -> "Deposit":
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        try:
            if kind is None:
                self.commit()
        finally:
            self.close()
