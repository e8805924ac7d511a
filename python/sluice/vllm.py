"""vLLM's loader: `vllm serve DIR --load-format sluice`. The entry point of group vllm.general_plugins is register().

`--model-loader-extra-config '{"uri": "s3://models/llama/"}'` loads the weights from a URI, `{"model": "llama"}` from the pool of this
machine; without it they come from the model's own path. Each rank takes its parts of a tensor by vLLM's own rules, and reads no others.
With `"deposit": true` a start keeps what it made of a model of the pool there, for the starts after it. With `"sharded_state": true` each
rank loads its own files, as vLLM's load format of that name.
"""
from __future__ import annotations

import copy
import inspect
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Optional, cast

from . import _deposits, _engines, _ranks
from ._dtypes import library
from ._pool import PoolModel

__all__ = ["register"]


def _is_draft(load_config: Any, vllm_config: Any, model_config: Any) -> bool:
    """Is it the small model of speculative decoding, of other weights than the model's, and has no loader's configuration of its own?"""
    speculative = getattr(vllm_config, "speculative_config", None)
    draft = getattr(speculative, "draft_model_config", None)
    if draft is None or getattr(speculative, "draft_load_config", None) == load_config:
        return False
    main = getattr(speculative, "target_model_config", None) or vllm_config.model_config
    return bool(model_config.model == draft.model != main.model)


def _kept(loader: Any) -> Optional[Callable[[str], bool]]:
    """What vLLM's own loader leaves out, file by file or weight by weight: experts of other ranks, and what an encoder alone has no use for."""
    experts = getattr(loader, "local_expert_ids", None)
    prefixes = getattr(loader, "_encoder_only_lm_prefixes", None)
    if experts is None and prefixes is None:
        return None
    mapper = getattr(loader, "_encoder_only_weights_mapper", None)

    def keep(name: str) -> bool:
        if experts is not None and library("vllm.model_executor.model_loader.ep_weight_filter").should_skip_weight(name, experts):
            return False
        mapped: Optional[str] = name if mapper is None else next(iter(mapper.apply_list([name])), None)
        return prefixes is None or mapped is None or not mapped.startswith(tuple(prefixes))

    return keep


# Of each module the path of its model when it was first loaded; and those whose reload has not come to its end.
_started: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_unfinished: weakref.WeakSet[Any] = weakref.WeakSet()


def _reload(model: Any, weights: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """vLLM (0.32) keeps what came before a reload broke off, and counts it as of the next one, which leaves other parameters without weights."""
    if model in _unfinished:
        raise RuntimeError("the last reload of this model broke off, and vLLM would mix its parts with those of the next one: start the engine again")
    _unfinished.add(model)
    yield from weights
    _unfinished.discard(model)


def _loader() -> Any:
    base = library("vllm.model_executor.model_loader.default_loader").DefaultModelLoader

    class SluiceModelLoader(base):  # type: ignore[misc,valid-type,unused-ignore]
        """vLLM's own loader, its check of what got no weights included, but for where the weights come from."""

        def __init__(self, load_config: Any) -> None:
            self.given, self.extra = load_config, _engines.checked(load_config.model_loader_extra_config)
            self.configured: Any = None
            self.starts, self.has_all, self.leased = False, False, cast("Optional[PoolModel]", None)
            plain = copy.copy(load_config)  # vLLM's own loader refuses keys that are not its own
            plain.model_loader_extra_config = {}
            base.__init__(self, plain)

        def load_model(self, vllm_config: Any, model_config: Any, *more: Any, **options: Any) -> Any:
            """A loader is made for each model: of a draft model the weights are others."""
            self.configured = vllm_config
            if _is_draft(self.given, vllm_config, model_config):
                self.extra = _engines.of_draft(self.extra)
            return base.load_model(self, vllm_config, model_config, *more, **options)

        def load_sharded_state(self, model: Any, model_config: Any) -> None:
            """What vLLM saved of this rank."""
            ranks = _engines.ranks_of("vllm.distributed")
            rank = self.extra.get("rank", _engines.rank_of("vllm.distributed"))
            _ranks.fill(model, _engines.weights_of_rank(model_config.model, model_config.revision, self.extra, rank, ranks), rank)

        def load_weights(self, model: Any, model_config: Any) -> None:
            """As vLLM's own, or what an earlier start deposited, or each rank's own files."""
            _started[model], self.starts = model_config.model, True
            if self.extra.get("sharded_state"):
                self.load_sharded_state(model, model_config)
                return
            if not self.extra.get("deposit"):
                base.load_weights(self, model, model_config)
                return
            key = _deposits.key_of("vllm", model, {"model": model_config, "all": self.configured}, "vllm.distributed")
            with _deposits.Start(self.extra, key, model) as start:
                if not start.take():
                    self.leased = start.source
                    base.load_weights(self, model, model_config)
                    start.keep(self.has_all)

        def download_model(self, model_config: Any) -> None:
            """Nothing is kept on a disk."""

        def get_all_weights(self, model_config: Any, model: Any) -> Iterator[tuple[str, Any]]:
            """In the order in which they lie, each dropped before the next; one of several ranks reads its parts. vLLM asks a new loader when
            it reloads a model in place, maybe from a `weights_path`, which it has made the model's own path by then."""
            extra, ranks = self.extra, _engines.ranks_of("vllm.distributed")
            if not self.starts and _started.setdefault(model, model_config.model) != model_config.model:
                extra = _engines.of_elsewhere(extra)
            if extra.get("sharded_state"):
                raise ValueError("vLLM does not reload files of ranks (sharded_state) in place: start it again, or give a weights_path")
            wanted = _engines.Wanted(keep=_kept(self), consolidated=True)
            found = _engines.all_weights(model, model_config.model, model_config.revision, extra, ranks, self.leased, wanted)
            return found if self.starts else _reload(model, found)

        def track_weights_loading(self, model: Any, loaded_weights: Any, *more: Any, **options: Any) -> None:
            """vLLM's own check leaves out linear layers and embeddings of models that are not quantized. What lacks there is said."""
            check, loaded = base.track_weights_loading, loaded_weights and set(loaded_weights)
            check(self, model, loaded_weights, *more, **options)
            if loaded and "quantized" in inspect.signature(check).parameters:
                try:
                    check(self, model, loaded, quantized=True)
                    self.has_all = True
                except ValueError as error:
                    warnings.warn(f"vLLM goes on without weights: {error}", RuntimeWarning, stacklevel=2)

    return SluiceModelLoader


def register() -> None:
    """Called by vLLM in each of its processes, maybe more than once."""
    loaders = library("vllm.model_executor.model_loader")
    if "sluice" not in getattr(loaders, "_LOAD_FORMAT_TO_MODEL_LOADER", {}):
        loaders.register_model_loader("sluice")(_loader())
