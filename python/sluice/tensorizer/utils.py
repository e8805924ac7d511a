"""tensorizer.utils."""
from __future__ import annotations

import contextvars
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Optional

from .._dtypes import library

__all__ = ["convert_bytes", "get_device", "get_gpu_name", "get_mem_usage", "no_init_or_tensor"]


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


def _host_memory() -> tuple[int, int]:
    """(bytes in all, bytes that are free)"""
    with open("/proc/meminfo") as file:
        rows = dict(line.split(":", 1) for line in file)
    return tuple(int(rows[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))  # type: ignore[return-value]


def get_mem_usage() -> str:
    """One line on this process's memory, the machine's, and the GPU's."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    total, free = _host_memory()
    said = f"CPU: (maxrss: {most >> 20:,}MiB free: {free >> 20:,}MiB)"
    torch = library("torch")
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        said += f" GPU: (used: {(total - free) >> 20:,}MiB free: {free >> 20:,}MiB total: {total >> 20:,}MiB)"
    return said


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
def _inside() -> Iterator[None]:
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
