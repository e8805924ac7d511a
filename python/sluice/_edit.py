"""Local model files that are changed where they lie."""
from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from . import _fork, _native
from ._error import SluiceError
from ._kinds import flag
from ._native import Written
from ._write import laid_as


class Editor:
    """Changes of a file in the making, all made by commit() or at the end of a `with` block; after an exception in the block, or a crash,
    none of them.

        with sluice.edit("model.safetensors") as changes:
            changes["lm_head.weight"] = weight     # replaced if it is there, appended if not
            del changes["old.bias"]

    Nobody else can change the file meanwhile. Tensors stay as they are until the end: their bytes are not copied. Any thread may use it; one
    waits for another.

    >>> with sluice.edit("changed.safetensors") as changes:
    ...     del changes["b"]
    >>> list(sluice.open("changed.safetensors"))
    ['w']
    """

    def __init__(self, path: Any, *, copy: bool = False) -> None:
        self._edit: _native.Edit = _native.Edit(path, flag(copy, "copy"))
        self._kept: list[Any] = []
        self.forked()
        _fork.known(self)

    def forked(self) -> None:
        """Whoever was inside is not here."""
        self._lock = threading.Lock()

    def _take(self, change: Callable[[Written], None], name: str, tensor: Any) -> None:
        found = laid_as(name, tensor)
        with self._lock:
            self._kept.append(found.owner)
            change(Written(name, found.dtype, found.shape, found.address, found.nbytes))

    def replace(self, name: str, tensor: Any) -> None:
        """Another type, shape and content for a tensor that is there; KeyError if it is not."""
        try:
            self._take(self._edit.replace, name, tensor)
        except SluiceError as error:
            if error.kind == "NOT_FOUND":
                raise KeyError(name) from None
            raise

    def append(self, name: str, tensor: Any) -> None:
        """One more tensor, behind all others."""
        self._take(self._edit.append, name, tensor)

    def __setitem__(self, name: str, tensor: Any) -> None:
        try:
            self.replace(name, tensor)
        except KeyError:
            self.append(name, tensor)

    def __delitem__(self, name: str) -> None:
        try:
            with self._lock:
                self._edit.delete(name)
        except SluiceError as error:
            if error.kind == "NOT_FOUND":
                raise KeyError(name) from None
            raise

    def commit(self) -> None:
        """Make all changes, at once. The editor is closed then, however it went."""
        with self._lock:
            try:
                self._edit.commit()
            finally:
                self._kept.clear()

    def abandon(self) -> None:
        """Change nothing. An editor that is closed stays so."""
        with self._lock:
            self._edit.abandon()
            self._kept.clear()

    def __enter__(self) -> "Editor":
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        if kind is None and self._edit.is_open:
            self.commit()
        else:
            self.abandon()


def edit(path: Any, *, copy: bool = False) -> Editor:
    """Change a local safetensors, .tensors or PyTorch file without writing what stays where it is.

    copy  a new file takes its place in any case, so whoever has the present one open or mapped keeps it as it is.

    SluiceValueError: the file is of another format, or is not local; SluiceNotFoundError: there is none.

    >>> with sluice.edit("changed.safetensors") as changes:
    ...     changes["b"] = sluice.load("m.safetensors", framework="numpy")["w"]
    >>> sluice.open("changed.safetensors").meta("b").shape
    (4, 6)
    """
    return Editor(path, copy=copy)
