"""From memory to a file, and from bytes to tensors."""
from __future__ import annotations

import operator
import os
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Optional, Union, cast

from .. import _native
from .._dtypes import DTYPES
from .._kinds import is_mapping
from .._native import Output, Read, Source, Written
from ._error import SafetensorError, translated

_NAMES = (
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16",
    "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2", "complex64",
)
_CODES = {row.torch: row.name for row in DTYPES.values() if row.torch in _NAMES}


class TensorSpec:
    """A tensor in memory, whose owner keeps it there. dtype is what torch and NumPy call it; the attribute is the format's code."""

    __slots__ = ("_dtype", "_shape", "_data_ptr", "_data_len")

    def __init__(self, *, dtype: str, shape: Sequence[int], data_ptr: int, data_len: int) -> None:
        if dtype not in _CODES:
            raise SafetensorError(f'Unknown dtype "{dtype}". Supported dtypes: {", ".join(_NAMES)}')
        self._dtype = _CODES[dtype]
        self._shape = [operator.index(size) for size in shape]
        if any(size < 0 for size in self._shape) or operator.index(data_ptr) < 0 or operator.index(data_len) < 0:
            raise OverflowError("can't convert negative int to unsigned")
        if self._dtype == "F4" and self._shape:
            self._shape[-1] *= 2
        self._data_ptr, self._data_len = operator.index(data_ptr), operator.index(data_len)

    @property
    def dtype(self) -> str:
        """The format's code: "F32"."""
        return self._dtype

    @property
    def shape(self) -> list[int]:
        """In elements; those of F4 are two a byte."""
        return list(self._shape)

    @property
    def data_ptr(self) -> int:
        """The address of its bytes."""
        return self._data_ptr

    @property
    def data_len(self) -> int:
        """How many bytes."""
        return self._data_len

    def __repr__(self) -> str:
        return (
            f"TensorSpec(dtype='{self._dtype}', shape={self._shape}, data_ptr={self._data_ptr}, data_len={self._data_len})"
        )


def _checked(name: str, spec: TensorSpec) -> Written:
    count = 1
    for size in spec.shape:
        count *= size
    bits = DTYPES[spec.dtype].bits * count
    if bits != spec.data_len * 8:
        raise SafetensorError("Error while serializing: invalid shape, data type, or offset for tensor")
    return Written(name, spec.dtype, tuple(spec.shape), spec.data_ptr if spec.data_len else 0, spec.data_len)


def _given(tensor_dict: Any, metadata: Any) -> "tuple[dict[str, TensorSpec], Optional[dict[str, str]]]":
    texts: dict[Any, Any] = dict(metadata or {})
    if not is_mapping(tensor_dict):
        raise TypeError(f"argument 'tensor_dict': '{type(tensor_dict).__name__}' object cannot be converted to 'Mapping'")
    for name, spec in tensor_dict.items():
        if not isinstance(name, str) or not isinstance(spec, TensorSpec):
            raise TypeError(f"argument 'tensor_dict': '{type(spec).__name__}' object is not an instance of 'TensorSpec'")
    for key, value in texts.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError("argument 'metadata': keys and values are str")
    return dict(tensor_dict), None if metadata is None else texts


def serialize_file(
    tensor_dict: Mapping[str, TensorSpec], filename: Union[str, "os.PathLike[str]"], metadata: Optional[Mapping[str, str]] = None
) -> None:
    """Write tensors to a file or a URI. It appears whole, or not at all."""
    tensors, texts = _given(tensor_dict, metadata)
    with translated("Error while serializing"):
        flags = _native.REPLACE | _native.BORROW | _native.BARE_HEAD
        output = Output(os.fspath(filename), "safetensors", "", texts, None, 0, flags, None, None)
        for name, spec in tensors.items():
            output.write(_checked(name, spec))
        output.finish()


def _scratch() -> Optional[str]:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def serialize(tensor_dict: Mapping[str, TensorSpec], metadata: Optional[Mapping[str, str]] = None) -> bytes:
    """The same as bytes."""
    with tempfile.TemporaryDirectory(prefix="sluice-", dir=_scratch()) as place:
        path = os.path.join(place, "model.safetensors")
        serialize_file(tensor_dict, path, metadata)
        with open(path, "rb") as file:
            return file.read()


@contextmanager
def as_file(data: Any) -> Generator[str, None, None]:
    """Bytes under a path, in memory."""
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeError(f"argument 'bytes': '{type(data).__name__}' object cannot be converted to 'bytes'")
    fd = os.memfd_create("sluice", os.MFD_CLOEXEC)
    try:
        left = memoryview(cast(bytes, data)).cast("B")
        while left:
            left = left[os.write(fd, left):]
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def deserialize(bytes: Any) -> "list[tuple[str, dict[str, Any]]]":
    """(name, {"shape", "dtype", "data"}) of every tensor in bytes of a file."""
    with translated("Error while deserializing"), as_file(bytes) as path:
        source = Source(path)
        try:
            entries = sorted(source.entries(), key=lambda entry: entry.offset)
            found = [(entry, bytearray(entry.nbytes)) for entry in entries if not entry.is_file]
            source.read([Read(entry.number, None, _address(data), entry.nbytes) for entry, data in found if entry.nbytes])
        finally:
            source.close()
    return [(entry.name, {"shape": list(entry.shape), "dtype": entry.dtype, "data": data}) for entry, data in found]


def _address(data: bytearray) -> int:
    import ctypes

    return ctypes.addressof(ctypes.c_uint8.from_buffer(data))
