"""tensorizer.utils."""
from __future__ import annotations

import contextvars
import resource
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, NamedTuple, Optional

from .._dtypes import library

__all__ = [
    "CPUMemoryUsage", "GlobalGPUMemoryUsage", "MemoryUsage", "TorchGPUMemoryUsage", "convert_bytes", "get_device", "get_gpu_name",
    "get_mem_usage", "no_init_or_tensor",
]


def convert_bytes(num: float, decimal: bool = True) -> str:
    """"123.4 MB", or "117.7 MiB" where decimal is false."""
    step = 1000.0 if decimal else 1024.0
    units = ("bytes", "KB", "MB", "GB", "TB", "PB") if decimal else ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")
    at = 0
    while num >= step and at < len(units) - 1:
        num /= step
        at += 1
    return f"{num:3.1f} {units[at]}"


def get_device() -> Any:
    """"cuda" if there is one, else "cpu"."""
    torch = library("torch")
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def get_gpu_name() -> str:
    """Of the current GPU; "N/A" without one."""
    torch = library("torch")
    return str(torch.cuda.get_device_name()) if torch.cuda.is_available() else "N/A"


class GlobalGPUMemoryUsage(NamedTuple):
    """Bytes of one GPU, of all processes."""

    total: int
    free: int
    used: int

    @classmethod
    def now(cls, device: Any = None) -> Optional["GlobalGPUMemoryUsage"]:
        """None without a GPU."""
        torch = library("torch")
        if not torch.cuda.is_available():
            return None
        free, total = torch.cuda.mem_get_info(device)
        return cls(total, free, total - free)

    def __str__(self) -> str:
        return f"GPU: (U: {self.used >> 20:,}MiB F: {self.free >> 20:,}MiB T: {self.total >> 20:,}MiB)"


class TorchGPUMemoryUsage(NamedTuple):
    """Bytes of one GPU that torch has."""

    reserved: int
    reserved_max: int
    used: int
    used_max: int

    @classmethod
    def now(cls, device: Any = None) -> Optional["TorchGPUMemoryUsage"]:
        """None without a GPU."""
        torch = library("torch")
        if not torch.cuda.is_available():
            return None
        known = torch.cuda.memory_stats(device)
        names = ("reserved_bytes.all.current", "reserved_bytes.all.peak", "allocated_bytes.all.current", "allocated_bytes.all.peak")
        return cls(*(int(known.get(name, 0)) for name in names))

    def __str__(self) -> str:
        reserved, allocated = (self.reserved, self.reserved_max), (self.used, self.used_max)
        return "TORCH: (R: {:,}MiB/{:,}MiB, A: {:,}MiB/{:,}MiB)".format(*(value >> 20 for value in reserved + allocated))


class CPUMemoryUsage(NamedTuple):
    """Bytes: the most that this process and its children ever had, and what the machine has free."""

    maxrss: int
    free: int

    @classmethod
    def now(cls) -> "CPUMemoryUsage":
        """As it is."""
        most = sum(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        with open("/proc/meminfo") as file:
            rows = dict(line.split(":", 1) for line in file)
        return cls(most << 10, int(rows["MemAvailable"].split()[0]) << 10)

    def __str__(self) -> str:
        return f"CPU: (maxrss: {self.maxrss >> 20:,}MiB F: {self.free >> 20:,}MiB)"


class MemoryUsage(NamedTuple):
    """All of it; None for what is of a GPU where there is none."""

    cpu: CPUMemoryUsage
    gpu: Optional[GlobalGPUMemoryUsage]
    torch: Optional[TorchGPUMemoryUsage]

    @classmethod
    def now(cls, device: Any = None) -> "MemoryUsage":
        """As it is."""
        return cls(CPUMemoryUsage.now(), GlobalGPUMemoryUsage.now(device), TorchGPUMemoryUsage.now(device))

    def __str__(self) -> str:
        return " ".join(str(one) for one in self if one)


def get_mem_usage() -> str:
    """One line on this process's memory, the machine's, and the GPU's: str(MemoryUsage.now())."""
    return str(MemoryUsage.now())


_INSIDE: contextvars.ContextVar[bool] = contextvars.ContextVar("sluice_no_init", default=False)


class _Swap:
    """torch.empty and initialisers, while anybody is inside; who is not gets what was there before."""

    def __init__(self) -> None:
        self._lock, self._users = threading.Lock(), 0
        self._kept: list[tuple[Any, str, Any]] = []

    def _put(self, owner: Any, name: str, made: Callable[[Any], Any]) -> None:
        original = getattr(owner, name)
        self._kept.append((owner, name, original))
        setattr(owner, name, made(original))

    def enter(self) -> None:
        """The first one swaps."""
        torch = library("torch")
        with self._lock:
            self._users += 1
            if self._users > 1:
                return
            for kind in (torch.nn.Linear, torch.nn.Embedding, torch.nn.LayerNorm):
                self._put(kind, "reset_parameters", _unless_inside)
            self._put(torch, "empty", _on_meta_inside)

    def leave(self) -> None:
        """The last one swaps back."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
            for owner, name, original in reversed(self._kept):
                setattr(owner, name, original)
            self._kept.clear()


def _unless_inside(original: Any) -> Any:
    def reset(*arguments: Any, **options: Any) -> Any:
        return None if _INSIDE.get() else original(*arguments, **options)

    return reset


def _on_meta_inside(original: Any) -> Any:
    def empty(*arguments: Any, **options: Any) -> Any:
        return original(*arguments, **({**options, "device": "meta"} if _INSIDE.get() else options))

    return empty


_SWAP = _Swap()


@contextmanager
def _inside() -> Generator[None, None, None]:
    if _INSIDE.get():
        yield
        return
    _SWAP.enter()
    token = _INSIDE.set(True)
    try:
        yield
    finally:
        _INSIDE.reset(token)
        _SWAP.leave()


def no_init_or_tensor(loading_code: Optional[Callable[[], Any]] = None) -> Any:
    """A `with` block, or a function to call, in which modules get no weights: theirs are on the meta device. Other threads and tasks see
    nothing of it."""
    if loading_code is None:
        return _inside()
    if not callable(loading_code):
        raise TypeError(f"no_init_or_tensor() takes a function or nothing, not {type(loading_code).__name__}")
    with _inside():
        return loading_code()
