"""safetensors.numpy, on sluice."""
from __future__ import annotations

import os
from typing import Any, Optional, Union

from .._dtypes import library, numpy_dtype
from .._write import check_numpy
from . import TensorSpec, deserialize, safe_open, serialize, serialize_file

__all__ = ["load", "load_file", "save", "save_file"]


def _specs(tensors: dict[str, Any], kept: list[Any]) -> dict[str, TensorSpec]:
    """kept holds what was swapped to the order that files have."""
    numpy = library("numpy")
    found: dict[str, TensorSpec] = {}
    for name, array in tensors.items():
        check_numpy(array)
        little = array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
        if not little.flags.c_contiguous:
            little = numpy.ascontiguousarray(little).reshape(array.shape)
        kept.append(little)
        found[name] = TensorSpec(
            dtype=little.dtype.name, shape=list(little.shape), data_ptr=little.ctypes.data, data_len=little.nbytes
        )
    return found


def save(tensor_dict: dict[str, Any], metadata: Optional[dict[str, str]] = None) -> bytes:
    """Arrays as bytes of a file."""
    kept: list[Any] = []
    return serialize(_specs(tensor_dict, kept), metadata=metadata)


def save_file(
    tensor_dict: dict[str, Any], filename: Union[str, "os.PathLike[str]"], metadata: Optional[dict[str, str]] = None
) -> None:
    """Write arrays to a file or a URI."""
    kept: list[Any] = []
    serialize_file(_specs(tensor_dict, kept), filename, metadata=metadata)


def load(data: bytes) -> dict[str, Any]:
    """Every tensor in bytes of a file."""
    numpy = library("numpy")
    return {
        name: numpy.frombuffer(view["data"], dtype=numpy_dtype(view["dtype"])).reshape(view["shape"])
        for name, view in deserialize(data)
    }


def load_file(filename: Union[str, "os.PathLike[str]"], *, backend: str = "mmap") -> dict[str, Any]:
    """Every tensor of a file or a URI."""
    with safe_open(filename, framework="np", backend=backend) as file:
        found: dict[str, Any] = file.get_tensors()
        return found
