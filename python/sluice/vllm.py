"""vLLM's loader: `vllm serve DIR --load-format sluice`. The entry point of group vllm.general_plugins is register().

`--model-loader-extra-config '{"uri": "s3://models/llama/"}'` loads the weights from a URI, `{"model": "llama"}` from the pool of this
machine; without it they come from the model's own path. Each rank takes its parts of a tensor by vLLM's own rules, and reads no others.
"""
from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Iterator
from typing import Any

from . import _engines
from ._dtypes import library

__all__ = ["register"]


def _loader() -> Any:
    base = library("vllm.model_executor.model_loader.default_loader").DefaultModelLoader

    class SluiceModelLoader(base):  # type: ignore[misc,valid-type,unused-ignore]
        """vLLM's own loader, its check of what got no weights included, but for where the weights come from."""

        def __init__(self, load_config: Any) -> None:
            self.extra = _engines.checked(load_config.model_loader_extra_config)
            plain = copy.copy(load_config)  # vLLM's own loader refuses keys that are not its own
            plain.model_loader_extra_config = {}
            base.__init__(self, plain)

        def download_model(self, model_config: Any) -> None:
            """Nothing is kept on a disk."""

        def get_all_weights(self, model_config: Any, model: Any) -> Iterator[tuple[str, Any]]:
            """In the order in which they lie, each dropped before the next; one of several ranks reads its parts."""
            ranks = _engines.ranks_of("vllm.distributed")
            return _engines.all_weights(model, model_config.model, model_config.revision, self.extra, ranks)

        def track_weights_loading(self, model: Any, loaded_weights: Any, *more: Any, **options: Any) -> None:
            """vLLM's own check leaves out linear layers and embeddings of models that are not quantized. What lacks there is said."""
            check, loaded = base.track_weights_loading, loaded_weights and set(loaded_weights)
            check(self, model, loaded_weights, *more, **options)
            if loaded and "quantized" in inspect.signature(check).parameters:
                try:
                    check(self, model, loaded, quantized=True)
                except ValueError as error:
                    warnings.warn(f"vLLM goes on without weights: {error}", RuntimeWarning, stacklevel=2)

    return SluiceModelLoader


def register() -> None:
    """Called by vLLM in each of its processes, maybe more than once."""
    loaders = library("vllm.model_executor.model_loader")
    if "sluice" not in getattr(loaders, "_LOAD_FORMAT_TO_MODEL_LOADER", {}):
        loaders.register_model_loader("sluice")(_loader())
