"""DLPack capsules, made by libsluice: what a consumer (torch, NumPy, JAX) takes a tensor from.

A capsule owns the model or deposit that its memory is of, and gives it back from whatever thread and whenever its consumer does, also
when this interpreter has ended: nothing of it is Python's.
"""
from __future__ import annotations

import ctypes
from ctypes import byref, c_int64, c_void_p, cast, sizeof
from typing import Any, Optional, Protocol

from ._error import SluiceError
from ._library import (
    DLPACK_READ_ONLY, DLPACK_VERSIONED, DLPack, Error, PythonFunctions, python_capsule,
)

CPU, CUDA = 1, 2  # kDLCPU, kDLCUDA

class Owner(Protocol):
    """Whose the memory is: one of the three."""

    @property
    def model(self) -> Optional[c_void_p]:
        """struct sluice_model"""

    @property
    def deposit(self) -> Optional[c_void_p]:
        """struct sluice_deposit"""

    @property
    def memory(self) -> Optional[c_void_p]:
        """struct sluice_memory"""


_FUNCTIONS = PythonFunctions(*(
    cast(getattr(ctypes.pythonapi, name), c_void_p).value
    for name in ("PyCapsule_New", "PyCapsule_IsValid", "PyCapsule_GetPointer")
))


def capsule(
    owner: Owner, address: int, device: tuple[int, int], shape: tuple[int, ...],
    strides: tuple[int, ...], dtype: tuple[int, int, int], read_only: bool, version: Any,
) -> Any:
    """The owner is kept alive; device is (type, number); strides are in elements; version is the consumer's max_version."""
    rank = len(shape)
    flags = (DLPACK_READ_ONLY if read_only else 0) | (DLPACK_VERSIONED if version is not None and version[0] >= 1 else 0)
    tensor = DLPack(
        sizeof(DLPack), owner.model, owner.deposit, address, *device, *dtype, rank, flags,
        (c_int64 * max(rank, 1))(*shape), (c_int64 * max(rank, 1))(*strides), owner.memory,
    )
    error = Error()
    try:
        return python_capsule(byref(_FUNCTIONS), byref(tensor), byref(error))
    except ValueError:  # NULL without an error of Python's: ctypes says "PyObject is NULL"
        raise SluiceError(error) from None
