"""Errors in safetensors' words."""
from __future__ import annotations

import re
from collections.abc import Generator

from .._blocks import contextmanager
from .._error import SluiceError

_HEADER = {
    "st.too-small": "header too small",
    "st.header-too-large": "header too large",
    "st.header-length": "invalid header length",
    "st.json": "invalid JSON in header: {}",
    "st.utf8": "invalid UTF-8 in header: {}",
    "st.dtype": "invalid JSON in header: {}",
    "st.tensor-info": "invalid JSON in header: {}",
    "st.metadata": "invalid JSON in header: {}",
    "st.duplicate-key": "invalid JSON in header: {}",
    "st.overflow": "overflow computing buffer size from shape and/or element type",
    "st.size": "invalid shape, data type, or offset for tensor",
    "st.misaligned": "invalid shape, data type, or offset for tensor",
    "st.offset": "invalid offset for tensor `{name}`",
    "st.incomplete": "incomplete metadata, file not fully covered",
}


class SafetensorError(Exception):
    """A file or a wish that cannot be served."""


SafetensorError.__module__ = "sluice.safetensors"


def said(error: SluiceError) -> str:
    """As safetensors says it."""
    name = re.search(r"'([^']*)'", str(error))
    return _HEADER.get(error.code, "{}").format(error, name=name.group(1) if name else "")


@contextmanager
def translated(before: str, path: str = "") -> Generator[None, None, None]:
    """SluiceError becomes SafetensorError, and FileNotFoundError where a file is missing."""
    try:
        yield
    except SluiceError as error:
        if error.kind == "NOT_FOUND" and path:
            shown = str(error) if ":" in path else path  # a URI may hold a key, which the error leaves out
            raise FileNotFoundError(f"No such file or directory: {shown}") from error
        raise SafetensorError(f"{before}: {said(error)}") from error
