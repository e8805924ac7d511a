"""Objects as they lie in a store: listed, copied, read as files."""
from __future__ import annotations

import io
from typing import Any, NamedTuple, Optional, Union

from . import _native, _progress
from ._kinds import Texts, number, texts
from ._native import Entry, Read, Source
from ._options import Credentials, spec_text


class Object(NamedTuple):
    """One object: its name, below the prefix if it was listed by one, and its size.

    >>> sluice.ls("m.safetensors")[0].name
    'm.safetensors'
    """

    name: str
    nbytes: int


def _source(
    uri: Any, who: Optional[Credentials], include: Optional[Texts], exclude: Optional[Texts],
    timeout: Optional[float], verify: str = "auto", as_is: Optional[Texts] = None, idle_seconds: int = 0,
) -> Source:
    wanted = {"include": texts(include, "include"), "exclude": texts(exclude, "exclude"), "asIs": texts(as_is, "as_is")}
    chosen = {key: value for key, value in wanted.items() if value}
    spec: dict[str, Any] = {"source": chosen} if chosen else {}
    if idle_seconds:
        spec["readers"] = {"idleSeconds": idle_seconds}
    text = spec_text(who, spec or None)
    return Source(uri, text, None, verify, _native.AS_FILES, timeout)


def ls(
    uri: Any, *, include: Optional[Texts] = None, exclude: Optional[Texts] = None,
    credentials: Optional[Credentials] = None, timeout: Optional[float] = None,
) -> list[Object]:
    """The objects below a prefix (a URI with a '/' at its end), or the one of a URI. A shell pattern, or several, choose among them.
    SluiceNotFoundError: there is none; SluiceError as of open().

    >>> [found.nbytes > 108 for found in sluice.ls("m.safetensors")]
    [True]
    """
    source = _source(uri, credentials, include, exclude, timeout)
    try:
        return [Object(entry.name, entry.nbytes) for entry in source.entries()]
    finally:
        source.close()


def version_of(
    uri: Any, *, include: Texts, credentials: Optional[Credentials] = None, timeout: Optional[float] = None, idle_seconds: int = 0,
) -> str:
    """32 hex digits that are equal for equal versions of the objects below a prefix. None is looked into: where a listing has versions, it
    is all that the store is asked for."""
    source = _source(uri, credentials, include, None, timeout, as_is=include, idle_seconds=idle_seconds)
    try:
        return bytes(source.told("identity")).hex()[:32]
    finally:
        source.close()


def pull(
    uri: Any, directory: Any, *, include: Optional[Texts] = None, exclude: Optional[Texts] = None,
    credentials: Optional[Credentials] = None, verify: str = "auto", spec: Union[str, dict[str, Any], None] = None,
    timeout: Optional[float] = None, progress: _progress.Wanted = None,
) -> None:
    """Copy a model's objects into a directory, as `sluice load URI --to DIRECTORY` does: checked, and there all at once.
    SluiceError of kind NO_SPACE: the disk is full; other errors as of open().

    >>> sluice.pull("m.safetensors", "pulled")
    >>> sluice.open("pulled")["w"].shape
    (4, 6)
    """
    whole: Union[str, dict[str, Any], None] = spec
    wanted = {"include": texts(include, "include"), "exclude": texts(exclude, "exclude")}
    chosen = {key: value for key, value in wanted.items() if value}
    if chosen and isinstance(spec, str):
        raise ValueError("a spec in YAML stands alone: say in it what is included")
    if chosen and not isinstance(spec, str):
        whole = dict(spec or {})
        whole["source"] = {**whole.get("source", {}), **chosen}
    with _progress.shown(progress, str(uri)) as tell:
        _native.pull(uri, directory, spec_text(credentials, whole), verify, timeout, tell)


class File(io.RawIOBase):
    """One object as a read-only binary file; every read asks for its range alone. Any thread may use read_at().

    >>> with sluice.open_file("m.safetensors", buffer_size=0) as file:
    ...     file.seek(8), file.read(1)
    (8, b'{')
    """

    def __init__(self, source: Source, name: str, begin: int, end: Optional[int], who: Optional[Credentials] = None) -> None:
        super().__init__()
        self._source, self.name, self._credentials = source, name, who  # which secrets are read from as long as they are asked for
        files = source.entries()
        if len(files) != 1:
            source.close()
            raise IsADirectoryError(f"'{name}' is {len(files)} objects, not one")
        self._entry: Entry = files[0]
        size = self._entry.nbytes
        self._begin = min(begin, size)
        self._end = size if end is None else max(min(end, size), self._begin)
        self._at = 0

    def __len__(self) -> int:
        return self._end - self._begin

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file.")

    def tell(self) -> int:
        """Where the next read begins."""
        self._check_open()
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """As of any file."""
        self._check_open()
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self)}.get(whence)
        if base is None:
            raise ValueError(f"whence is 0, 1 or 2, not {whence}")
        if base + offset < 0:
            raise ValueError(f"a place before the beginning: {base + offset}")
        self._at = base + offset
        return self._at

    def read_at(self, offset: int, buffer: Any) -> int:
        """Fill a buffer from a place; fewer bytes at the end."""
        import ctypes

        self._check_open()
        if offset < 0:
            raise ValueError(f"a place before the beginning: {offset}")
        view = memoryview(buffer).cast("B")
        count = max(min(view.nbytes, len(self) - offset), 0)
        if count:
            address = ctypes.addressof(ctypes.c_uint8.from_buffer(view))
            first = self._begin + offset
            self._source.read([Read(self._entry.number, ((first, first + count, 1),), address, count)])
        return count

    def readinto(self, buffer: Any) -> int:
        """As of any file."""
        count = self.read_at(self._at, buffer)
        self._at += count
        return count

    def readall(self) -> bytes:
        """What is left, in one request."""
        found = bytearray(max(len(self) - self._at, 0))
        self._at += self.read_at(self._at, found)
        return bytes(found)

    def close(self) -> None:
        """Give the connection back."""
        if not self.closed:
            self._source.close()
        super().close()

    def __repr__(self) -> str:
        return f"<sluice.File {self.name!r} {len(self)} bytes>"


def open_file(
    uri: Any, *, begin: int = 0, end: Optional[int] = None, buffer_size: int = 1 << 20,
    credentials: Optional[Credentials] = None, timeout: Optional[float] = None,
) -> io.BufferedReader:
    """One object as a read-only binary file, or the part from begin to end of it. buffer_size: bytes that are read ahead; 0: none, and
    every read is a request. SluiceNotFoundError: there is none; ValueError: begin and end are no part; SluiceError as of open().

    >>> with sluice.open_file("m.safetensors", begin=8) as file:
    ...     file.read(2)
    b'{"'
    """
    number(buffer_size, "buffer_size", 1 << 63)
    number(begin, "begin")
    if end is not None and number(end, "end") < begin:
        raise ValueError(f"no part of a file: from begin {begin} to end {end}")
    raw = File(_source(uri, credentials, None, None, timeout), _progress.without_secrets(str(uri)), begin, end, credentials)
    return io.BufferedReader(raw, buffer_size) if buffer_size else raw  # type: ignore[return-value]
