"""What engines' loaders have in common: where a model's weights are, and one tensor after the other."""
from __future__ import annotations

import contextlib
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Optional, cast

from . import _parts, _ranks
from ._dtypes import library
from ._files import ls
from ._key import Key
from ._load import stream
from ._model import open_model
from ._options import credentials
from ._pool import PoolModel, attach

KEYS = ("key_file", "passphrase_file")  # of encrypted weights
KNOWN = ("uri", "model", "socket", "timeout", "device", "source", "deposit_key", "deposit", "draft", "sharded_state", "rank", *KEYS)
ELSEWHERE = ("timeout", "device", "source", *KEYS)  # what of it goes for weights that lie elsewhere, too


class Wanted(NamedTuple):
    """Which of the weights an engine's module wants."""

    include: Optional[list[str]] = None  # patterns of objects; None: all
    keep: Optional[Callable[[str], bool]] = None  # of a weight, by its name; None: all
    consolidated: bool = False  # of two sets in one folder, Mistral's and transformers', which one


def checked(extra: Any) -> dict[str, Any]:
    """What the engine was given for its loader, or ValueError."""
    if not extra:
        return {}
    if not isinstance(extra, Mapping):
        raise ValueError(f"model_loader_extra_config is a mapping, not {type(extra).__name__}")
    given: dict[str, Any] = dict(cast("Mapping[str, Any]", extra))
    if "key" in given:
        warnings.warn("key in model_loader_extra_config is called deposit_key", DeprecationWarning, stacklevel=2)
        given.setdefault("deposit_key", given.pop("key"))
    unknown = sorted(set(given) - set(KNOWN))
    if unknown:
        raise ValueError(f"unknown in model_loader_extra_config: {', '.join(unknown)}; known are {', '.join(KNOWN)}")
    if "uri" in given and "model" in given:
        raise ValueError("model_loader_extra_config has both a uri and a model of the pool")
    if all(name in given for name in KEYS):
        raise ValueError("model_loader_extra_config has both a key_file and a passphrase_file")
    if given.get("deposit") and ("model" not in given or "deposit_key" in given):
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
    return {**of_elsewhere(extra), **extra.get("draft", {})}


def of_elsewhere(extra: Mapping[str, Any]) -> dict[str, Any]:
    """For weights that are not where `uri` or `model` say."""
    return {key: extra[key] for key in ELSEWHERE if key in extra}


def from_pool(name: str, extra: Mapping[str, Any], leased: Optional[PoolModel] = None) -> Iterator[tuple[str, Any]]:
    """Tensors of a model of the pool, each as soon as it is there; of one that the caller has attached to, if it has."""
    where: dict[str, Any] = {"deposit": extra.get("deposit_key"), "socket": extra.get("socket"), "timeout": extra.get("timeout")}
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


def key_of(extra: Mapping[str, Any]) -> Optional[Key]:
    """That the weights are encrypted with."""
    if "key_file" in extra:
        return Key.from_file(extra["key_file"])
    if "passphrase_file" not in extra:
        return None
    with open(extra["passphrase_file"], encoding="utf-8") as file:
        return Key.from_string(file.read().rstrip("\r\n"))


def reach_of(extra: Mapping[str, Any]) -> dict[str, Any]:
    """How weights are reached and read, for open() and stream()."""
    source: Optional[dict[str, Any]] = extra.get("source")
    return {
        "device": extra.get("device", "cpu"), "timeout": extra.get("timeout"), "key": key_of(extra),
        "credentials": credentials(source=source) if source else None,
    }


def _one_set(uri: str, consolidated: bool, reach: Mapping[str, Any]) -> Optional[dict[str, Any]]:
    """Of a folder that has the same weights twice, as Mistral's and as transformers', which objects are one of the sets. None: it has one."""
    if not (uri.endswith("/") or os.path.isdir(uri) or uri.startswith("hf://")):
        return None
    folder = uri if uri.endswith("/") else uri + "/"
    names = [found.name for found in ls(folder, include="*.safetensors", credentials=reach["credentials"], timeout=reach["timeout"])]
    ours = [name for name in names if name.startswith("consolidated")]
    if not ours or len(ours) == len(names):
        return None
    return {"include" if consolidated else "exclude": ["consolidated*"]}


def _opened(uri: str, extra: Mapping[str, Any], ranks: int, wanted: Wanted) -> Iterator[tuple[str, Any]]:
    reach = reach_of(extra)
    chosen = {"include": wanted.include} if wanted.include else _one_set(uri, wanted.consolidated, reach)
    spec = {"source": chosen} if chosen else None
    if ranks == 1:
        return stream(uri, framework="torch", filter=wanted.keep, spec=spec, **reach)
    return _parts.weights(open_model(uri, framework="torch", spec=spec, **reach), wanted.keep)


def weights(
    place: str, extra: Mapping[str, Any], ranks: int = 1, revision: Optional[str] = None, leased: Optional[PoolModel] = None,
    wanted: Wanted = Wanted(),
) -> Iterator[tuple[str, Any]]:
    """(name, tensor) of what the loader was told to load, else of the engine's own model path. One of several ranks reads of a large
    tensor what it takes."""
    if "model" in extra:
        keep = wanted.keep
        return ((name, tensor) for name, tensor in from_pool(extra["model"], extra, leased) if keep is None or keep(name))
    return _opened(extra.get("uri") or uri_of(place, revision), extra, ranks, wanted)


def weights_of_rank(place: str, revision: Optional[str], extra: Mapping[str, Any], rank: int, ranks: int) -> Iterator[tuple[str, Any]]:
    """(name, tensor) of the files of one rank alone: of a folder with those of all, or of what `{rank}` in a name is."""
    if "model" in extra:
        return from_pool(_ranks.of_rank(extra["model"], rank), extra)
    whole = extra.get("uri") or uri_of(place, revision)
    uri = _ranks.of_rank(whole, rank)
    named = {} if uri != whole else {"rank": {"index": rank, "of": ranks}}
    return stream(uri, framework="torch", spec={"source": named} if named else None, **reach_of(extra))


def both(unused: Optional[Callable[[str], bool]], keep: Optional[Callable[[str], bool]]) -> Optional[Callable[[str], bool]]:
    """What is not unused, and is kept."""
    if unused is None:
        return keep
    return lambda name: not unused(name) and (keep is None or keep(name))


def _secondary(source: Any, extra: Mapping[str, Any], ranks: int, wanted: Wanted) -> Iterator[tuple[str, Any]]:
    """Weights that a model wants from elsewhere, as vLLM and SGLang describe them."""
    uri = uri_of(source.model_or_path, getattr(source, "revision", None))
    folder = getattr(source, "subfolder", None)
    if folder:
        uri = f"{uri.rstrip('/')}/{folder.strip('/')}/"
    found = _opened(uri, extra, ranks, wanted._replace(
        include=getattr(source, "allow_patterns_overrides", None), keep=both(getattr(source, "is_unused_weight", None), wanted.keep)
    ))
    return ((source.prefix + name, tensor) for name, tensor in found)


def all_weights(
    model: Any, place: str, revision: Optional[str], extra: Mapping[str, Any], ranks: int, leased: Optional[PoolModel] = None,
    wanted: Wanted = Wanted(),
) -> Iterator[tuple[str, Any]]:
    """weights(), and after them those that the engine's module wants from elsewhere. wanted is what its loader leaves out of either."""
    own = wanted._replace(
        include=getattr(model, "allow_patterns_overrides", None), keep=both(getattr(model, "is_unused_checkpoint_weight", None), wanted.keep)
    )
    yield from weights(place, extra, ranks, revision, leased, own)
    for source in getattr(model, "secondary_weights", ()):
        yield from _secondary(source, of_elsewhere(extra), ranks, wanted)
