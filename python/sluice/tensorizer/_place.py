"""What can be read from and written to: paths, URIs, descriptors, and files that are open."""
from __future__ import annotations

import io
import os
import shutil
import stat
from typing import Any, Optional, cast

from .._options import Credentials


class Stream(io.BufferedReader):
    """A URI that was opened for reading."""

    def __init__(self, raw: Any, uri: str, credentials: Optional[Credentials], whole: bool, buffer_size: int) -> None:
        super().__init__(raw, buffer_size)
        self.uri, self.credentials, self.whole = uri, credentials, whole


class Destination(io.RawIOBase):
    """A URI that TensorSerializer may write to."""

    def __init__(self, uri: str, credentials: Optional[Credentials]) -> None:
        super().__init__()
        self.uri, self.credentials = uri, credentials
        self.name = uri

    def writable(self) -> bool:
        """By TensorSerializer."""
        return True

    def write(self, data: Any) -> int:
        """Not by hand: objects appear whole, so that somebody must know when they are."""
        raise io.UnsupportedOperation("an object is written by TensorSerializer alone: write a file, and copy it there")


class Readable:
    """Where a model is read from, as long as it is used."""

    def __init__(self, file_obj: Any) -> None:
        self.file, self.credentials = file_obj, getattr(file_obj, "credentials", None)
        self._fd: Optional[int] = None
        if isinstance(file_obj, (str, bytes, os.PathLike)):
            self.uri = os.fsdecode(cast("str", file_obj))
            self.file = None
        elif isinstance(file_obj, Stream) and file_obj.whole:
            self.uri = file_obj.uri
        else:
            self.uri = self._by_descriptor(file_obj)

    def _by_descriptor(self, file_obj: Any) -> str:
        if isinstance(file_obj, bool) or not (isinstance(file_obj, int) or hasattr(file_obj, "read")):
            raise TypeError(f"a path, a URI, a descriptor or a binary file, not {type(file_obj).__name__}")
        if isinstance(file_obj, io.TextIOBase):
            raise ValueError("file_obj must be opened in binary mode")
        fd = _regular(file_obj)
        self._fd = os.dup(fd) if fd is not None else _in_memory(file_obj)
        return f"/proc/self/fd/{self._fd}"

    def close(self) -> None:
        """Also the file that was given, as tensorizer does."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        if isinstance(self.file, int):
            os.close(self.file)
        elif self.file is not None:
            self.file.close()
        self.file = None


def _regular(file_obj: Any) -> Optional[int]:
    """The descriptor of a file on a disk that is read from its beginning."""
    try:
        fd = file_obj if isinstance(file_obj, int) else file_obj.fileno()
        at = os.lseek(fd, 0, os.SEEK_CUR) if isinstance(file_obj, int) else file_obj.tell()
        if not isinstance(file_obj, int) and hasattr(file_obj, "flush"):
            file_obj.flush()
    except (AttributeError, OSError, io.UnsupportedOperation):
        return None
    return fd if at == 0 and stat.S_ISREG(os.fstat(fd).st_mode) else None


def _in_memory(file_obj: Any) -> int:
    fd = os.memfd_create("sluice", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(fd), "wb") as copy:
        source = os.fdopen(os.dup(file_obj), "rb") if isinstance(file_obj, int) else file_obj
        shutil.copyfileobj(source, copy, 1 << 20)
    return fd
