"""What engines' loaders have in common: where a model's weights are, and one tensor after the other."""
from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast, Optional

from . import _parts, _ranks
from ._dtypes import library
from ._load import stream
from ._model import open_model
from ._options import credentials
from ._pool import PoolModel, attach

KNOWN = ("uri", "model", "socket", "timeout", "device", "source", "key", "deposit", "draft", "sharded_state", "rank")
ELSEWHERE = ("timeout", "device", "source")  # what of it goes for weights that lie elsewhere, too


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
    if given.get("deposit") and ("model" not in given or "key" in given):
        raise ValueError("deposit in model_loader_extra_config is for a model of the pool, and makes its key itself")
    if given.get("sharded_state") and given.get("deposit"):
        raise ValueError("model_loader_extra_config has deposit, and sharded_state, which is loaded as it is: leave one out")
    if "rank" in given and (not given.get("sharded_state") or type(given["rank"]) is not int or given["rank"] < 0):
        raise ValueError("rank in model_loader_extra_config is a number from 0, for sharded_state")
    if "draft" in given:
        given["draft"] = checked(given["draft"])
        if "draft" in given["draft"] or "deposit" in given["draft"]:
            raise ValueError("draft in model_loader_extra_config has a draft or a deposit of its own")
    return given


def of_draft(extra: Mapping[str, Any]) -> dict[str, Any]:
    """For the small model of speculative decoding, which the same loader is asked for: its weights are others than the model's, and lie at
    its own path unless `draft` says where."""
    return {**{key: extra[key] for key in ELSEWHERE if key in extra}, **extra.get("draft", {})}


def from_pool(name: str, extra: Mapping[str, Any], leased: Optional[PoolModel] = None) -> Iterator[tuple[str, Any]]:
    """Tensors of a model of the pool, each as soon as it is there; of one that the caller has attached to, if it has."""
    where: dict[str, Any] = {key: extra.get(key) for key in ("key", "socket", "timeout")}
    with contextlib.nullcontext(leased) if leased is not None else attach(name, extra.get("device", "cpu"), **where) as model:
        for key, tensor in model.items():
            yield key, tensor.torch()


def ranks_of(distributed: str) -> int:
    """How many share each tensor, by the engine's module; 1 where it was not told yet."""
    try:
        return int(library(distributed).get_tensor_model_parallel_world_size())
    except (ImportError, AttributeError, AssertionError):
        return 1


def rank_of(distributed: str) -> int:
    """Which of ranks_of() this is."""
    try:
        return int(library(distributed).get_tensor_model_parallel_rank())
    except (ImportError, AttributeError, AssertionError):
        return 0


def uri_of(place: str, revision: Optional[str] = None) -> str:
    """Where an engine's model lies: a path or a URI as it is, else a repository of the hub at its revision."""
    if "://" in place or os.path.exists(place) or not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", place):
        return place
    named = revision if not revision or revision.startswith("refs/") else revision.replace("/", "%2F")
    return f"hf://{place}@{named}" if named else f"hf://{place}"


def _opened(uri: str, include: Optional[list[str]], extra: Mapping[str, Any], ranks: int) -> Iterator[tuple[str, Any]]:
    source: Optional[dict[str, Any]] = extra.get("source")
    options: dict[str, Any] = {
        "device": extra.get("device", "cpu"), "timeout": extra.get("timeout"),
        "credentials": credentials(source=source) if source else None,
        "spec": {"source": {"include": include}} if include else None,
    }
    return stream(uri, **options) if ranks == 1 else _parts.weights(open_model(uri, framework="torch", **options))


def weights(
    place: str, extra: Mapping[str, Any], ranks: int = 1, revision: Optional[str] = None, leased: Optional[PoolModel] = None
) -> Iterator[tuple[str, Any]]:
    """(name, tensor) of what the loader was told to load, else of the engine's own model path. One of several ranks reads of a large
    tensor what it takes."""
    if "model" in extra:
        return from_pool(extra["model"], extra, leased)
    return _opened(extra.get("uri") or uri_of(place, revision), None, extra, ranks)


def weights_of_rank(place: str, revision: Optional[str], extra: Mapping[str, Any], rank: int, ranks: int) -> Iterator[tuple[str, Any]]:
    """(name, tensor) of the files of one rank alone: of a folder with those of all, or of what `{rank}` in a name is."""
    if "model" in extra:
        return from_pool(_ranks.of_rank(extra["model"], rank), extra)
    whole = extra.get("uri") or uri_of(place, revision)
    uri = _ranks.of_rank(whole, rank)
    named = {} if uri != whole else {"rank": {"index": rank, "of": ranks}}
    source: Optional[dict[str, Any]] = extra.get("source")
    return stream(
        uri, device=extra.get("device", "cpu"), timeout=extra.get("timeout"),
        credentials=credentials(source=source) if source else None, spec={"source": named} if named else None,
    )


def _secondary(source: Any, extra: Mapping[str, Any], ranks: int) -> Iterator[tuple[str, Any]]:
    """Weights that a model wants from elsewhere, as vLLM and SGLang describe them."""
    uri = uri_of(source.model_or_path, getattr(source, "revision", None))
    folder = getattr(source, "subfolder", None)
    if folder:
        uri = f"{uri.rstrip('/')}/{folder.strip('/')}/"
    found = _opened(uri, getattr(source, "allow_patterns_overrides", None), extra, ranks)
    return ((source.prefix + name, tensor) for name, tensor in found)


def all_weights(
    model: Any, place: str, revision: Optional[str], extra: Mapping[str, Any], ranks: int, leased: Optional[PoolModel] = None
) -> Iterator[tuple[str, Any]]:
    """weights(), and after them those that the engine's module wants from elsewhere."""
    yield from weights(place, extra, ranks, revision, leased)
    elsewhere = {key: extra[key] for key in ELSEWHERE if key in extra}
    for source in getattr(model, "secondary_weights", ()):
        yield from _secondary(source, elsewhere, ranks)
