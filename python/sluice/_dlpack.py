"""DLPack capsules by ctypes alone: what a consumer (torch, NumPy, JAX) takes a tensor from.

A capsule's memory, and the object that keeps the tensor's own memory alive, stay until the consumer calls the deleter,
from whatever thread, or until a capsule that nobody took is dropped.
"""
from __future__ import annotations

import ctypes
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p, py_object
from typing import Any

CPU, CUDA = 1, 2  # kDLCPU, kDLCUDA
READ_ONLY = 1


class Device(Structure):
    _fields_ = [("type", c_int32), ("id", c_int32)]


class DataType(Structure):
    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class DLTensor(Structure):
    _fields_ = [
        ("data", c_void_p), ("device", Device), ("ndim", c_int32), ("dtype", DataType), ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)), ("byte_offset", c_uint64),
    ]


class Managed(Structure):
    """Before version 1.0."""


Deleter = CFUNCTYPE(None, c_void_p)
Managed._fields_ = [("tensor", DLTensor), ("context", c_void_p), ("deleter", Deleter)]


class ManagedVersioned(Structure):
    _fields_ = [
        ("major", c_uint32), ("minor", c_uint32), ("context", c_void_p), ("deleter", Deleter), ("flags", c_uint64),
        ("tensor", DLTensor),
    ]


_alive: dict[int, tuple[Any, ...]] = {}  # by address: what must not be collected yet


@Deleter  # type: ignore[untyped-decorator]
def _delete(address: int) -> None:
    _alive.pop(address, None)


_python = ctypes.PyDLL(None)  # not ctypes.pythonapi: its functions are everybody's, and what types they take too
_new = _python.PyCapsule_New
_new.restype, _new.argtypes = py_object, [c_void_p, c_char_p, c_void_p]
_valid = _python.PyCapsule_IsValid
_valid.restype, _valid.argtypes = ctypes.c_int, [c_void_p, c_char_p]
_pointer = _python.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = c_void_p, [c_void_p, c_char_p]

_OLD, _VERSIONED = b"dltensor", b"dltensor_versioned"


@CFUNCTYPE(None, c_void_p)  # type: ignore[untyped-decorator]
def _drop(capsule: int) -> None:
    """A capsule that was consumed has another name, and its consumer calls the deleter."""
    for name in (_OLD, _VERSIONED):
        if _valid(capsule, name):
            _alive.pop(_pointer(capsule, name), None)


def capsule(
    owner: object, address: int, device: tuple[int, int], shape: tuple[int, ...], strides: tuple[int, ...],
    dtype: tuple[int, int, int], read_only: bool, version: Any,
) -> Any:
    """owner is kept alive; device is (type, number); strides are in elements; version is the consumer's max_version."""
    rank = len(shape)
    shape_array = (c_int64 * max(rank, 1))(*shape)
    strides_array = (c_int64 * max(rank, 1))(*strides)
    versioned = version is not None and version[0] >= 1
    managed = ManagedVersioned() if versioned else Managed()
    managed.deleter = _delete
    managed.tensor = DLTensor(address, Device(*device), rank, DataType(*dtype), shape_array, strides_array, 0)
    if versioned:
        managed.major, managed.minor = 1, 0
        managed.flags = READ_ONLY if read_only else 0
    at = ctypes.addressof(managed)
    _alive[at] = (managed, shape_array, strides_array, owner)
    return _new(at, _VERSIONED if versioned else _OLD, ctypes.cast(_drop, c_void_p))
