"""The whole of a model in one call."""
from __future__ import annotations

import os
from collections.abc import Callable, Generator
from typing import Any, Optional

from . import _progress
from ._cancel import Limit
from ._frameworks import installed
from ._key import Secret
from ._kinds import Texts, number, texts
from ._model import open_model
from ._options import Credentials, Framework, MetaTensors, Spec, Verify
from ._stream import GROUP_BYTES


def load(
    uri: Any, *, device: Any = "cpu", framework: Optional[Framework] = None, names: Optional[Texts] = None,
    filter: Optional[Callable[[str], object]] = None, dtype: Any = None, timeout: Optional[float] = None,
    progress: _progress.Wanted = None, credentials: Optional[Credentials] = None, key: Secret = None,
    verify: Verify = "auto", include: Optional[Texts] = None, exclude: Optional[Texts] = None, rename: Optional[list[dict[str, str]]] = None,
    spec: Spec = None, meta: MetaTensors = "zeros", whole: Optional[bool] = None,
) -> dict[str, Any]:
    """All tensors of a model, those of names, or those of which filter(name) is true: {name: array}, each of its whole shape.

    framework the arrays'. None: torch if it is installed, else NumPy.
    dtype     cast to it what is of its kind, floating or whole: one of the framework's types, or a name such as "bf16".
    timeout   seconds until all is there. None: no limit.
    progress  True for a bar, or a function of bytes done and bytes in all.

    What is not here is as of open(). KeyError: one of names is not there; SluiceError as of open(), also where bytes are not what a hash says.

    >>> {name: array.shape for name, array in sorted(sluice.load("m.safetensors", framework="numpy").items())}
    {'b': (3,), 'w': (4, 6)}
    >>> sluice.load("m.safetensors", framework="numpy", names="w", dtype="f16")["w"].dtype
    dtype('float16')
    """
    if whole is None:
        whole = names is None and filter is None
    with Limit(timeout).step(), open_model(
        uri, device=device, framework=framework or installed(), credentials=credentials, key=key, verify=verify, include=include, exclude=exclude, rename=rename,
        spec=spec, meta=meta, whole=whole,
    ) as model:
        return model.load(names, filter=filter, dtype=dtype, progress=progress)


def _each(uris: Any) -> list[Any]:
    if isinstance(uris, (str, bytes, os.PathLike)):
        return [uris]
    try:
        return list(uris)
    except TypeError:
        raise TypeError(f"uris is a str or a path, or several, not {uris!r}") from None


def stream(
    uris: Any, *, device: Any = "cpu", framework: Optional[Framework] = None, names: Optional[Texts] = None,
    filter: Optional[Callable[[str], object]] = None, group_bytes: int = GROUP_BYTES,
    timeout: Optional[float] = None, progress: _progress.Wanted = None, credentials: Optional[Credentials] = None, key: Secret = None,
    verify: Verify = "auto", include: Optional[Texts] = None, exclude: Optional[Texts] = None, rename: Optional[list[dict[str, str]]] = None,
    spec: Spec = None, meta: MetaTensors = "zeros", whole: Optional[bool] = None,
) -> Generator[tuple[str, Any], None, None]:
    """(name, tensor) of one model or of several, as they arrive; memory stays bounded by what was taken and three groups.

    names     that are wanted; those that a model lacks are another's, and what none has is a KeyError in the end.
    timeout   seconds that opening and reading may take in all; what you do between two tensors does not count. None: no limit.
    progress  True for a bar, or a function of bytes done and bytes in all, which begin again with each model.

    What is not here is as of load().

    >>> sorted(name for name, array in sluice.stream("m.safetensors", framework="numpy"))
    ['b', 'w']
    """
    limit = Limit(timeout)
    wanted = None if names is None else set(texts(names, "names"))
    missing = set(wanted or ())
    if whole is None:
        whole = names is None and filter is None
    number(group_bytes, "group_bytes")
    for uri in _each(uris):
        with limit.step():
            model = open_model(
                uri, device=device, framework=framework or installed(), credentials=credentials, key=key, verify=verify, include=include,
                exclude=exclude, rename=rename, spec=spec, meta=meta, whole=whole,
            )
        with model:
            here = None if wanted is None else [name for name in model if name in wanted]
            missing.difference_update(here or ())
            yield from model.stream(here, filter=filter, group_bytes=group_bytes, timeout=limit, progress=progress)
    if missing:
        raise KeyError(sorted(missing)[0])
