"""Element types: one table of what each is called by everybody."""
from __future__ import annotations

import importlib
import sys
from typing import Any, NamedTuple, Optional


class Dtype(NamedTuple):
    """An element type; a name that somebody lacks is empty."""

    name: str  # "BF16", as sluice and safetensors call it
    bits: int
    dlpack: tuple[int, int, int]  # DLDataType; bits 0: it has none
    numpy: str  # a typestr; "" where NumPy has none of its own
    ml_dtypes: str  # the name in ml_dtypes, which JAX uses
    torch: str  # the name in torch
    format: str  # the struct code


_ROWS = [
    Dtype("BOOL", 8, (6, 8, 1), "|b1", "", "bool", "?"),
    Dtype("U8", 8, (1, 8, 1), "|u1", "", "uint8", "B"),
    Dtype("I8", 8, (0, 8, 1), "|i1", "", "int8", "b"),
    Dtype("U16", 16, (1, 16, 1), "<u2", "", "uint16", "H"),
    Dtype("I16", 16, (0, 16, 1), "<i2", "", "int16", "h"),
    Dtype("U32", 32, (1, 32, 1), "<u4", "", "uint32", "I"),
    Dtype("I32", 32, (0, 32, 1), "<i4", "", "int32", "i"),
    Dtype("U64", 64, (1, 64, 1), "<u8", "", "uint64", "Q"),
    Dtype("I64", 64, (0, 64, 1), "<i8", "", "int64", "q"),
    Dtype("F16", 16, (2, 16, 1), "<f2", "", "float16", "e"),
    Dtype("BF16", 16, (4, 16, 1), "", "bfloat16", "bfloat16", ""),
    Dtype("F32", 32, (2, 32, 1), "<f4", "", "float32", "f"),
    Dtype("F64", 64, (2, 64, 1), "<f8", "", "float64", "d"),
    Dtype("C32", 32, (5, 32, 1), "", "", "complex32", ""),
    Dtype("C64", 64, (5, 64, 1), "<c8", "", "complex64", ""),
    Dtype("C128", 128, (5, 128, 1), "<c16", "", "complex128", ""),
    Dtype("F8_E4M3", 8, (10, 8, 1), "", "float8_e4m3fn", "float8_e4m3fn", ""),
    Dtype("F8_E5M2", 8, (12, 8, 1), "", "float8_e5m2", "float8_e5m2", ""),
    Dtype("F8_E8M0", 8, (14, 8, 1), "", "float8_e8m0fnu", "float8_e8m0fnu", ""),
    Dtype("F8_E4M3FNUZ", 8, (11, 8, 1), "", "float8_e4m3fnuz", "float8_e4m3fnuz", ""),
    Dtype("F8_E5M2FNUZ", 8, (13, 8, 1), "", "float8_e5m2fnuz", "float8_e5m2fnuz", ""),
    Dtype("F4", 4, (17, 4, 2), "", "", "float4_e2m1fn_x2", ""),
]
# What torch alone has, and .tensors files keep: whole bytes, however many elements it packs into them.
_PACKED = (
    "float4_e2m1fn_x2", "bits16", "bits8", "bits1x8", "bits2x4", "bits4x2",
    *(f"{sign}int{bits}" for sign in ("u", "") for bits in range(1, 8)),
)
_TORCHS = [Dtype(name.upper().replace("FLOAT", "F"), 16 if name == "bits16" else 8, (0, 0, 0), "", "", name, "") for name in _PACKED]
DTYPES = {row.name: row for row in _TORCHS + _ROWS}
_BY_TORCH = {row.torch: row for row in DTYPES.values()}  # pairs of four bits are F4 to who writes them
_BY_NUMPY = {row.ml_dtypes or row.torch: row for row in _ROWS if row.name not in ("F4", "C32")}


_IMPORTED: dict[str, Any] = {}


def library(name: str) -> Any:
    """A framework, imported when it is used."""
    found = _IMPORTED.get(name)
    if found is None or sys.modules.get(name) is not found:
        found = _IMPORTED[name] = importlib.import_module(name)
    return found


def find(name: str) -> Optional[Dtype]:
    """By sluice's name; None of types that only some formats have, such as GGUF's blocks."""
    return DTYPES.get(name)


_SHORT = {"HALF": "F16", "FLOAT": "F32", "DOUBLE": "F64", "FP8": "F8_E4M3"}  # as torch, and whoever serves models, call them


def named(name: str) -> Dtype:
    """By whatever somebody calls it: "bf16", "bfloat16", "torch.float16", "fp32", "F32"."""
    plain = name.rsplit(".", 1)[-1]
    upper = plain.upper()
    row = DTYPES.get(_SHORT.get(upper, upper)) or DTYPES.get(upper.replace("FP", "F", 1)) or _BY_TORCH.get(plain.lower())
    if row is None:
        raise TypeError(f"no dtype is called {name!r}: try 'float32', 'float16' or 'bfloat16'")
    return row


def numpy_dtype(name: str) -> Any:
    """What a NumPy array of it has: ml_dtypes' type where NumPy has none."""
    numpy, row = library("numpy"), DTYPES.get(name)
    if row is not None and row.numpy:
        return numpy.dtype(row.numpy)
    if row is None or not row.ml_dtypes:
        raise TypeError(f"NumPy has no type for {name}: take it as bytes, with memoryview()")
    try:
        return numpy.dtype(getattr(library("ml_dtypes"), row.ml_dtypes))
    except (ImportError, AttributeError):
        raise TypeError(f"NumPy has no type for {name}: install ml_dtypes, or take it as bytes, with memoryview()") from None


def torch_dtype(name: str) -> Any:
    """torch's type of it."""
    row = DTYPES.get(name)
    found = getattr(library("torch"), row.torch, None) if row is not None else None
    if found is None:
        raise TypeError(f"this torch has no {row.torch if row else name}: take it as bytes, with memoryview()")
    return found


def of_torch(dtype: Any) -> Dtype:
    """The type of a torch tensor's elements."""
    row = _BY_TORCH.get(str(dtype).rsplit(".", 1)[-1])
    if row is None:
        raise TypeError(f"sluice has no type for {dtype}")
    return row


def of_numpy(dtype: Any) -> Dtype:
    """The type of a NumPy array's elements, those of ml_dtypes included."""
    row = _BY_NUMPY.get(str(getattr(dtype, "name", dtype)))
    if row is None:
        raise TypeError(f"sluice has no type for NumPy's {dtype}")
    return row


def nbytes(row: Dtype, count: int) -> int:
    """Of so many elements, which end with a whole byte."""
    return (row.bits * count + 7) // 8
