"""What the package tensorizer has, on sluice: change `tensorizer` to `sluice.tensorizer` in an import. Where it differs is told in
docs/python.md."""
from . import serialization, stream_io, torch_compat, utils
from .serialization import (
    CryptographyError, DecryptionParams, EncryptionParams, FilterFuncType, HashMismatchError, TensorDeserializer, TensorHash,
    TensorSerializer, TensorType,
)

__version__ = "2.12.1"  # of tensorizer, whose calls these are

__all__ = [
    "CryptographyError", "DecryptionParams", "EncryptionParams", "FilterFuncType", "HashMismatchError", "TensorDeserializer",
    "TensorHash", "TensorSerializer", "TensorType", "serialization", "stream_io", "torch_compat", "utils",
]
