"""What engines' loaders have in common: where a model's weights are, and one tensor after the other."""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast, Optional

from . import _parts
from ._dtypes import library
from ._load import stream
from ._model import open_model
from ._options import credentials
from ._pool import attach

KNOWN = ("uri", "model", "socket", "timeout", "device", "source", "key")


def checked(extra: Any) -> dict[str, Any]:
    """What the engine was given for its loader, or ValueError."""
    if not extra:
        return {}
    if not isinstance(extra, Mapping):
        raise ValueError(f"model_loader_extra_config is a mapping, not {type(extra).__name__}")
    given: dict[str, Any] = dict(cast("Mapping[str, Any]", extra))
    unknown = sorted(set(given) - set(KNOWN))
    if unknown:
        raise ValueError(f"unknown in model_loader_extra_config: {', '.join(unknown)}; known are {', '.join(KNOWN)}")
    if "uri" in given and "model" in given:
        raise ValueError("model_loader_extra_config has both a uri and a model of the pool")
    return given


def from_pool(name: str, extra: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Tensors of a model of the pool, each as soon as it is there."""
    with attach(
        name, extra.get("device", "cpu"), key=extra.get("key"), socket=extra.get("socket"), timeout=extra.get("timeout")
    ) as model:
        for key, tensor in model.items():
            yield key, tensor.torch()


def ranks_of(distributed: str) -> int:
    """How many share each tensor, by the engine's module; 1 where it was not told yet."""
    try:
        return int(library(distributed).get_tensor_model_parallel_world_size())
    except (ImportError, AttributeError, AssertionError):
        return 1


def weights(place: str, extra: Mapping[str, Any], ranks: int = 1) -> Iterator[tuple[str, Any]]:
    """(name, tensor) of what the loader was told to load, else of the engine's own model path. One of several ranks reads of a large
    tensor what it takes."""
    if "model" in extra:
        return from_pool(extra["model"], extra)
    source: Optional[dict[str, Any]] = extra.get("source")
    who = credentials(source=source) if source else None
    options: dict[str, Any] = {"device": extra.get("device", "cpu"), "timeout": extra.get("timeout"), "credentials": who}
    uri = extra.get("uri", place)
    return stream(uri, **options) if ranks == 1 else _parts.weights(open_model(uri, framework="torch", **options))
