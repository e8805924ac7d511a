"""safetensors.flax, on sluice."""
from __future__ import annotations

import os
from typing import Any, Optional, Union

from .._dtypes import library
from . import numpy as _numpy
from . import safe_open

__all__ = ["load", "load_file", "save", "save_file"]


def _arrays(tensors: dict[str, Any]) -> dict[str, Any]:
    numpy = library("numpy")
    return {name: numpy.asarray(array) for name, array in tensors.items()}


def save(tensors: dict[str, Any], metadata: Optional[dict[str, str]] = None) -> bytes:
    """JAX's arrays as bytes of a file."""
    return _numpy.save(_arrays(tensors), metadata)


def save_file(
    tensors: dict[str, Any], filename: Union[str, "os.PathLike[str]"], metadata: Optional[dict[str, str]] = None
) -> None:
    """Write JAX's arrays to a file or a URI."""
    _numpy.save_file(_arrays(tensors), filename, metadata)


def load(data: bytes) -> dict[str, Any]:
    """Every tensor in bytes of a file."""
    jnp = library("jax.numpy")
    return {name: jnp.array(array) for name, array in _numpy.load(data).items()}


def load_file(filename: Union[str, "os.PathLike[str]"], *, backend: str = "mmap") -> dict[str, Any]:
    """Every tensor of a file or a URI."""
    with safe_open(filename, framework="flax", backend=backend) as file:
        found: dict[str, Any] = file.get_tensors()
        return found
