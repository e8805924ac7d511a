"""What libsluice opens, reads and writes, through ctypes: who owns what, and what a callback raises."""
from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from ctypes import POINTER, byref, c_int32, c_uint8, c_uint64, c_void_p, sizeof
from functools import partial
from typing import Any, NamedTuple, Optional, Union, cast

from . import _fork, _structs
from ._array import Memory
from ._blocks import contextmanager
from ._cancel import Cancel, Raised, aside, current, interruptible, may_be_ended, milliseconds
from ._error import SluiceError
from ._key import Phrase
from ._kinds import encoded, number
from ._library import KIND_FILE, Error, Meta, Tensor
from ._structs import function

VERIFY: dict[str, int] = {"auto": 0, "require": 1, "off": 2, "all": 3}
AS_FILES, WHOLE, REPLACE, BORROW, BARE_HEAD, EDIT_COPY = 1, 2, 1, 2, 4, 1
ROLES = ("entry", "parameter", "buffer")


def call(name: str, *arguments: Any) -> None:
    """One that returns 0 or -1 and takes an error last."""
    error = Error()
    if function(name)(*arguments, byref(error)) < 0:
        raise SluiceError(error)


def text(value: Any, what: str) -> bytes:
    """A NUL would end it early, and name something else."""
    if isinstance(value, bytes):
        found = value
    elif isinstance(value, (str, os.PathLike)):
        path = os.fspath(cast("Union[str, os.PathLike[str]]", value))
        try:
            found = os.fsencode(path)
        except UnicodeEncodeError:
            raise ValueError(f"{what} is not a text that can be written down: {path!r}") from None
    else:
        raise TypeError(f"{what} is a str or a path, not {type(value).__name__}")
    if b"\0" in found:
        raise ValueError(f"{what} has a NUL byte: {value!r}")
    return found


def _string(address: Optional[int], nbytes: int) -> str:
    return ctypes.string_at(address, nbytes).decode("utf-8", "surrogateescape") if address else ""


class Entry(NamedTuple):
    """A tensor or a data file of an opened model."""

    number: int
    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    is_file: bool
    is_local: bool  # its bytes lie in a local file as they are read
    object: int
    offset: int  # in its object; 0: its bytes do not lie there as they are read
    role: str
    module: int
    path: tuple[Union[str, int], ...]
    encrypted: bool
    meta: bool
    dlpack: tuple[int, int, int]

    @property
    def tie(self) -> Any:
        """Equal for names of the same bytes, read in the same way."""
        return (self.object, self.offset, self.dtype, self.shape) if self.offset and self.nbytes else self.number


class Value(NamedTuple):
    """What a model says under one key."""

    number: int
    key: str
    kind: int
    element: int  # of an array
    length: int
    nbytes: int
    data: Optional[bytes]  # None: too long to be kept


class Hash(NamedTuple):
    """That the format keeps of a tensor: of the prefix and then its bytes."""

    kind: str
    value: bytes
    prefix: bytes


class Read(NamedTuple):
    """What is read to where; no ranges: all of it."""

    number: int
    ranges: Optional[tuple[tuple[int, int, int], ...]]
    address: int
    nbytes: int


Progress = Callable[[int, int], object]


class Calls:
    """Callbacks of one call. What one raises ends the call, and is raised when that has returned. What C calls does not know this object:
    arrays that a callback knows would wait for the collector of cycles."""

    def __init__(self, progress: Optional[Progress], done: Optional[Callable[[int], object]] = None) -> None:
        self._raised = raised = Raised()

        def guarded(function: Callable[..., object], _: Any, *arguments: int) -> int:
            if not raised:
                try:
                    function(*arguments)
                except BaseException as error:  # raised again where the call was made
                    raised.keep(error)
            return 1 if raised else 0

        self.progress = _structs.PROGRESS(partial(guarded, progress)) if progress else _structs.PROGRESS()
        self.done = _structs.DONE(partial(guarded, done)) if done else _structs.DONE()

    def call(self, name: str, *arguments: Any) -> None:
        """The exception of a callback is worth more than that the call was canceled by it."""
        try:
            call(name, *arguments)
        except SluiceError:
            if not self._raised:
                raise
        self._raised.again()


class Held(Memory):
    """Memory of the library's, until this and every array on it are gone."""

    def __init__(self, pointer: Any) -> None:
        self.memory = ctypes.cast(pointer, c_void_p)
        self.address, self.nbytes = pointer.contents.data or 0, int(pointer.contents.bytes)
        self._free = function("sluice_unmap")

    def __del__(self) -> None:
        self._free(self.memory)

    def buffer(self) -> Any:
        """All of it, writable, as a buffer that lives as long as anybody looks."""
        array = (c_uint8 * self.nbytes).from_address(self.address) if self.nbytes else (c_uint8 * 0)()
        array._sluice_memory = self  # type: ignore[attr-defined]
        return array

    def view(self) -> memoryview:
        """The same as Python's bytes."""
        return memoryview(self.buffer()).cast("B")


def new_memory(nbytes: int) -> Held:
    """Zeroed, page by page."""
    pointer = POINTER(_structs.Memory)()
    call("sluice_memory_new", nbytes, byref(pointer))
    return Held(pointer)


def _key(key: Union[bytes, str, None]) -> Any:
    """bytes are a key, a str is a passphrase."""
    if key is None:
        return None
    if isinstance(key, bytes):
        if len(key) != 32:
            raise ValueError(f"a key has 32 bytes, not {len(key)}")
        return ctypes.pointer(_structs.Key(sizeof(_structs.Key), key, None, 0))
    phrase = encoded(key, "key")
    found = _structs.Key(sizeof(_structs.Key), None, phrase, len(phrase))
    if isinstance(key, Phrase):
        found.opslimit, found.memlimit, found.salt = number(key.opslimit, "opslimit"), number(key.memlimit, "memlimit"), key.salt
    return ctypes.pointer(found)


def gpu_number(name: str) -> int:
    """Of a GPU with this UUID, as this process counts, and so every framework in it."""
    ordinal = c_int32()
    call("sluice_device", text(name, "device"), byref(ordinal))
    return ordinal.value


def derive(phrase: Phrase) -> bytes:
    """The 32 bytes of a passphrase with a salt. Blocks."""
    derived = ctypes.create_string_buffer(32)
    call("sluice_key_derive", _key(phrase), derived)
    return derived.raw


def _open_options(spec: str, key: Union[bytes, str, None], verify: str, flags: int, timeout: Optional[float]) -> _structs.OpenOptions:
    if not isinstance(verify, str) or verify not in VERIFY:
        raise ValueError(f"verify is 'auto', 'all', 'require' or 'off', not {verify!r}")
    return _structs.OpenOptions(
        size=sizeof(_structs.OpenOptions), spec=encoded(spec, "spec") or None, key=_key(key), verify=VERIFY[verify], flags=flags,
        timeout_ms=milliseconds(timeout),
    )


def pull(uri: Any, directory: Any, spec: str, verify: str, timeout: Optional[float], progress: Optional[Progress]) -> None:
    """All objects into a directory."""
    options, calls = _open_options(spec, None, verify, 0, timeout), Calls(progress)
    where, to = text(uri, "uri"), text(directory, "directory")

    options.progress = calls.progress

    def work(cancel_fd: int) -> None:
        options.cancel_fd = cancel_fd
        calls.call("sluice_pull", where, to, byref(options))

    interruptible(work)


def _info(handle: c_void_p) -> _structs.SourceInfo:
    info = _structs.SourceInfo(size=sizeof(_structs.SourceInfo))
    function("sluice_source_info")(handle, byref(info))
    return info


BRIEF_BYTES = 1 << 20  # of a read of a local file: a thread for it takes longer
_LOOK = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


_HASH_BYTES, _SOURCE_HASH = sizeof(_structs.Hash), _structs.optional("sluice_source_hash")


class _File(NamedTuple):
    """A local file as it was when the library found it to be what was opened."""

    path: bytes
    seen: tuple[int, ...]


class _Look(NamedTuple):
    """A tensor that stays mapped, and its file."""

    number: int
    held: Held
    file: _File


def _state(file: int) -> tuple[int, ...]:
    """What differs once a file was changed or replaced, as the library sees it."""
    found = os.fstat(file)
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _seen(path: bytes) -> Optional[tuple[int, ...]]:
    """None: it cannot be opened. It is, since to who only asks a file system of a network may say what it remembers."""
    try:
        file = os.open(path, _LOOK)
    except OSError:
        return None
    try:
        return _state(file)
    finally:
        os.close(file)


def _read_file(known: _File, entry: Entry, buffer: Any) -> bool:
    """False: it is not as it was, or cannot be read."""
    try:
        file = os.open(known.path, _LOOK)
    except OSError:
        return False
    try:
        return os.preadv(file, (buffer,), entry.offset) == entry.nbytes and _state(file) == known.seen
    except OSError:
        return False
    finally:
        os.close(file)


def _is_local(uri: bytes) -> bool:
    return uri.startswith((b"/", b"./", b"../", b"file:///")) or b":" not in uri


def _stays(uri: bytes) -> bytes:
    """A relative path as it is now, for what is done with it later, in whatever folder the process is then."""
    return os.path.join(os.getcwdb(), uri) if uri and _is_local(uri) and not uri.startswith((b"/", b"file:")) else uri


class Source:
    """A model that was opened. A process that is forked opens it again when it uses it."""

    def __init__(
        self, uri: Any, spec: str = "", key: Union[bytes, str, None] = None, verify: str = "auto", flags: int = 0,
        timeout: Optional[float] = None, progress: Optional[Progress] = None,
    ) -> None:
        self.checks = verify != "off"  # what is read against its hashes
        self._close = function("sluice_close")
        self._closing = self._parents = False
        self._uri, self._wanted = text(uri, "uri"), (spec, key, verify, flags, timeout)
        # Nothing else is asked: no server, no program for a key.
        self.is_local = _is_local(self._uri)
        self._brief = self.is_local and not spec and key is None and timeout is None
        self._begin()
        self.handle = self._open(progress)
        _fork.known(self)

    def _begin(self) -> None:
        self._lock, self._going = threading.Lock(), 0
        self._look: Optional[_Look] = None
        self._files: dict[int, _File] = {}  # by objects
        self._keeps_look = True  # until it is closed or canceled

    def _open(self, progress: Optional[Progress] = None) -> c_void_p:
        options, calls, handle = _open_options(*self._wanted), Calls(progress), c_void_p()
        options.progress = calls.progress

        def work(cancel_fd: int) -> None:
            options.cancel_fd = cancel_fd
            calls.call("sluice_open", self._uri, byref(options), byref(handle))

        try:
            interruptible(work, self._brief and progress is None)
        except BaseException:
            if handle:
                self._close(handle)
            raise
        return handle

    def forked(self) -> None:
        """What the parent opened is not for us: it is opened again when it is used."""
        self._begin()
        self._parents = True

    def _open_again(self) -> None:
        """The lock is held. The parent's stays as it is; the library knows it."""
        handle = self._open()
        if _info(handle).identity[:] != _info(self.handle).identity[:]:
            self._close(handle)
            raise SluiceError("the model changed between its opening and this fork of the process", "INTEGRITY", "changed")
        self.handle, self._parents = handle, False

    def cancel(self) -> None:
        """Every call that reads, now or later, is canceled."""
        with self._using() as handle:
            function("sluice_cancel")(handle)
            with self._lock:
                self._look, self._files, self._keeps_look = None, {}, False

    def close(self) -> None:
        """Now, or when the last call that reads has ended."""
        with self._lock:
            self._closing, self._look, self._files, self._keeps_look = True, None, {}, False
        self._end()

    def _end(self) -> None:
        with self._lock:
            handle = None
            if self._closing and not self._going:
                handle, self.handle = self.handle, c_void_p()
        if handle:
            self._close(handle)

    def __del__(self) -> None:
        handle = self.__dict__.get("handle")
        if handle:
            self._close(handle)

    def forget(self) -> None:
        """What was opened whole is given back, unless somebody reads."""
        with self._lock:
            if self.handle and not self._going and not self._parents:
                function("sluice_source_forget")(self.handle)

    @contextmanager
    def _using(self) -> Generator[c_void_p, None, None]:
        with self._lock:
            if self._closing:
                raise ValueError("the model is closed")
            if self._parents:
                self._open_again()
            self._going += 1
        try:
            yield self.handle
        finally:
            with self._lock:
                self._going -= 1
            self._end()

    def told(self, member: str) -> Any:
        """One member of sluice_source_info, as it is now. Texts are the source's, and copied as long as it is open."""
        with self._using() as handle:
            return getattr(_info(handle), member)

    def _path(self, handle: c_void_p, raw: Tensor, name: str) -> tuple[Union[str, int], ...]:
        if raw.path_count == 1 and not name.isdigit():  # a number may be an index
            return (name,)
        return tuple(self._parts(handle, raw)) or (name,)

    def _parts(self, handle: c_void_p, raw: Tensor) -> Iterator[Union[str, int]]:
        part = _structs.PathPart(size=sizeof(_structs.PathPart))
        for which in range(raw.path_count):
            call("sluice_source_path", handle, raw.number, which, byref(part))
            yield _string(part.text, part.text_bytes) if part.text is not None else int(part.index)

    def _entry(self, handle: c_void_p, raw: Tensor) -> Entry:
        name = _string(raw.name, raw.name_bytes)
        return Entry(
            raw.number, name, raw.dtype.decode(), tuple(raw.shape[i] for i in range(raw.rank)), int(raw.bytes),
            raw.kind == KIND_FILE, bool(raw.file), raw.object, raw.offset, ROLES[raw.role] if raw.role < len(ROLES) else "entry",
            raw.module, self._path(handle, raw, name), bool(raw.encrypted), bool(raw.meta),
            (raw.dlpack_code, raw.dlpack_bits, raw.dlpack_lanes),
        )

    def entries(self) -> list[Entry]:
        """Tensors in the order of the objects, then data files."""
        raw = Tensor(size=sizeof(Tensor))
        found: list[Entry] = []
        count = self.told("tensor_count")
        with self._using() as handle:
            for number in range(count):
                call("sluice_source_tensor", handle, number, byref(raw))
                found.append(self._entry(handle, raw))
        return found

    def find(self, name: str) -> Optional[Entry]:
        """The tensor of this name; None: there is none."""
        raw = Tensor(size=sizeof(Tensor))
        try:
            told = name.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:  # what no bytes decode to
            return None
        with self._using() as handle:
            if function("sluice_source_find")(handle, told, len(told), byref(raw), None) < 0 or raw.kind == KIND_FILE:
                return None
            return self._entry(handle, raw)

    def values(self) -> list[Value]:
        """What the first object that has tensors says of itself."""
        raw = _structs.Value(size=sizeof(_structs.Value))
        found: list[Value] = []
        count = self.told("value_count")
        with self._using() as handle:
            for number in range(count):
                call("sluice_source_value", handle, number, byref(raw))
                data = ctypes.string_at(raw.data, raw.bytes) if raw.data else None
                key = raw.key.decode("utf-8", "surrogateescape")
                found.append(Value(number, key, raw.type, raw.element_type, raw.count, raw.bytes, data))
        return found

    def value_bytes(self, value: Value) -> bytes:
        """One that is not kept."""
        memory = ctypes.create_string_buffer(max(value.nbytes, 1))
        with self._using() as handle:
            interruptible(lambda cancel_fd: call("sluice_source_value_read", handle, value.number, memory, cancel_fd), self._brief)
        return memory.raw[:value.nbytes]

    def has_hash(self, number: int) -> bool:
        """Does the format keep one of it?"""
        raw = _structs.Hash(_HASH_BYTES)
        with self._using() as handle:
            return bool(_SOURCE_HASH(handle, number, 0, byref(raw), None) == 0)

    def hashes(self, number: int) -> list[Hash]:
        """That the format keeps of a tensor."""
        raw = _structs.Hash(size=sizeof(_structs.Hash))
        found: list[Hash] = []
        with self._using() as handle:
            while function("sluice_source_hash")(handle, number, len(found), byref(raw), None) == 0:
                prefix = ctypes.string_at(raw.prefix, raw.prefix_bytes) if raw.prefix else b""
                found.append(Hash(raw.kind.decode(), ctypes.string_at(raw.value, raw.value_bytes), prefix))
        return found

    @staticmethod
    def _reads(reads: Sequence[Read]) -> tuple[Any, list[Any]]:
        array = (_structs.Read * len(reads))()
        kept: list[Any] = []
        for at, read in enumerate(reads):
            if read.ranges is not None:
                kept.append((_structs.Range * max(len(read.ranges), 1))(*(_structs.Range(*one) for one in read.ranges)))
                array[at].slice = kept[-1]
            array[at].size, array[at].number = sizeof(_structs.Read), read.number
            array[at].to, array[at].bytes = read.address or None, read.nbytes
        return array, kept

    def read(
        self, reads: Sequence[Read], done: Optional[Callable[[int], object]] = None, progress: Optional[Progress] = None,
        device: Optional[str] = None,
    ) -> None:
        """Many at once, checked. done(index) of those that are whole, on whatever thread. device: a GPU, whose the addresses are."""
        if not reads:
            return
        calls = Calls(progress, done)
        array, kept = self._reads(reads)
        where, limit = None if device is None else text(device, "device"), milliseconds(None)

        def work(cancel_fd: int) -> None:
            options = _structs.ReadOptions(
                sizeof(_structs.ReadOptions), limit, cancel_fd, calls.progress, calls.done, None, where
            )
            with self._using() as handle:
                calls.call("sluice_read", handle, array, len(reads), byref(options))

        brief = self._brief and not (progress or device) and sum(read.nbytes for read in reads) <= BRIEF_BYTES
        interruptible(work, brief)
        kept.clear()

    def map(self, number: int) -> Held:
        """All of one that lies in a local file, as a private mapping; else it is read."""
        pointer, limit = POINTER(_structs.Memory)(), milliseconds(None)

        def work(cancel_fd: int) -> None:
            options = _structs.ReadOptions(size=sizeof(_structs.ReadOptions), timeout_ms=limit, cancel_fd=cancel_fd)
            with self._using() as handle:
                call("sluice_map", handle, number, byref(options), byref(pointer))

        interruptible(work, self._brief)
        return Held(pointer)

    def stays_mapped(self, number: int) -> bool:
        """Would look_at() find it?"""
        look = self._look
        return look is not None and look.number == number

    def look_at(self, number: int) -> Held:
        """map(), for callers that write nothing there and ask again. The last tensor stays mapped until the source is closed or canceled. Its
        file is looked at each time: where it has changed the tensor is mapped anew, which raises what happened to the file."""
        look = self._look
        if look is not None and look.number == number and not may_be_ended() and _seen(look.file.path) == look.file.seen:
            return look.held
        self._look = look = None  # before another one is in memory
        held, file = self._mapped(number)
        with self._lock:
            if self._keeps_look and file is not None:
                self._look = _Look(number, held, file)
        return held

    def _mapped(self, number: int) -> tuple[Held, Optional[_File]]:
        """map(), and the file."""
        raw = Tensor(size=sizeof(Tensor))
        with self._using() as handle:
            call("sluice_source_tensor", handle, number, byref(raw))
            path = raw.file
        seen = _seen(path)  # before it is mapped: map() checks the version afterwards, so that it was the same now
        return self.map(number), None if seen is None else _File(path, seen)

    def copy(self, entry: Entry, buffer: Any) -> None:
        """All of one that lies in a local file: what is little is read before it would be mapped. Its file is looked at each time."""
        known = None if may_be_ended() else self._files.get(entry.object)
        if known is not None and _read_file(known, entry, buffer):
            return
        held, file = self._mapped(entry.number)
        ctypes.memmove((c_uint8 * entry.nbytes).from_buffer(buffer), held.address, entry.nbytes)
        with self._lock:
            if self._keeps_look and file is not None:
                self._files[entry.object] = file


class Written(NamedTuple):
    """A tensor on its way out: its bytes lie row by row. No address, but bytes: a meta tensor."""

    name: Union[str, tuple[Union[str, int], ...]]
    dtype: str
    shape: tuple[int, ...]
    address: int
    nbytes: int
    role: str = "entry"
    module: int = 0


def _raw(tensor: Written, name: bytes) -> Tensor:
    if tensor.role not in ROLES:
        raise ValueError(f"role is one of {', '.join(ROLES)}, not {tensor.role!r}")
    shape = (c_uint64 * max(len(tensor.shape), 1))(*tensor.shape)
    raw = Tensor(
        size=sizeof(Tensor), name_bytes=len(name), dtype=tensor.dtype.encode(), shape=shape, rank=len(tensor.shape),
        bytes=tensor.nbytes, data=tensor.address or None, role=ROLES.index(tensor.role), module=number(tensor.module, "module", 1 << 32),
    )
    raw.name = ctypes.cast(ctypes.c_char_p(name), c_void_p)
    raw.kept = (name, shape)
    return raw


def _name(name: Any) -> bytes:
    if not isinstance(name, str) or not name:
        raise TypeError(f"a tensor's name is a text that is not empty, not {name!r}")
    return encoded(name, "a tensor's name")


class Output:
    """A new model in the making. The library has one thread in it at a time, and others wait."""

    def __init__(
        self, uri: Any, format: Optional[str], spec: str, metadata: Optional[dict[str, str]], key: Union[bytes, str, None],
        shard_bytes: int, flags: int, timeout: Optional[float], progress: Optional[Progress], align: int = 0,
    ) -> None:
        self.handle = c_void_p()
        self.forked()
        _fork.known(self)
        self._abandon = function("sluice_abandon")
        self._calls, self._cancel = Calls(progress), current() or Cancel()
        pairs = [(encoded(key, "metadata"), encoded(value, "metadata")) for key, value in (metadata or {}).items()]
        rows = (Meta * max(len(pairs), 1))()
        for row, (name, value) in zip(rows, pairs):
            row.size, row.key_bytes, row.value_bytes = sizeof(Meta), len(name), len(value)
            row.key = ctypes.cast(ctypes.c_char_p(name), c_void_p)
            row.value = ctypes.cast(ctypes.c_char_p(value), c_void_p)
        options = _structs.CreateOptions(
            size=sizeof(_structs.CreateOptions), format=format.encode() if format else None, spec=encoded(spec, "spec") or None, metadata=rows,
            metadata_count=len(pairs), key=_key(key), shard_bytes=number(shard_bytes, "shard_bytes"), align=number(align, "align"), flags=flags,
            timeout_ms=milliseconds(timeout), cancel_fd=self._cancel.fd, progress=self._calls.progress,
        )
        call("sluice_create", _stays(text(uri, "uri")), byref(options), byref(self.handle))

    def forked(self) -> None:
        """It is the parent's, who writes it."""
        self.handle, self._lock = c_void_p(), threading.Lock()

    def write(self, tensor: Written) -> None:
        """One more tensor."""
        if isinstance(tensor.name, str):
            raw = _raw(tensor, encoded(tensor.name, "a tensor's name"))
            with self._lock:
                call("sluice_write", self._open(), byref(raw))
            return
        parts = (_structs.PathPart * len(tensor.name))()
        texts = [encoded(part, "a tensor's name") if isinstance(part, str) else b"" for part in tensor.name]
        for at, part in enumerate(tensor.name):
            parts[at].size = sizeof(_structs.PathPart)
            if isinstance(part, str):
                parts[at].text, parts[at].text_bytes = ctypes.cast(ctypes.c_char_p(texts[at]), c_void_p), len(texts[at])
            else:
                parts[at].index = number(part, "a number in a name", 1 << 63)
        with self._lock:
            call("sluice_write_path", self._open(), byref(_raw(tensor, b"")), parts, len(parts))

    def _open(self) -> c_void_p:
        if not self.handle:
            raise ValueError("the writer is closed")
        return self.handle

    def _taken(self) -> c_void_p:
        """By whoever ends it: nobody else has it then."""
        with self._lock:
            handle, self.handle = self.handle, c_void_p()
        return handle

    def finish(self) -> None:
        """Make it visible at once; Ctrl-C leaves nothing."""
        handle = self._taken()
        if not handle:
            raise ValueError("the writer is closed")
        aside(lambda: self._calls.call("sluice_finish", handle), self._cancel)

    def abandon(self) -> None:
        """Nothing was written."""
        handle = self._taken()
        if handle:
            self._abandon(handle)

    def __del__(self) -> None:
        if hasattr(self, "_cancel"):
            self.abandon()


class Edit:
    """Changes of a local file in the making."""

    def __init__(self, path: Any, copy: bool = False) -> None:
        self.handle = c_void_p()
        _fork.known(self)
        self._abandon = function("sluice_edit_abandon")
        options = _structs.EditOptions(size=sizeof(_structs.EditOptions), flags=EDIT_COPY if copy else 0)
        call("sluice_edit", text(path, "path"), byref(options), byref(self.handle))

    def forked(self) -> None:
        """It is the parent's, who changes the file."""
        self.handle = c_void_p()

    @property
    def is_open(self) -> bool:
        """Neither committed nor abandoned."""
        return bool(self.handle)

    def _open(self) -> c_void_p:
        if not self.handle:
            raise ValueError("the editor is closed")
        return self.handle

    def replace(self, tensor: Written) -> None:
        """Another type, shape and data; borrowed until the commit."""
        call("sluice_replace", self._open(), byref(_raw(tensor, _name(tensor.name))))

    def append(self, tensor: Written) -> None:
        """One that is not there yet; borrowed until the commit."""
        call("sluice_append", self._open(), byref(_raw(tensor, _name(tensor.name))))

    def delete(self, name: str) -> None:
        """Nobody reads it any more."""
        found = _name(name)
        call("sluice_delete", self._open(), found, len(found))

    def commit(self) -> None:
        """All at once."""
        handle, self.handle = self._open(), c_void_p()
        call("sluice_commit", handle)

    def abandon(self) -> None:
        """Nothing was changed."""
        handle, self.handle = self.handle, c_void_p()
        if handle:
            self._abandon(handle)

    def __del__(self) -> None:
        if hasattr(self, "_abandon"):
            self.abandon()
