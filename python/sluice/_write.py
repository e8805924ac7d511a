"""New models, written from arrays of whatever framework."""
from __future__ import annotations

import os
import sys
import threading
from collections.abc import Generator, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple, Optional, Union

from . import _fork, _native, _progress
from ._array import Array, row_by_row
from ._blocks import contextmanager
from ._dtypes import DTYPES, library, of_numpy, of_torch
from ._key import Secret, secret_of
from ._kinds import flag, renamed, told
from ._native import Output, Written
from ._options import Credentials, spec_text

_FORMATS = {None: None, "safetensors": "safetensors", "tensorizer": "tensorizer", "tensors": "tensorizer"}


class Laid(NamedTuple):
    """Bytes that lie row by row, and what must stay alive for them."""

    dtype: str
    shape: tuple[int, ...]
    address: int  # 0 and bytes: a meta tensor
    nbytes: int
    owner: Any


def _is_in_memory(tensor: Any) -> bool:
    """All of its elements, on the host. Those of a storage that was freed or made smaller are not, nor those of a fake tensor, or of one that
    only wraps others."""
    try:
        storage = tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()  # before torch 2
        behind = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride())) + 1
        return bool(tensor.data_ptr()) and (tensor.storage_offset() + behind) * tensor.element_size() <= storage.nbytes()
    except (NotImplementedError, RuntimeError):  # it says so itself
        return False


def on_host(tensor: Any) -> Any:
    """A tensor of torch whose bytes are its elements: none is still to be conjugated or negated."""
    host = tensor.detach().to("cpu")
    if host.numel() and not _is_in_memory(host):
        raise ValueError(f"a {type(tensor).__name__} of shape {list(tensor.shape)} has not all of its elements in memory of its own: was its "
                         "storage freed, is it a fake tensor, or made of others? Write what it stands for")
    return host.resolve_conj().resolve_neg() if hasattr(host, "resolve_conj") else host


def check_numpy(array: Any) -> None:
    """TypeError: some of its elements are masked, which no format can say."""
    if library("numpy").ma.is_masked(array):
        raise TypeError("a masked array cannot be written: write array.filled(…), and array.mask beside it if it matters")


def _laid_torch(tensor: Any) -> Laid:
    if getattr(tensor, "is_nested", False):
        raise TypeError("a nested tensor cannot be written: write the tensors that unbind() gives")
    row, shape = of_torch(tensor.dtype), tuple(int(size) for size in tensor.shape)
    if str(tensor.layout) != "torch.strided":
        raise TypeError(f"a tensor of layout {tensor.layout} cannot be written: call to_dense() first")
    if row.name == "F4":  # a scalar has no row of pairs
        row = row if shape else DTYPES["F4_E2M1FN_X2"]
        shape = shape[:-1] + (shape[-1] * 2,) if shape else shape
    nbytes = tensor.numel() * tensor.element_size()
    if tensor.device.type == "meta":
        return Laid(row.name, shape, 0, nbytes, tensor)
    lying = on_host(tensor).contiguous()
    return Laid(row.name, shape, lying.data_ptr() if nbytes else 0, nbytes, lying)


def _laid_numpy(array: Any) -> Laid:
    numpy = library("numpy")
    check_numpy(array)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    row = of_numpy(array.dtype)
    lying = numpy.ascontiguousarray(array).reshape(array.shape)
    return Laid(row.name, tuple(array.shape), lying.ctypes.data if lying.nbytes else 0, int(lying.nbytes), lying)


def laid(tensor: Any) -> Laid:
    """A tensor of torch, NumPy, JAX, CuPy, or of sluice, as bytes. Copied only if it does not lie row by row on the host."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        return _laid_torch(tensor)
    if isinstance(tensor, Array):
        if tensor.device == "cpu" and tensor.strides == row_by_row(tensor.shape):
            view = tensor.memoryview()
            return Laid(tensor.dtype, tensor.shape, _address(view), tensor.nbytes, (tensor, view))
        return _laid_torch(tensor.torch())
    numpy = library("numpy")
    if hasattr(tensor, "get") and type(tensor).__module__.split(".")[0] == "cupy":
        tensor = tensor.get()
    if not isinstance(tensor, numpy.ndarray):
        if not hasattr(tensor, "__array__"):
            raise TypeError(f"{type(tensor).__name__} is not a tensor: torch, NumPy, JAX and CuPy have some")
        tensor = numpy.asarray(tensor)
    return _laid_numpy(tensor)


def laid_as(name: Any, tensor: Any) -> Laid:
    """laid(), whose errors say of which."""
    try:
        return laid(tensor)
    except (TypeError, ValueError) as error:
        if type(error) not in (TypeError, ValueError):
            raise
        raise type(error)(f"cannot write {name!r}: {error}") from None


def as_file(found: Laid) -> Laid:
    """As a .tensors file says it: pairs of F4 are bytes of a type of their own."""
    if found.dtype != "F4" or not found.shape:
        return found
    return found._replace(dtype="F4_E2M1FN_X2", shape=found.shape[:-1] + (found.shape[-1] // 2,))


def _address(view: memoryview) -> int:
    import ctypes

    return ctypes.addressof(ctypes.c_uint8.from_buffer(view)) if view.nbytes else 0


@contextmanager
def _local(uri: Any) -> Generator[tuple[Any, Any], None, None]:
    """(the URI, None), or for a binary file that can be written to (a place for it, the file)."""
    if not hasattr(uri, "write"):
        yield uri, None
        return
    import tempfile

    with tempfile.TemporaryDirectory(prefix="sluice-") as place:
        yield os.path.join(place, "model"), uri


class Writer:
    """A model in the making: tensors as they come, which are copied at once; finish(), or the end of a `with` block, writes it all and
    makes it visible, and an exception in the block leaves nothing.

    uri         any that `sluice convert` writes to; a '/' at its end is a folder. A binary file that can be written to is good, too.
    format      "safetensors" or "tensorizer"; None: as the URI's end says.
    metadata    texts; safetensors' only.
    key         encrypt: a Key, 32 bytes, or a passphrase; tensorizer's only. (encryption is what this was called before.)
    borrow      copy nothing: the arrays stay as they are until finish().

    Any thread may use it; one waits for another.

    >>> import numpy
    >>> with sluice.Writer("written.tensors") as writer:
    ...     writer.write("a", numpy.zeros((2, 3), numpy.float32))
    >>> sluice.open("written.tensors").meta("a").dtype
    'F32'
    """

    def __init__(
        self, uri: Any, *, format: Optional[str] = None, metadata: Optional[Mapping[str, str]] = None,
        key: Secret = None, credentials: Optional[Credentials] = None, replace: bool = True, shard_bytes: int = 0, borrow: bool = False,
        spec: Union[str, dict[str, Any], None] = None, timeout: Optional[float] = None, progress: _progress.Wanted = None,
        encryption: Secret = None,
    ) -> None:
        if told(format, "format") not in _FORMATS:
            raise ValueError(f"no format {format!r}: safetensors or tensorizer")
        if hasattr(uri, "write") and format is None:
            raise ValueError("format is missing: a file has no name that would say it")
        flags = (_native.REPLACE if flag(replace, "replace") else 0) | (_native.BORROW if flag(borrow, "borrow") else 0)
        self._begun = ExitStack()
        where, self._file = self._begun.enter_context(_local(uri))
        self._path = where
        bar = _progress.shown(progress, "a file" if self._file is not None else str(uri))
        self._credentials, self._borrow, self.total_tensor_bytes = credentials, borrow, 0
        self._kept: list[Any] = []
        self.forked()
        _fork.known(self)
        try:
            self._output: Optional[Output] = Output(
                where, _FORMATS[format], spec_text(credentials, spec), _texts(metadata), secret_of(renamed("Writer", "encryption", "key", key, encryption)), shard_bytes,
                flags, timeout, self._begun.enter_context(bar),
            )
        except BaseException:
            self._end()
            raise

    def forked(self) -> None:
        """Whoever was inside is not here."""
        self._lock = threading.Lock()

    def _taken(self) -> Optional[Output]:
        """By whoever ends it: what others wrote stays as long as that lasts."""
        with self._lock:
            output, self._output = self._output, None
        return output

    def _end(self) -> None:
        self._output = None
        self._kept.clear()
        self._begun.close()

    def write(
        self, name: Union[str, tuple[Union[str, int], ...]], tensor: Any, *, role: str = "entry", module: int = 0
    ) -> None:
        """One more tensor. A name of parts, role ("parameter", "buffer") and module are tensorizer's."""
        found = laid_as(name, tensor)
        with self._lock:
            if self._output is None:
                raise ValueError("the writer is closed")
            self._output.write(Written(name, found.dtype, found.shape, found.address, found.nbytes, role, module))
            self.total_tensor_bytes += found.nbytes
            if self._borrow:
                self._kept.append(found.owner)

    def finish(self) -> None:
        """Write it all, and make it visible at once. Then the writer is closed, whether that went well or not."""
        output = self._taken()
        if output is None:
            raise ValueError("the writer is closed")
        try:
            output.finish()
            if self._file is not None:
                import shutil

                with open(self._path, "rb") as written:
                    shutil.copyfileobj(written, self._file, 1 << 20)
        finally:
            self._end()

    def abandon(self) -> None:
        """Leave nothing. A writer that is closed stays so."""
        output = self._taken()
        if output is not None:
            output.abandon()
            self._end()

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        if kind is None and self._output is not None:
            self.finish()
        else:
            self.abandon()


def _texts(metadata: Optional[Mapping[str, str]]) -> Optional[dict[str, str]]:
    if metadata is not None and not isinstance(metadata, Mapping):
        raise TypeError(f"metadata is a dict of texts, not {metadata!r}")
    for key, value in (metadata or {}).items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"metadata is of texts: {key!r}: {value!r}")
    return None if metadata is None else dict(metadata)


def save(
    tensors: Mapping[str, Any], uri: Any, *, metadata: Optional[Mapping[str, str]] = None, format: Optional[str] = None,
    key: Secret = None, credentials: Optional[Credentials] = None, replace: bool = True, shard_bytes: int = 0,
    spec: Union[str, dict[str, Any], None] = None, timeout: Optional[float] = None, progress: _progress.Wanted = None,
    encryption: Secret = None,
) -> None:
    """Write tensors of torch, NumPy, JAX, CuPy or sluice as one model. It appears whole or not at all. Options are Writer's.

    Names that share memory each get their own bytes, since neither format lets two names have the same ones;
    sluice.safetensors.torch.save_model(module, uri) writes them once.

    TypeError: a value is not a tensor, or a name is not a text. ValueError: sluice does not write this format. SluiceValueError: the
    destination exists and replace is False, or the format lacks a type. SluiceError as of open().

    >>> import numpy
    >>> sluice.save({"a": numpy.zeros((2, 3))}, "saved.safetensors", metadata={"format": "np"})
    >>> sluice.open("saved.safetensors").meta("a").dtype
    'F64'
    """
    if not isinstance(tensors, Mapping):
        hint = "module.state_dict()" if hasattr(tensors, "state_dict") else '{"weight": tensor}'
        raise TypeError(f"tensors have names: save({hint}, …) instead of a {type(tensors).__name__}")
    for name in tensors:
        if not isinstance(name, (str, tuple)):
            raise TypeError(f"a tensor's name is a text, not {name!r}")
    with Writer(
        uri, format=format, metadata=metadata, key=renamed("save", "encryption", "key", key, encryption), credentials=credentials,
        replace=replace, shard_bytes=shard_bytes, borrow=True, spec=spec, timeout=timeout, progress=progress,
    ) as writer:
        for name, tensor in tensors.items():
            writer.write(name, tensor)
