"""Names of parts, and the mappings and lists that they are of."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import MappingProxyType
from typing import Any, Union, cast

from .._kinds import is_list, is_mapping

Path = tuple[Union[str, int], ...]


def normal(path: Path) -> Union[str, Path]:
    """A name of one text is that text."""
    return path[0] if len(path) == 1 and isinstance(path[0], str) else path


def flat(structure: Any, is_leaf: Callable[[Any], bool], above: Path = ()) -> Iterator[tuple[Path, Any]]:
    """(path, leaf) of nested mappings and lists, in order."""
    if is_leaf(structure):
        yield above, structure
        return
    if is_mapping(structure):
        pairs: Iterable[tuple[Any, Any]] = structure.items()
    elif is_list(structure):
        pairs = enumerate(structure)
    else:
        raise TypeError(f"a tensor, a mapping or a list, not {type(structure).__name__}")
    for key, value in pairs:
        if is_mapping(structure) and not isinstance(key, str):
            raise TypeError(f"keys of mappings are str, not {type(key).__name__}")
        yield from flat(value, is_leaf, above + (key,))


def nested(paths: Iterable[Path]) -> dict[Any, Any]:
    """Dicts of dicts, with a path at each leaf."""
    root: dict[Any, Any] = {}
    for path in paths:
        at = root
        for part in path[:-1]:
            at = at.setdefault(part, {})
        at[path[-1]] = path
    return root


def with_lists(branch: Any, leaf: Callable[[Path], Any]) -> Any:
    """As it was written: a dict of numbers is a list."""
    if isinstance(branch, tuple):
        return leaf(cast(Path, branch))
    if branch and all(isinstance(key, int) for key in branch):
        return [with_lists(branch[key], leaf) for key in sorted(branch)]
    return {key: with_lists(inner, leaf) for key, inner in branch.items()}


def with_mappings(branch: Any, leaf: Callable[[Path], Any]) -> Any:
    """Read-only mappings, also where it was a list."""
    if isinstance(branch, tuple):
        return leaf(cast(Path, branch))
    return MappingProxyType({key: with_mappings(inner, leaf) for key, inner in branch.items()})


def leaves(branch: Any) -> Iterator[Path]:
    """Its paths."""
    if isinstance(branch, tuple):
        yield cast(Path, branch)
    else:
        for inner in branch.values():
            yield from leaves(inner)
