"""The structs and functions of sluice.h that open, read, write and change models; _library.py has those of the pool."""
from __future__ import annotations

from ctypes import (
    CFUNCTYPE, POINTER, Structure, c_char_p, c_int, c_int32, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p,
)
from typing import Any

from ._error import SluiceError
from ._library import Error, Meta, Tensor, library

PROGRESS = CFUNCTYPE(c_int, c_void_p, c_uint64, c_uint64)
DONE = CFUNCTYPE(c_int, c_void_p, c_uint64)


class Memory(Structure):
    _fields_ = [("data", c_void_p), ("bytes", c_uint64)]


class Key(Structure):
    _fields_ = [
        ("size", c_size_t), ("key", c_char_p), ("passphrase", c_char_p), ("passphrase_bytes", c_uint64), ("opslimit", c_uint64),
        ("memlimit", c_uint64), ("salt", c_char_p),
    ]


class OpenOptions(Structure):
    _fields_ = [
        ("size", c_size_t), ("spec", c_char_p), ("key", POINTER(Key)), ("verify", c_uint32), ("flags", c_uint32),
        ("timeout_ms", c_int32), ("cancel_fd", c_int32), ("progress", PROGRESS), ("arg", c_void_p),
    ]


class SourceInfo(Structure):
    _fields_ = [
        ("size", c_size_t), ("uri", c_char_p), ("format", c_char_p), ("tensor_count", c_uint64), ("meta_count", c_uint64),
        ("object_count", c_uint64), ("bytes", c_uint64), ("identity", c_uint8 * 32), ("format_version", c_uint32),
        ("encrypted", c_int32), ("versioned", c_int32), ("requests", c_uint64), ("bytes_fetched", c_uint64), ("value_count", c_uint64),
    ]


class Value(Structure):
    _fields_ = [
        ("size", c_size_t), ("key", c_char_p), ("type", c_uint32), ("element_type", c_uint32), ("count", c_uint64), ("bytes", c_uint64),
        ("data", c_void_p),
    ]


class Hash(Structure):
    _fields_ = [
        ("size", c_size_t), ("kind", c_char_p), ("value", c_void_p), ("value_bytes", c_uint32), ("prefix", c_void_p),
        ("prefix_bytes", c_uint64),
    ]


class PathPart(Structure):
    _fields_ = [("size", c_size_t), ("text", c_void_p), ("text_bytes", c_uint64), ("index", c_uint64)]


class Range(Structure):
    _fields_ = [("start", c_uint64), ("stop", c_uint64), ("step", c_uint64)]


class Read(Structure):
    _fields_ = [("size", c_size_t), ("number", c_uint64), ("slice", POINTER(Range)), ("to", c_void_p), ("bytes", c_uint64)]


class ReadOptions(Structure):
    _fields_ = [
        ("size", c_size_t), ("timeout_ms", c_int32), ("cancel_fd", c_int32), ("progress", PROGRESS), ("done", DONE),
        ("arg", c_void_p), ("device", c_char_p),
    ]


class CreateOptions(Structure):
    _fields_ = [
        ("size", c_size_t), ("format", c_char_p), ("spec", c_char_p), ("metadata", POINTER(Meta)), ("metadata_count", c_uint64),
        ("key", POINTER(Key)), ("shard_bytes", c_uint64), ("align", c_uint64), ("flags", c_uint32), ("timeout_ms", c_int32),
        ("cancel_fd", c_int32), ("progress", PROGRESS), ("arg", c_void_p),
    ]


class EditOptions(Structure):
    _fields_ = [("size", c_size_t), ("flags", c_uint32)]


_DECLARED: dict[str, tuple[Any, list[Any]]] = {
    "sluice_memory_new": (c_int, [c_uint64, POINTER(POINTER(Memory)), POINTER(Error)]),
    "sluice_unmap": (None, [c_void_p]),
    "sluice_key_derive": (c_int, [POINTER(Key), c_void_p, POINTER(Error)]),
    "sluice_open": (c_int, [c_char_p, POINTER(OpenOptions), POINTER(c_void_p), POINTER(Error)]),
    "sluice_close": (None, [c_void_p]),
    "sluice_source_forget": (None, [c_void_p]),
    "sluice_cancel": (None, [c_void_p]),
    "sluice_device": (c_int, [c_char_p, POINTER(c_int32), POINTER(Error)]),
    "sluice_source_info": (None, [c_void_p, POINTER(SourceInfo)]),
    "sluice_source_tensor": (c_int, [c_void_p, c_uint64, POINTER(Tensor), POINTER(Error)]),
    "sluice_source_find": (c_int, [c_void_p, c_char_p, c_uint64, POINTER(Tensor), POINTER(Error)]),
    "sluice_source_value": (c_int, [c_void_p, c_uint64, POINTER(Value), POINTER(Error)]),
    "sluice_source_value_read": (c_int, [c_void_p, c_uint64, c_void_p, c_int, POINTER(Error)]),
    "sluice_source_hash": (c_int, [c_void_p, c_uint64, c_uint32, POINTER(Hash), POINTER(Error)]),
    "sluice_source_path": (c_int, [c_void_p, c_uint64, c_uint32, POINTER(PathPart), POINTER(Error)]),
    "sluice_slice": (c_int, [c_void_p, c_uint64, POINTER(Range), POINTER(c_uint64), POINTER(c_uint64), POINTER(Error)]),
    "sluice_read": (c_int, [c_void_p, POINTER(Read), c_size_t, POINTER(ReadOptions), POINTER(Error)]),
    "sluice_map": (c_int, [c_void_p, c_uint64, POINTER(ReadOptions), POINTER(POINTER(Memory)), POINTER(Error)]),
    "sluice_pull": (c_int, [c_char_p, c_char_p, POINTER(OpenOptions), POINTER(Error)]),
    "sluice_waits_for": (c_uint64, [c_char_p, c_size_t]),
    "sluice_create": (c_int, [c_char_p, POINTER(CreateOptions), POINTER(c_void_p), POINTER(Error)]),
    "sluice_write": (c_int, [c_void_p, POINTER(Tensor), POINTER(Error)]),
    "sluice_write_path": (c_int, [c_void_p, POINTER(Tensor), POINTER(PathPart), c_uint32, POINTER(Error)]),
    "sluice_finish": (c_int, [c_void_p, POINTER(Error)]),
    "sluice_abandon": (None, [c_void_p]),
    "sluice_edit": (c_int, [c_char_p, POINTER(EditOptions), POINTER(c_void_p), POINTER(Error)]),
    "sluice_replace": (c_int, [c_void_p, POINTER(Tensor), POINTER(Error)]),
    "sluice_append": (c_int, [c_void_p, POINTER(Tensor), POINTER(Error)]),
    "sluice_delete": (c_int, [c_void_p, c_char_p, c_uint64, POINTER(Error)]),
    "sluice_commit": (c_int, [c_void_p, POINTER(Error)]),
    "sluice_edit_abandon": (None, [c_void_p]),
}


def _declare() -> dict[str, Any]:
    """Once and for all, before any thread is inside one of them."""
    found = {name: getattr(library, name) for name in _DECLARED if hasattr(library, name)}
    for name, each in found.items():
        each.restype, each.argtypes = _DECLARED[name]
    return found


_FUNCTIONS = _declare()


def function(name: str) -> Any:
    """One of the library's; libsluice-attach has only those of the pool."""
    try:
        return _FUNCTIONS[name]
    except KeyError:
        raise SluiceError(f"this libsluice has no {name}: it only attaches to the pool", "USAGE") from None


def optional(name: str) -> Any:
    """The same; None where the library has only those of the pool."""
    return _FUNCTIONS.get(name)
