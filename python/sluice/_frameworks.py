"""Memory that tensors are read into, as whoever uses them wants it: torch, NumPy, JAX, CuPy. None is imported unless it is used."""
from __future__ import annotations

import importlib.util
import math
import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from ctypes import c_uint8
from typing import Any, NamedTuple, Optional

from . import _dtypes
from ._dtypes import library
from ._kinds import number
from ._native import gpu_number
from ._options import Framework

_LINE_BYTES = 64  # of a processor's cache
_NAMES = {
    "torch": "torch", "pt": "torch", "pytorch": "torch", "numpy": "numpy", "np": "numpy", "jax": "jax", "flax": "jax",
    "cupy": "cupy",
}


def framework_name(framework: Optional[str]) -> Optional[str]:
    """As this module calls it; None is sluice's own Tensor."""
    if framework is None:
        return None
    try:
        return _NAMES[framework]
    except (KeyError, TypeError):
        raise ValueError(f"no framework {framework!r}: torch, numpy, jax or cupy") from None


def installed() -> Framework:
    """torch, else NumPy, as far as they are installed."""
    choice: tuple[Framework, ...] = ("torch", "numpy")
    for name in choice:
        if name in sys.modules or importlib.util.find_spec(name) is not None:
            return name
    raise ImportError('there is neither torch nor NumPy to make arrays of: install one, or use sluice.open(uri)[name].memoryview()')


def device_name(device: Any, framework: Optional[str]) -> str:
    """"cpu", "cuda:1": as torch and CuPy say it; a device of torch's may be anything that it has. A UUID becomes a number."""
    if isinstance(device, bool) or not (isinstance(device, (str, int)) or (hasattr(device, "type") and hasattr(device, "index"))):
        raise TypeError(f"device is \"cpu\", \"cuda:0\", a GPU's number or a torch.device, not {device!r}")
    name = f"cuda:{number(device, 'device', 1 << 31)}" if isinstance(device, int) else str(device)
    if name.startswith(("GPU-", "MIG-")):
        name = f"cuda:{gpu_number(name)}"
    if framework != "torch" and name != "cpu" and not (framework in ("cupy", "jax") and name.split(":")[0] in ("cuda", "gpu")):
        raise ValueError(f"tensors of {framework or 'sluice'} cannot be on device {name!r}: framework=\"torch\" can")
    return name


class Room(NamedTuple):
    """Where a tensor is read to; result() is called when it has been."""

    address: int
    result: Callable[[], Any]


def stored_shape(dtype: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """torch keeps two elements of four bits in one."""
    if dtype != "F4":
        return shape
    if not shape or shape[-1] % 2:
        raise TypeError(f"torch keeps pairs of F4, so that the last dimension must be even: {list(shape)}")
    return shape[:-1] + (shape[-1] // 2,)


def aligned_array(kind: Any, shape: tuple[int, ...]) -> Any:
    """A NumPy array to read into, which begins with a cache line. malloc() puts a large one 16 bytes behind the begin of a page, and
    AMD's Zen 3 and 4 copy a third as fast to a place up to 31 bytes behind the source's place in its page (glibc's bug 30994)."""
    numpy = library("numpy")
    kind = numpy.dtype(kind)
    count = math.prod(shape)
    if not count:
        return numpy.empty(shape, kind)
    memory = numpy.empty(count * kind.itemsize + _LINE_BYTES - 1, numpy.uint8)
    begin = -memory.ctypes.data % _LINE_BYTES
    return memory[begin : begin + count * kind.itemsize].view(kind).reshape(shape)


def _numpy_array(dtype: str, shape: tuple[int, ...]) -> Any:
    return aligned_array(_dtypes.numpy_dtype(dtype), shape)


def gpu_of(framework: Optional[str], device: str) -> Optional[str]:
    """The GPU whose memory tensors can be read into, as libsluice calls it: torch's alone. None: they are read on the host."""
    if framework != "torch" or device.partition(":")[0] != "cuda" or not library("torch").cuda.is_available():
        return None
    return device if ":" in device else f"cuda:{library('torch').cuda.current_device()}"


def as_here(device: str) -> Callable[[], AbstractContextManager[Any]]:
    """For a thread that works for this one: the GPU that torch uses here, and the stream, which each thread has of its own."""
    torch: Any = sys.modules.get("torch")
    if torch is None or device.partition(":")[0] != "cuda" or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return nullcontext
    stream = torch.cuda.current_stream(device if ":" in device else None)
    return lambda: torch.cuda.stream(stream)


def through_host(gpu: str, error: Exception) -> None:
    """Say why tensors do not go straight to a GPU."""
    warnings.warn(f"tensors go to {gpu} through memory of the host: {error}", RuntimeWarning, stacklevel=4)


def gpu_room(gpu: str, dtype: str, shape: tuple[int, ...]) -> Room:
    """Memory of a GPU that torch lends; await_gpu() before it is read into."""
    torch = library("torch")
    tensor = torch.empty(stored_shape(dtype, shape), dtype=_dtypes.torch_dtype(dtype), device=gpu)
    return Room(tensor.data_ptr(), lambda: tensor)


def await_gpu(gpu: str) -> None:
    """What torch lent may have been another tensor's, which work that is on its way still reads."""
    library("torch").cuda.current_stream(gpu).synchronize()


def _reach(device: str) -> None:
    """Fail before anything is read if torch has no such device."""
    torch = library("torch")
    try:
        torch.empty(0, device=device)
    except (AssertionError, RuntimeError) as error:
        if device.partition(":")[0] != "cuda" or torch.cuda.is_available():
            raise
        raise type(error)(
            f"tensors cannot be on {device!r}, since this torch finds no GPU: open the model with device=\"cpu\" ({error})"
        ) from None


def _torch_room(dtype: str, shape: tuple[int, ...], device: str) -> Room:
    torch = library("torch")
    if device != "cpu":
        _reach(device)
    tensor = torch.empty(stored_shape(dtype, shape), dtype=_dtypes.torch_dtype(dtype), device="cpu")
    return Room(tensor.data_ptr(), (lambda: tensor) if device == "cpu" else (lambda: tensor.to(device)))


def _numpy_room(dtype: str, shape: tuple[int, ...], device: str) -> Room:
    array = _numpy_array(dtype, shape)
    return Room(array.ctypes.data if array.nbytes else 0, lambda: array)


def _jax_room(dtype: str, shape: tuple[int, ...], device: str) -> Room:
    array, jax = _numpy_array(dtype, shape), library("jax")
    platform, _, number = device.replace("cuda", "gpu").partition(":")
    return Room(
        array.ctypes.data if array.nbytes else 0, lambda: jax.device_put(array, jax.devices(platform)[int(number or 0)])
    )


def _cupy_room(dtype: str, shape: tuple[int, ...], device: str) -> Room:
    array, cupy = _numpy_array(dtype, shape), library("cupy")

    def result() -> Any:
        with cupy.cuda.Device(int(device.partition(":")[2] or 0)):
            return cupy.asarray(array)

    return Room(array.ctypes.data if array.nbytes else 0, result)


def knows(framework: str, dtype: str) -> bool:
    """Has torch, or NumPy by itself, this type?"""
    row = _dtypes.find(dtype)
    return row is not None and bool(row.numpy if framework == "numpy" else row.bits >= 8 and hasattr(library("torch"), row.torch))


def little(framework: str, dtype: str, shape: tuple[int, ...], nbytes: int) -> tuple[Any, Any]:
    """(array, its memory as a buffer), of what is so little that it does not matter how it lies in its lines."""
    if framework == "numpy":
        array = library("numpy").empty(shape, _dtypes.DTYPES[dtype].numpy)
        return array, array
    tensor = library("torch").empty(shape, dtype=_dtypes.torch_dtype(dtype), device="cpu")
    return tensor, (c_uint8 * nbytes).from_address(tensor.data_ptr())


_ROOMS = {"torch": _torch_room, "numpy": _numpy_room, "jax": _jax_room, "cupy": _cupy_room}


def room(framework: str, dtype: str, shape: tuple[int, ...], device: str) -> Room:
    """For a tensor of this type and shape. TypeError: the framework has no such type."""
    return _ROOMS[framework](dtype, shape, device)


def of_memory(framework: str, tensor: Any, device: str) -> Any:
    """A tensor whose bytes are in memory already, without a copy where the framework can."""
    if framework == "torch":
        if device != "cpu":
            _reach(device)
        found = tensor.torch()
        return found if device == "cpu" else found.to(device)
    array = tensor.numpy()
    if framework == "numpy":
        return array
    into = room(framework, tensor.dtype, tensor.shape, device)
    if tensor.nbytes:
        library("ctypes").memmove(into.address, array.ctypes.data, tensor.nbytes)
    return into.result()


def turned(framework: str, array: Any, flips: tuple[int, ...], shape: tuple[int, ...]) -> Any:
    """What was read of a slice, as it was asked for."""
    if flips:
        array = array.flip(flips) if framework == "torch" else library("numpy").flip(array, flips)
    return array.reshape(shape)


def meta_tensor(dtype: str, shape: tuple[int, ...]) -> Any:
    """A shape without data."""
    return library("torch").empty(shape, dtype=_dtypes.torch_dtype(dtype), device="meta")


def _of_numpy(dtype: Any) -> Any:
    try:
        return library("numpy").dtype(dtype)
    except (TypeError, ValueError):
        raise TypeError(f"dtype is a framework's type or a name such as \"bf16\", not {dtype!r}") from None


def dtype_of(framework: str, dtype: Any) -> Any:
    """A type of the framework, by whatever a caller says: its own, another framework's, or a name such as "bf16", "float16", "F32"."""
    if dtype is None or (framework == "torch" and isinstance(dtype, library("torch").dtype)):
        return dtype
    row = _dtypes.named(dtype) if isinstance(dtype, str) else None
    if row is None:
        torch = sys.modules.get("torch")
        of_torch = torch is not None and isinstance(dtype, torch.dtype)
        row = _dtypes.of_torch(dtype) if of_torch else _dtypes.of_numpy(_of_numpy(dtype))
    return _dtypes.torch_dtype(row.name) if framework == "torch" else _dtypes.numpy_dtype(row.name)


def cast(framework: str, array: Any, dtype: Any) -> Any:
    """To another element type of its framework; a float does not become a whole number, nor the other way round."""
    if dtype is None:
        return array
    if framework == "torch":
        floating = array.is_floating_point() or array.is_complex()
        return array.to(dtype) if floating == (dtype.is_floating_point or dtype.is_complex) else array
    numpy = library("numpy")
    wanted = numpy.dtype(dtype)
    whole = ("b", "i", "u")
    return array.astype(wanted) if (array.dtype.kind in whole) == (wanted.kind in whole) else array
