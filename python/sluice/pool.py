"""The pool of this machine, for people: what is in it, who holds it, and out with it."""
from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import CFUNCTYPE, POINTER, Structure, byref, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p
from typing import Any, NamedTuple, Optional

from ._error import check
from ._kinds import renamed
from ._library import Error, library
from ._native import text

__all__ = ["Holder", "Row", "Stat", "evict", "list", "stat"]

_STATES = ("loading", "ready", "failed", "absent")


class _Row(Structure):
    _fields_ = [
        ("size", c_size_t), ("name", c_char_p), ("key", c_char_p), ("device", c_char_p), ("memory", c_char_p),
        ("error", c_char_p), ("state", c_int32), ("pinned", c_int32), ("tensor_count", c_uint32), ("ready_count", c_uint32),
        ("slab_count", c_uint32), ("lease_count", c_uint32), ("bytes", c_uint64), ("bytes_done", c_uint64),
        ("age_seconds", c_uint64), ("idle_seconds", c_uint64), ("identity", c_uint8 * 32), ("owner", c_int64),
    ]


class _Holder(Structure):
    _fields_ = [
        ("size", c_size_t), ("lease", c_uint64), ("age_ms", c_uint64), ("pid", c_int32), ("uid", c_uint32), ("gid", c_uint32),
        ("name", c_char_p),
    ]


_EACH_ROW = CFUNCTYPE(c_int, c_void_p, POINTER(_Row))
_EACH_HOLDER = CFUNCTYPE(c_int, c_void_p, POINTER(_Holder))


class Row(NamedTuple):
    """One model of the pool."""

    name: str
    key: str  # of a derived model; else ""
    device: str
    memory: str
    error: str  # of a load that failed
    state: str  # "loading", "ready", "failed", "absent"
    pinned: bool
    tensors: int
    tensors_ready: int
    slabs: int
    leases: int
    nbytes: int
    nbytes_done: int
    age_seconds: int
    idle_seconds: Optional[int]  # None: never used
    identity: bytes
    owner: Optional[int]  # of a derived model: the user who deposited it


class Holder(NamedTuple):
    """Who has a lease on a model."""

    lease: int
    age_seconds: float
    pid: int
    uid: int
    gid: int
    name: str


class Stat(NamedTuple):
    """One model, and who holds it."""

    row: Row
    holders: "tuple[Holder, ...]"


def _said(value: Optional[bytes]) -> str:
    return (value or b"").decode("utf-8", "surrogateescape")


def _row(raw: Any) -> Row:
    return Row(
        _said(raw.name), _said(raw.key), _said(raw.device), _said(raw.memory), _said(raw.error),
        _STATES[raw.state] if 0 <= raw.state < len(_STATES) else "absent", bool(raw.pinned), raw.tensor_count, raw.ready_count,
        raw.slab_count, raw.lease_count, raw.bytes, raw.bytes_done, raw.age_seconds,
        None if raw.idle_seconds == 2**64 - 1 else raw.idle_seconds, bytes(raw.identity), None if raw.owner < 0 else raw.owner,
    )


def _holder(raw: Any) -> Holder:
    return Holder(raw.lease, raw.age_ms / 1000, raw.pid, raw.uid, raw.gid, _said(raw.name))


def _given(value: Optional[str], what: str) -> Optional[bytes]:
    return None if value is None else text(value, what)


def _each(kind: Any, into: Any, of: Callable[[Any], Any]) -> Any:
    def one(_: Any, raw: Any) -> int:
        into.append(of(raw.contents))
        return 0

    return kind(one)


def _call(name: str, *arguments: Any) -> None:
    function, error = getattr(library, name), Error()
    function.restype = c_int
    check(function(*arguments, byref(error)), error)


def list(socket: Optional[str] = None) -> "tuple[Row, ...]":
    """Every model of the pool."""
    rows: Any = []
    _call("sluice_list", _given(socket, "socket"), _each(_EACH_ROW, rows, _row), None)
    return tuple(rows)


def stat(model: str, deposit: Optional[str] = None, *, socket: Optional[str] = None, key: Optional[str] = None) -> Stat:
    """One model, and who holds it. deposit: the key of a derived model; key is what it was called before. SluiceNotFoundError; of the daemon
    SluiceConnectionError, SluicePermissionError."""
    deposit = renamed("pool.stat", "key", "deposit", deposit, key)
    rows: Any = []
    holders: Any = []
    _call(
        "sluice_stat", _given(socket, "socket"), text(model, "model"), _given(deposit, "deposit"), _each(_EACH_ROW, rows, _row),
        _each(_EACH_HOLDER, holders, _holder), None,
    )
    return Stat(rows[0], tuple(holders))


def evict(model: str, deposit: Optional[str] = None, *, socket: Optional[str] = None, key: Optional[str] = None) -> int:
    """Take a model that nobody holds out of memory; the bytes that it had. deposit and exceptions are as of stat()."""
    deposit = renamed("pool.evict", "key", "deposit", deposit, key)
    nbytes = ctypes.c_uint64()
    _call("sluice_evict", _given(socket, "socket"), text(model, "model"), _given(deposit, "deposit"), byref(nbytes))
    return nbytes.value
