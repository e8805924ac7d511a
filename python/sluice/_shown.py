"""Models as a notebook shows them."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

ROWS = 50


class Line(NamedTuple):
    """Of a tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


def table(title: str, names: Mapping[str, Any], line: Callable[[str], Line]) -> str:
    """Names, types, shapes and bytes, of the first tensors."""
    from html import escape  # which is large, and for notebooks alone

    rows = [line(name) for _, name in zip(range(ROWS), names)]
    cells = "".join(
        f"<tr><td>{escape(row.name)}</td><td>{escape(row.dtype)}</td><td>{escape(str(list(row.shape)))}</td>"
        f"<td style=\"text-align: right\">{row.nbytes:,}</td></tr>" for row in rows
    )
    more = f"<p>and {len(names) - len(rows):,} more</p>" if len(names) > len(rows) else ""
    head = "<tr><th>tensor</th><th>type</th><th>shape</th><th>bytes</th></tr>"
    return f"<p>{escape(title)}: {len(names):,} tensors</p><table>{head}{cells}</table>{more}"
