"""tensorizer.serialization: TensorSerializer, and what reads it again."""
from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Optional, Union, cast

from .._dtypes import library
from .._write import Writer
from ._crypt import CryptographyError, DecryptionParams, EncryptionParams, HashMismatchError
from ._place import Destination, Readable
from ._read import TYPES, FilterFuncType, TensorDeserializer, TensorType, translated
from ._tree import flat

__all__ = [
    "CryptographyError", "DecryptionParams", "EncryptionParams", "FilterFuncType", "HashMismatchError", "HashType", "Readable",
    "TensorDeserializer", "TensorHash", "TensorSerializer", "TensorType",
]

# Versions of the file, by what it holds.
NON_OPAQUE_TENSORIZER_VERSION = 1
OPAQUE_TENSORIZER_VERSION = 2
ENCRYPTION_TENSORIZER_VERSION = 3
META_TENSOR_TENSORIZER_VERSION = 4
LONG_TENSOR_TENSORIZER_VERSION = 5
TENSORIZER_VERSION = LONG_TENSOR_TENSORIZER_VERSION  # the newest
TENSORIZER_MAGIC = b"|TZR|"
OPAQUE_DTYPE_SEP = "\0"  # between the type that NumPy has and torch's

_ROLES = {kind: role for role, kind in TYPES.items()}


class HashType(IntEnum):
    """As the file numbers them."""

    CRC32 = 0
    SHA256 = 1


@dataclass(order=True)
class TensorHash:
    """A hash that the file keeps of a tensor."""

    type: HashType
    hash: bytes


class _Handed:
    """A file that was handed over for writing, as a place to copy to; it is closed in the end, as tensorizer does."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, data: Any) -> Any:
        """As it comes."""
        return self._file.write(data)


def _target(file_obj: Any) -> tuple[Any, Any, Any]:
    """(a URI or something to write to, credentials, what is closed in the end)"""
    if isinstance(file_obj, Destination):
        return file_obj.uri, file_obj.credentials, file_obj
    if isinstance(file_obj, int) and not isinstance(file_obj, bool):
        file = os.fdopen(file_obj, "wb")
        return _Handed(file), None, file
    if isinstance(file_obj, (str, bytes, os.PathLike)):
        path = os.fsdecode(cast("str", file_obj))
        folder = os.path.dirname(path)
        if folder and "://" not in path:
            os.makedirs(folder, exist_ok=True)
        return path, None, None
    if not hasattr(file_obj, "write"):
        raise TypeError(f"a path, a URI, a descriptor or a binary file, not {type(file_obj).__name__}")
    seekable = getattr(file_obj, "seekable", None)
    if callable(seekable) and not seekable():
        raise ValueError("file_obj must support seeking for serialization")
    return _Handed(file_obj), None, file_obj


class TensorSerializer:
    """A .tensors file in the making. Nothing is at its place before close(), and a file that was not closed is not there.
    compress_tensors and limit_cpu_concurrency change nothing."""

    def __init__(
        self, file_obj: Any, compress_tensors: bool = False, *, encryption: Optional[EncryptionParams] = None,
        limit_cpu_concurrency: Optional[int] = None,
    ) -> None:
        if limit_cpu_concurrency is not None and not isinstance(limit_cpu_concurrency, int):
            raise TypeError(
                f"limit_cpu_concurrency parameter: expected int or None, {type(limit_cpu_concurrency).__name__} found"
            )
        if limit_cpu_concurrency is not None and limit_cpu_concurrency < 1:
            raise ValueError(
                f"limit_cpu_concurrency parameter: must be positive (or None for unbound), got {limit_cpu_concurrency}"
            )
        if encryption is not None and not isinstance(encryption, EncryptionParams):
            raise TypeError(
                f"encryption parameter: expected EncryptionParams instance or None, {type(encryption).__name__} found"
            )
        where, who, self._owned = _target(file_obj)
        self._lock = threading.Lock()
        with translated():
            self._writer = Writer(
                where, format="tensorizer", credentials=who, key=None if encryption is None else encryption.secret()
            )

    @property
    def total_tensor_bytes(self) -> int:
        """So far."""
        return self._writer.total_tensor_bytes

    def write_tensor(self, idx: int, name: Union[str, tuple[Union[str, int], ...]], tensor_type: int, tensor: Any) -> None:
        """One tensor of torch or NumPy, of the module with this number."""
        with translated():
            self._writer.write(name, tensor, role=_ROLES[TensorType(tensor_type)], module=idx)

    def write_module(
        self, m: Any, remove_tensors: bool = False, *, include_non_persistent_buffers: bool = True
    ) -> None:
        """All parameters and buffers of a module."""
        for idx, (path, module) in enumerate(m.named_modules()):
            unsaved: set[str] = set() if include_non_persistent_buffers else module._non_persistent_buffers_set
            parameters = list(module.named_parameters(recurse=False))
            buffers = [pair for pair in module.named_buffers(recurse=False) if pair[0] not in unsaved]
            for kind, pairs in ((TensorType.PARAM, parameters), (TensorType.BUFFER, buffers)):
                for name, tensor in pairs:
                    self.write_tensor(idx, f"{path}.{name}", kind, tensor)
                    if remove_tensors:
                        setattr(module, name, None)

    def write_state_dict(self, state_dict: Any) -> None:
        """Tensors of a mapping, a list, or of these in each other."""
        tensor_type = library("torch").Tensor
        for path, tensor in flat(state_dict, lambda value: isinstance(value, tensor_type)):
            name = path[0] if len(path) == 1 and isinstance(path[0], str) else path
            self.write_tensor(0, name, TensorType.STATE_DICT, tensor)

    def close(self) -> None:
        """Write it all, and close the file that was given. Once is enough."""
        with self._lock:
            writer, self.__dict__["_writer"] = self._writer, _Closed(self._writer.total_tensor_bytes)
            owned, self._owned = self._owned, None
        try:
            if isinstance(writer, Writer):
                with translated():
                    writer.finish()
        finally:
            if owned is not None:
                owned.close()


class _Closed:
    """Instead of the writer of a file that is finished."""

    def __init__(self, total_tensor_bytes: int) -> None:
        self.total_tensor_bytes = total_tensor_bytes

    def write(self, *arguments: Any, **options: Any) -> None:
        """Nothing more."""
        raise ValueError("I/O operation on closed file.")
