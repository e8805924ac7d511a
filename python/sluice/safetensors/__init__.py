"""What the package safetensors has, on sluice: change `safetensors` to `sluice.safetensors` in an import, and URIs are good where paths
were. Where it differs is told in docs/python.md."""
from ._error import SafetensorError
from ._open import PySafeSlice, _safe_open_handle, safe_open  # pyright: ignore[reportPrivateUsage]
from ._serialize import TensorSpec, deserialize, serialize, serialize_file

__version__ = "0.8.0"  # of safetensors, whose calls these are

__all__ = [
    "PySafeSlice", "SafetensorError", "TensorSpec", "_safe_open_handle", "deserialize", "safe_open", "serialize", "serialize_file",
]
