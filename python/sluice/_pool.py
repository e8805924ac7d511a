"""Models of the pool: a mapping of names to tensors, which can be used while the load still runs."""
from __future__ import annotations

import ctypes
import math
import operator
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from ctypes import byref, c_uint64, c_void_p, sizeof
from typing import Any, Optional

from . import _frameworks, _shown, _slices
from ._array import Array, Memory, row_by_row
from ._cancel import LONGEST_MS, Limit, checked, interruptible, milliseconds
from ._error import SluiceError, check as _check
from ._kinds import Texts, called, encoded, flag, number, renamed, texts
from ._library import (
    KIND_FILE, PRESENT_ONLY, PRIVATE, REGISTER, AttachOptions, DepositOptions, Error, Meta, ModelInfo, Tensor as RawTensor, library,
)
from ._model import Meta as Known
from ._once import once
from ._options import Framework


class _Mapped(Memory):
    """What is mapped, until the last array on it is gone."""

    def __init__(self, options: AttachOptions) -> None:
        model = self.model = c_void_p()

        def work(cancel_fd: int) -> None:
            options.cancel_fd, error = cancel_fd, Error()
            _check(library.sluice_attach(byref(options), byref(model), byref(error)), error)

        if not options.flags & REGISTER:
            interruptible(work)
            return
        options.flags &= ~REGISTER
        awaited = _Mapped(options)  # what takes long, which something may end
        options.flags |= REGISTER
        work(-1)  # it asks which GPU this thread uses, so no other thread can do it
        del awaited

    def __del__(self, detach: Callable[[Optional[c_void_p]], None] = library.sluice_detach) -> None:
        detach(self.model)


class _Handle(c_void_p):
    """Of the library, for one call: what it is of lives as long as that, whoever closes the model meanwhile."""

    owner: Any


def _handle(owner: Any, address: Optional[c_void_p]) -> _Handle:
    handle = _Handle(None if address is None else address.value)
    handle.owner = owner
    return handle


class _Lease:
    """A model that is attached to, until it is closed. How it was asked for is kept, so that another process can do the same."""

    def __init__(self, wish: "_Wish") -> None:
        self.wish = wish
        self._mapped: Optional[_Mapped] = _Mapped(wish.options())
        self.private = wish.is_private()

    def memory(self) -> _Mapped:
        mapped = self._mapped
        if mapped is None:
            raise ValueError(f"the model '{self.wish.name}' is closed")
        return mapped

    @property
    def handle(self) -> _Handle:
        mapped = self.memory()
        return _handle(mapped, mapped.model)

    def is_closed(self) -> bool:
        return self._mapped is None

    def close(self) -> None:
        self._mapped = None


def _wait(lease: "_Lease", call: Callable[[int, Error], int], timeout: Optional[float]) -> None:
    """Until call(ms, error) is 0; in slices, so that an interrupt (Ctrl-C) ends it within a second."""
    over = False
    left = None if timeout is None else int(min(checked(timeout), LONGEST_MS / 1000) * 1000)
    while True:
        error = Error()
        slice_ms = 1000 if left is None else min(left, 1000)
        if call(slice_ms, error) == 0:
            return
        left = None if left is None else left - slice_ms
        if error.kind != 8 or over or (left is not None and left <= 0):
            raise SluiceError(error)
        over = _info_of(lease).state == 2  # the load may have failed by a time limit of its own: then it is told once more


class Tensor(Array):
    """One tensor of a model. Its memory can be had once it is ready: every way to it waits for that.

    >>> sluice.attach("gpt-j-6b")["lm_head.weight"].wait().torch()  # doctest: +SKIP
    """

    def __init__(self, lease: _Lease, raw: RawTensor, writable: bool) -> None:
        self._number = raw.number
        self._lease = lease
        super().__init__(
            lease.memory, raw.data or 0, raw.bytes, _name(raw), raw.dtype.decode(),
            (raw.dlpack_code, raw.dlpack_bits, raw.dlpack_lanes), tuple(raw.shape[i] for i in range(raw.rank)),
            tuple(raw.strides[i] for i in range(raw.rank)) if raw.strides else None, raw.device, writable, raw.kind == KIND_FILE,
            lease.private and raw.device < 0,
        )

    @property
    def ready(self) -> bool:
        """Is it in place and checked?"""
        return bool(library.sluice_ready(self._lease.handle, self._number) == 1)

    def wait(self, timeout: Optional[float] = None) -> "Tensor":
        """Until it is in place and checked; timeout in seconds. An interrupt (Ctrl-C) ends it within a second."""
        self._wait_with(library.sluice_wait_read, timeout)
        return self

    def _wait_with(self, wait: Callable[..., int], timeout: Optional[float]) -> None:
        _wait(self._lease, lambda ms, error: wait(self._lease.handle, self._number, ms, -1, byref(error)), timeout)

    def _ready(self, write: bool) -> None:
        self._wait_with(library.sluice_wait if write else library.sluice_wait_read, None)

    def copy_to(self, address: int, stream: int = 0) -> None:
        """Copy it to memory of a GPU, in the order of a stream; the model was attached to with register=True. It may return before the
        copy has ended. address: data_ptr() of a contiguous torch tensor, say; stream: torch.cuda.current_stream().cuda_stream."""
        self._ready(False)
        error = Error()
        _check(library.sluice_copy(self._lease.handle, address, self._address, self.nbytes, stream, byref(error)), error)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_tensor_again, (self._lease.wish, _identity_of(self._lease), self.name, self.is_file))


class Part(Array):
    """The part of a tensor that one of several ranks has, on the same memory: nothing is copied, and every way to it waits for the
    tensor.

    >>> sluice.attach("gpt-j-6b").shard("lm_head.weight", dim=0, rank=1, of=8).torch()  # doctest: +SKIP
    """

    def __init__(self, whole: Array, dim: int, rank: int, of: int) -> None:
        dim = _slices.dimension(dim, whole.shape, whole.name)
        if not whole.itemsize:
            raise TypeError(f"'{whole.name}' has elements of {whole.dtype}, smaller than a byte or in blocks: cut memoryview() yourself")
        self._whole, self._cut = whole, (dim, rank, of)
        taken = _slices.part_of(whole.shape[dim], rank, of)
        shape = list(whole.shape)
        shape[dim] = taken.stop - taken.start
        begin = taken.start * whole.strides[dim] if 0 not in shape else 0
        last = sum((size - 1) * step for size, step in zip(shape, whole.strides))
        super().__init__(
            whole._memory, whole._address + begin * whole.itemsize, 0 if 0 in shape else (1 + last) * whole.itemsize, whole.name,
            whole.dtype, whole._dlpack, tuple(shape), whole.strides, whole._ordinal, whole._writable, False, whole._private,
        )

    def _ready(self, write: bool) -> None:
        self._whole._ready(write)

    def tobytes(self) -> bytes:
        """A copy of its bytes, row by row, without what lies between its rows."""
        if self._whole.strides != row_by_row(self._whole.shape):
            raise TypeError(f"'{self.name}' does not lie row by row: use numpy()")
        view, dim = self.memoryview(), self._cut[0]
        if not self.nbytes:
            return b""
        row = math.prod(self.shape[dim:]) * self.itemsize
        step = math.prod(self._whole.shape[dim:]) * self.itemsize
        return b"".join(view[at:at + row] for at in range(0, self.nbytes, step))

    def __reduce__(self) -> tuple[Any, ...]:
        return (Part, (self._whole, *self._cut))


def _string(address: int, nbytes: int) -> str:
    return ctypes.string_at(address, nbytes).decode("utf-8", "surrogateescape")


def _name(raw: RawTensor) -> str:
    return _string(raw.name, raw.name_bytes)


class PoolSlice:
    """A tensor that brackets take a part of, on its memory."""

    def __init__(self, model: "PoolModel", tensor: Tensor) -> None:
        self._model, self._tensor = model, tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole tensor."""
        return self._tensor.shape

    def get_shape(self) -> list[int]:
        """Of the whole tensor."""
        return list(self._tensor.shape)

    def get_dtype(self) -> str:
        """Of its elements: "BF16"."""
        return self._tensor.dtype

    def __getitem__(self, index: Any) -> Any:
        framework, taken = self._model.framework or "numpy", _slices.resolve(index, self._tensor.shape)
        array = self._tensor.torch() if framework == "torch" else self._tensor.numpy()
        part = array[tuple(slice(*one) for one in taken.ranges)]
        return _frameworks.turned(framework, part, taken.flips, taken.shape)


class PoolModel(Mapping[str, Any]):
    """Names to tensors; files such as config.json are in `files`. The lease lasts until close(), or the end of a `with` block, and then
    as long as any array on its memory is in use. A copy, also one that was pickled, attaches again, to the same version.

    Names are read when they are asked for, since a model may have tens of thousands.

    >>> with sluice.attach("gpt-j-6b", framework="torch") as model:  # doctest: +SKIP
    ...     weight = model["lm_head.weight"]
    """

    def __init__(self, lease: _Lease, writable: bool, framework: Optional[str] = None) -> None:
        self._lease, self._writable, self._framework = lease, writable, framework
        info = self._info()
        self.name, self.key = info.name.decode(), info.key.decode()
        self.identity = bytes(info.identity)  # equal for equal bytes in equal places
        self._made: dict[int, Tensor] = {}

    def _info(self) -> ModelInfo:
        return _info_of(self._lease)

    def close(self) -> None:
        """End the lease as soon as no array on its memory is in use. What is asked of the model or its tensors afterwards is a
        ValueError."""
        self._lease.close()
        self._made = {}  # one whose address was told keeps the memory as long as it is in use

    def __enter__(self) -> "PoolModel":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return (_model_again, (self._lease.wish, self.identity, self._framework))

    @property
    def unpinned(self) -> Optional[str]:
        """Why the host's memory is not pinned although register=True asked for it; None: it is, or nobody asked."""
        lease = self._lease.handle  # the text is the model's
        why = self._info().unpinned if lease.owner else None
        return why.decode("utf-8", "replace") if why else None

    def metadata(self) -> dict[str, str]:
        """What the model's files say of themselves, such as the "format" of safetensors; of two with one key the first."""
        found: dict[str, str] = {}
        handle = self._lease.handle
        for number in range(self._info().meta_count):
            raw, error = Meta(size=sizeof(Meta)), Error()
            _check(library.sluice_meta_at(handle, number, byref(raw), byref(error)), error)
            found.setdefault(_string(raw.key, raw.key_bytes), _string(raw.value, raw.value_bytes))
        return found

    def _tensor(self, number: int) -> Tensor:
        made, handle = self._made, self._lease.handle
        if number not in made:
            raw, error = RawTensor(size=sizeof(RawTensor)), Error()
            _check(library.sluice_tensor_at(handle, number, byref(raw), byref(error)), error)
            made[number] = Tensor(self._lease, raw, self._writable)
        return made[number]

    @once
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

    @once
    def files(self) -> dict[str, Tensor]:
        """Data files beside the tensors, such as config.json, by their names."""
        return {name: self._tensor(number) for name, number in self._numbers[1].items()}

    def __getitem__(self, name: str) -> Any:
        return self._array(self._tensor_of(name))

    def _tensor_of(self, name: str) -> Tensor:
        return self._tensor(self._numbers[0][name])

    def shard(self, name: str, dim: int, rank: int, of: int) -> Part:
        """The part of a tensor that one of several ranks has: rows of a dimension. The pool has read the tensor once for all of them, and
        they share its memory."""
        return Part(self._tensor_of(name), dim, rank, of)

    def __contains__(self, name: object) -> bool:
        return name in self._numbers[0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers[0])

    def __len__(self) -> int:
        return len(self._numbers[0])

    def __repr__(self) -> str:
        return f"<sluice.PoolModel {self.name!r} {len(self)} tensors>"

    def _repr_html_(self) -> str:
        return _shown.table(
            f"{self.name} of the pool", self, lambda name: _shown.Line(name, *(getattr(self._tensor_of(name), what) for what in ("dtype", "shape", "nbytes")))
        )

    async def __aenter__(self) -> "PoolModel":
        return self

    async def __aexit__(self, kind: Any, value: Any, trace: Any) -> None:
        self.close()

    # ---- as of a Model that open() gives -----------------------------------------------------------

    @property
    def framework(self) -> Optional[str]:
        """Whose arrays model[name] gives; None: Tensor."""
        return self._framework

    def meta(self, name: str) -> Known:
        """Type, shape and so on of a tensor, without waiting for it. Hashes are the daemon's, which has checked them."""
        tensor = self._tensor_of(name)
        return Known(tensor.name, tensor.dtype, tensor.shape, tensor.nbytes, False, ())

    def _array(self, tensor: Tensor) -> Any:
        """On the same memory. Waits for it."""
        if self._framework is None:
            return tensor
        return tensor.torch() if self._framework == "torch" else tensor.numpy()

    def slice(self, name: str) -> "PoolSlice":
        """`model.slice("w")[0:128, ::2]` is what is in the brackets, on the same memory; negative steps of torch's arrays are copies."""
        return PoolSlice(self, self._tensor_of(name))

    get_slice = slice

    def get_tensor(self, name: str) -> Any:
        """model[name]."""
        return self[name]

    def _chosen(self, names: Optional[Texts], filter: Optional[Callable[[str], object]]) -> list[str]:
        called(filter, "filter")
        chosen = list(self) if names is None else texts(names, "names")
        return [name for name in chosen if filter is None or filter(name)]

    def load(
        self, names: Optional[Texts] = None, *, filter: Optional[Callable[[str], object]] = None, dtype: Any = None,
        timeout: Optional[float] = None,
    ) -> dict[str, Any]:
        """Many tensors at once: all, those of names, or those of which filter(name) is true, each once it is there. dtype: cast to it what is
        of its kind; such arrays are copies. timeout: seconds until all is there. KeyError; SluiceError of kind TIMEOUT."""
        return dict(self.stream(names, filter=filter, dtype=dtype, timeout=timeout))

    def stream(
        self, names: Optional[Texts] = None, *, filter: Optional[Callable[[str], object]] = None, dtype: Any = None,
        timeout: Optional[float] = None,
    ) -> Iterator[tuple[str, Any]]:
        """(name, tensor), each once it is there. timeout: seconds that waiting may take in all."""
        limit = Limit(timeout)
        wanted = None if self._framework is None else _frameworks.dtype_of(self._framework, dtype)
        for name in self._chosen(names, filter):
            tensor = self._tensor_of(name)
            with limit.step():
                tensor.wait(limit.left)
            array = self._array(tensor)
            yield name, array if wanted is None else _frameworks.cast(self._framework or "", array, wanted)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it has, padding included."""
        return int(self._info().bytes)

    @property
    def device(self) -> str:
        """Where its tensors are, as this process counts: "cpu", "cuda:0"."""
        ordinal = self._info().device
        return "cpu" if ordinal < 0 else f"cuda:{ordinal}"

    @property
    def ready(self) -> bool:
        """Is all of it in place and checked?"""
        return bool(self._info().state == 1)

    def wait(self, timeout: Optional[float] = None) -> "PoolModel":
        """Until all of it is there; timeout in seconds."""
        _wait(self._lease, lambda ms, error: library.sluice_wait_all(self._lease.handle, ms, -1, byref(error)), timeout)
        return self


def _info_of(lease: _Lease) -> ModelInfo:
    info = ModelInfo(size=sizeof(ModelInfo))
    library.sluice_model_info(lease.handle, byref(info))
    return info


def _identity_of(lease: _Lease) -> bytes:
    return bytes(_info_of(lease).identity)


def _text(value: Optional[str], what: str) -> Optional[bytes]:
    """A NUL would end it early, and name something else."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError(f"{what} is a str, not {type(value).__name__}")
    if "\0" in value:
        raise ValueError(f"{what} has a NUL byte: {value!r}")
    return encoded(value, what)


def _device(device: Any) -> str:
    """As the pool calls it. "cpu", "cuda", "cuda:1", 1, torch.device("cuda", 1)."""
    if isinstance(device, str):
        return {"cpu": "host", "cuda": "cuda:0"}.get(device, device)
    if hasattr(device, "type") and hasattr(device, "index"):  # torch.device
        return _device(device.type if device.index is None or device.type == "cpu" else f"{device.type}:{device.index}")
    if isinstance(device, bool) or not hasattr(device, "__index__"):
        raise TypeError(f"device is \"cpu\", \"cuda:0\", a GPU's number or a torch.device, not {device!r}")
    return f"cuda:{number(device, 'device', 1 << 31)}"


class _Wish:
    """How a model was asked for; another process may ask for it in the same way."""

    def __init__(
        self, name: str, device: str, key: Optional[str], socket: Optional[str], load: bool, writable: Optional[bool],
        register: bool, timeout: Optional[float],
    ) -> None:
        self.name, self.device, self.key, self.socket = name, device, key, socket
        self.load, self.register, self.timeout = flag(load, "load"), flag(register, "register"), timeout
        self.writable = None if writable is None else flag(writable, "writable")

    def is_private(self) -> bool:
        if self.writable is None:
            return self.device == "host" and not self.register
        return self.writable

    def options(self) -> AttachOptions:
        flags = (PRIVATE if self.is_private() else 0) | (0 if self.load else PRESENT_ONLY) | (REGISTER if self.register else 0)
        return AttachOptions(
            size=sizeof(AttachOptions), model=_text(self.name, "name"), socket=_text(self.socket, "socket"), key=_text(self.key, "deposit"),
            device=_text(self.device, "device"), flags=flags, timeout_ms=milliseconds(self.timeout),
        )

    def same(self) -> tuple[Any, ...]:
        return tuple(sorted(self.__dict__.items(), key=operator.itemgetter(0)))


_again: "weakref.WeakValueDictionary[tuple[Any, ...], _Lease]" = weakref.WeakValueDictionary()


def _lease_again(wish: _Wish, identity: bytes) -> _Lease:
    """What is unpickled shares one lease, as it did where it was pickled."""
    key = (identity, *wish.same())
    lease = _again.get(key)
    if lease is None or lease.is_closed():
        lease = _Lease(wish)
        if _identity_of(lease) != identity:
            raise SluiceError(f"the model '{wish.name}' was pickled as another version than the pool has now", "INTEGRITY", "stale")
        _again[key] = lease
    return lease


def _model_again(wish: _Wish, identity: bytes, framework: Optional[str] = None) -> PoolModel:
    return PoolModel(_lease_again(wish, identity), wish.writable is True, framework)


def _tensor_again(wish: _Wish, identity: bytes, name: str, is_file: bool) -> Tensor:
    model = _model_again(wish, identity)
    return model.files[name] if is_file else model._tensor_of(name)  # pyright: ignore[reportPrivateUsage]


def attach(
    name: str, device: Any = "cpu", *, deposit: Optional[str] = None, socket: Optional[str] = None, load: bool = True,
    writable: Optional[bool] = None, register: bool = False, timeout: Optional[float] = None, key: Optional[str] = None,
    framework: Optional[Framework] = None,
) -> PoolModel:
    """Attach to a model of the pool, which may still be loading.

    device    "cpu", or a GPU as this process counts them: "cuda:0", 0, torch.device("cuda"); or its UUID, "GPU-…". The daemon must keep the
              model there.
    deposit   the key of a derived model, as it was deposited. (key is what this was called before.)
    load      begin a load if it is not in memory; else that is an error.
    writable  None: arrays of torch() may be written to, others are read-only. True: all may be. What is written is copied, page by
              page, and nobody else sees it. False: nothing may be, and as torch does not know read-only tensors a write to one ends
              the process. A GPU has no private views.
    register  pin the host's memory with the GPU's driver, so that copies to a GPU run at full speed and asynchronously; not with
              writable=True. Many drivers refuse that: model.unpinned says why then, and tensor.copy_to() is as fast.
    timeout   seconds until the daemon knows what is in the model; a daemon that is not there yet is waited for, too. None waits
              for ever, but not for a daemon that is not there.
    framework "torch" or "numpy": what model[name] gives, on the pool's memory. None: Tensor, which can become any of them.

    SluiceNotFoundError: the daemon does not know this model. SluiceConnectionError: no daemon answers. SluicePermissionError and SluiceTimeoutError.

    >>> model = sluice.attach("gpt-j-6b", framework="torch")  # doctest: +SKIP
    >>> model["lm_head.weight"].shape  # doctest: +SKIP
    torch.Size([50400, 4096])
    """
    wish = _Wish(name, _device(device), renamed("attach", "key", "deposit", deposit, key), socket, load, writable, register, timeout)
    found = _frameworks.framework_name(framework)
    if found not in (None, "torch", "numpy"):
        raise ValueError(f"framework is 'torch' or 'numpy' for a model of the pool, not {framework!r}: model[name] goes to others by DLPack")
    return PoolModel(_Lease(wish), writable is True, found)


# How DLPack calls what can be deposited.
_DLPACK = {
    "BOOL": (6, 8, 1), "U8": (1, 8, 1), "I8": (0, 8, 1), "U16": (1, 16, 1), "I16": (0, 16, 1), "U32": (1, 32, 1),
    "I32": (0, 32, 1), "U64": (1, 64, 1), "I64": (0, 64, 1), "F16": (2, 16, 1), "BF16": (4, 16, 1), "F32": (2, 32, 1),
    "F64": (2, 64, 1), "C32": (5, 32, 1), "C64": (5, 64, 1), "C128": (5, 128, 1), "F8_E4M3": (10, 8, 1),
    "F8_E5M2": (12, 8, 1), "F8_E8M0": (14, 8, 1), "F8_E4M3FNUZ": (11, 8, 1), "F8_E5M2FNUZ": (13, 8, 1),
}


class _Deposited(Memory):
    """The memory of a deposit, until the last array on it is gone."""

    def __init__(self, options: DepositOptions) -> None:
        self.deposit = c_void_p()
        error = Error()
        _check(library.sluice_deposit_begin(byref(options), byref(self.deposit), byref(error)), error)

    def __del__(self, end: Callable[[Optional[c_void_p]], None] = library.sluice_deposit_end) -> None:
        end(self.deposit)


class Room(Array):
    """Where a tensor of a deposit goes: writable until the commit, read-only from then on.

    >>> room = deposit.room("w", "F32", (4, 6))  # doctest: +SKIP
    >>> room.torch().fill_(1)  # doctest: +SKIP
    """


class Deposit:
    """A derived model in the making; as a context manager it is committed at the end, unless something failed.

    device  where its memory is: that of the source, unless given.

    >>> with sluice.Deposit(model, "fused", nbytes=1 << 30) as deposit:  # doctest: +SKIP
    ...     deposit.room("w", "F32", (4, 6)).torch().fill_(1)
    """

    def __init__(
        self, source: PoolModel, key: str, nbytes: int, *, socket: Optional[str] = None, device: Any = None
    ) -> None:
        self._device = _device(source.device if device is None else device)
        options = DepositOptions(
            size=sizeof(DepositOptions), model=_text(source.name, "the model's name"), key=_text(key, "key"),
            socket=_text(socket, "socket"), device=_text(self._device, "device"), bytes=number(nbytes, "nbytes"),
        )
        ctypes.memmove(options.identity, source.identity, 32)
        self._memory: Optional[_Deposited] = _Deposited(options)
        self._lock = threading.Lock()  # the library has one thread in it at a time

    def _open(self) -> _Deposited:
        memory = self._memory
        if memory is None:
            raise ValueError("the deposit was already committed or aborted")
        return memory

    @staticmethod
    def _nbytes(dtype: str, shape: tuple[int, ...], strides: Optional[tuple[int, ...]]) -> int:
        bits = _DLPACK.get(dtype, (0, 8, 1))[1]  # the library refuses what it does not know
        if strides is None or 0 in shape:
            return bits // 8 * math.prod(shape)
        return bits // 8 * (1 + sum((size - 1) * step for size, step in zip(shape, strides)))

    def room(self, name: str, dtype: str, shape: tuple[int, ...], strides: Optional[tuple[int, ...]] = None) -> Room:
        """Room for a tensor, for you to fill: `deposit.room("w", "BF16", w.shape).torch().copy_(w)`. strides are in elements."""
        error, place = Error(), c_void_p()
        sizes = (c_uint64 * max(len(shape), 1))(*shape)
        steps = None if strides is None else (c_uint64 * max(len(strides), 1))(*strides)
        nbytes = self._nbytes(dtype, shape, strides)
        told, kind = _text(name, "name"), _text(dtype, "dtype")
        with self._lock:
            memory = self._open()
            added = library.sluice_deposit_add(
                memory.deposit, told, kind, len(shape), sizes, steps, nbytes, byref(place), byref(error)
            )
        _check(added, error)
        ordinal = library.sluice_deposit_device(memory.deposit)
        return Room(lambda: memory, place.value or 0, nbytes, name, dtype, _DLPACK[dtype], tuple(shape), strides, ordinal, True)

    def add(self, name: str, dtype: str, shape: tuple[int, ...], data: Any) -> None:
        """data: any contiguous buffer with the bytes of the tensor, row by row. On a GPU use room()."""
        view = memoryview(data).cast("B")
        if self._device != "host":
            raise TypeError(f"memory of {self._device} cannot be filled from a buffer: use room()")
        if view.nbytes != self._nbytes(dtype, shape, None):
            raise ValueError(f"{list(shape)} of {dtype} are no {view.nbytes} bytes")
        self.room(name, dtype, shape).memoryview()[:] = view

    def commit(self) -> None:
        """Publish what was added. On a GPU all that writes to it must have been enqueued: it is waited for."""
        error = Error()
        with self._lock:
            _check(library.sluice_deposit_commit(self._open().deposit, byref(error)), error)

    def close(self) -> None:
        """What is not committed is dropped. Arrays on its memory stay good."""
        with self._lock:
            memory, self._memory = self._memory, None
            if memory is not None:
                library.sluice_deposit_abort(memory.deposit)

    def __enter__(self) -> "Deposit":
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        try:
            if kind is None:
                self.commit()
        finally:
            self.close()
