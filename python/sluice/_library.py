"""libsluice through ctypes: the structs and functions of sluice.h, nothing more."""
from __future__ import annotations

import ctypes
import os
from ctypes import (
    POINTER, Structure, byref, c_char, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint8, c_uint16, c_uint32, c_uint64,
    c_void_p, sizeof,
)


class Error(Structure):
    _fields_ = [("kind", c_int32), ("code", c_char * 32), ("message", c_char * 732)]


class AttachOptions(Structure):
    _fields_ = [
        ("size", c_size_t), ("model", c_char_p), ("socket", c_char_p), ("key", c_char_p), ("device", c_char_p),
        ("client", c_char_p), ("flags", c_uint32), ("timeout_ms", c_int32), ("cancel_fd", c_int32),
    ]


class ModelInfo(Structure):
    _fields_ = [
        ("size", c_size_t), ("name", c_char_p), ("key", c_char_p), ("identity", c_uint8 * 32),
        ("tensor_count", c_uint64), ("ready_count", c_uint64), ("bytes", c_uint64), ("slab_count", c_uint64),
        ("state", c_int32), ("device", c_int32), ("meta_count", c_uint64), ("unpinned", c_char_p),
    ]


class Meta(Structure):
    _fields_ = [("size", c_size_t), ("key", c_void_p), ("value", c_void_p), ("key_bytes", c_uint64), ("value_bytes", c_uint64)]


class Tensor(Structure):
    _fields_ = [
        ("size", c_size_t), ("number", c_uint64), ("name", c_void_p), ("name_bytes", c_uint64), ("dtype", c_char_p),
        ("shape", POINTER(c_uint64)), ("strides", POINTER(c_uint64)), ("rank", c_uint32), ("kind", c_uint32),
        ("dlpack_code", c_uint8), ("dlpack_bits", c_uint8), ("dlpack_lanes", c_uint16),
        ("block_elements", c_uint32), ("block_bytes", c_uint32), ("slab", c_uint32), ("offset", c_uint64),
        ("bytes", c_uint64), ("data", c_void_p), ("device", c_int32), ("file", c_char_p), ("object", c_uint32),
        ("role", c_uint32), ("module", c_uint32), ("path_count", c_uint32), ("encrypted", c_int32), ("meta", c_int32),
        ("refused", c_int32), ("refused_why", c_char_p),
    ]


class DepositOptions(Structure):
    _fields_ = [
        ("size", c_size_t), ("model", c_char_p), ("key", c_char_p), ("socket", c_char_p), ("device", c_char_p),
        ("client", c_char_p), ("identity", c_uint8 * 32), ("bytes", c_uint64), ("timeout_ms", c_int32),
        ("cancel_fd", c_int32),
    ]


class DLPack(Structure):
    _fields_ = [
        ("size", c_size_t), ("model", c_void_p), ("deposit", c_void_p), ("data", c_void_p), ("device_type", c_int32),
        ("device_id", c_int32), ("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16), ("rank", c_uint32),
        ("flags", c_uint32), ("shape", POINTER(c_int64)), ("strides", POINTER(c_int64)), ("memory", c_void_p),
    ]


class PythonFunctions(Structure):
    _fields_ = [("capsule_new", c_void_p), ("capsule_is_valid", c_void_p), ("capsule_get_pointer", c_void_p)]


DLPACK_READ_ONLY, DLPACK_VERSIONED = 1, 2
PRESENT_ONLY, PRIVATE, KEEP_FDS, REGISTER = 1, 2, 4, 8
KIND_TENSOR, KIND_FILE = 1, 2

# The last one needs libc alone, and only attaches to the pool: it serves where what the others need is not there.
NAMES = ("libsluice.so.0", "libsluice.so", "libsluice-attach.so.0")


def _open() -> ctypes.CDLL:
    """$SLUICE_LIBRARY, else beside this file, else where the system looks."""
    given = os.environ.get("SLUICE_LIBRARY")
    here = os.path.dirname(os.path.abspath(__file__))
    beside = [path for path in (os.path.join(here, name) for name in NAMES) if os.path.exists(path)]
    reasons: list[str] = []
    for name in [given] if given else beside or NAMES:
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            reasons.append(str(error))
    if given:
        raise ImportError(f"cannot open the library that SLUICE_LIBRARY names: {reasons[0]}")
    if beside:
        raise ImportError(f"cannot open the library of this package: {'; '.join(reasons)}")
    raise ImportError(
        "libsluice.so.0 is not found: install it, or set SLUICE_LIBRARY to its path; in a checkout run scripts/build before `pip install ./python`"
    )


library = _open()


def _declare(name: str, result: object, *arguments: object) -> None:
    function = getattr(library, name)
    function.restype, function.argtypes = result, arguments


_declare("sluice_version", c_char_p)
_declare("sluice_attach", c_int, POINTER(AttachOptions), POINTER(c_void_p), POINTER(Error))
_declare("sluice_detach", None, c_void_p)
_declare("sluice_model_info", None, c_void_p, POINTER(ModelInfo))
_declare("sluice_tensor_at", c_int, c_void_p, c_uint64, POINTER(Tensor), POINTER(Error))
_declare("sluice_meta_at", c_int, c_void_p, c_uint64, POINTER(Meta), POINTER(Error))
_declare("sluice_ready", c_int, c_void_p, c_uint64)
_declare("sluice_wait", c_int, c_void_p, c_uint64, c_int, c_int, POINTER(Error))
_declare("sluice_wait_read", c_int, c_void_p, c_uint64, c_int, c_int, POINTER(Error))
_declare("sluice_wait_all", c_int, c_void_p, c_int, c_int, POINTER(Error))
_declare("sluice_copy", c_int, c_void_p, c_uint64, c_void_p, c_uint64, c_void_p, POINTER(Error))
_declare("sluice_deposit_begin", c_int, POINTER(DepositOptions), POINTER(c_void_p), POINTER(Error))
_declare("sluice_deposit_add", c_int, c_void_p, c_char_p, c_char_p, c_uint32, POINTER(c_uint64), POINTER(c_uint64),
         c_uint64, POINTER(c_void_p), POINTER(Error))
_declare("sluice_deposit_device", c_int, c_void_p)
_declare("sluice_deposit_commit", c_int, c_void_p, POINTER(Error))
_declare("sluice_deposit_abort", None, c_void_p)
_declare("sluice_deposit_end", None, c_void_p)

# The interpreter stays locked in this one, since it makes an object.
python_capsule = ctypes.PyDLL(library._name).sluice_python_capsule
python_capsule.restype, python_capsule.argtypes = ctypes.py_object, [POINTER(PythonFunctions), POINTER(DLPack), POINTER(Error)]

__all__ = ["library", "byref", "sizeof", "c_void_p", "c_uint64"]
