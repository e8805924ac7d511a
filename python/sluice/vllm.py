"""vLLM's loader: `vllm serve DIR --load-format sluice`. The entry point of group vllm.general_plugins is register().

`--model-loader-extra-config '{"uri": "s3://models/llama/"}'` loads the weights from a URI, `{"model": "llama"}` from the pool of this
machine; without it they come from the model's own path. Each rank takes its parts of a tensor by vLLM's own rules, and reads no others.
"""
from __future__ import annotations

from typing import Any

from . import _engines
from ._dtypes import library

__all__ = ["register"]


def _loader() -> Any:
    base = library("vllm.model_executor.model_loader.base_loader").BaseModelLoader

    class SluiceModelLoader(base):  # type: ignore[misc,valid-type,unused-ignore]
        """Streams a model's weights into vLLM's own module."""

        def __init__(self, load_config: Any) -> None:
            super().__init__(load_config)  # pyright: ignore
            self.extra = _engines.checked(load_config.model_loader_extra_config)

        def download_model(self, model_config: Any) -> None:
            """Nothing is kept on a disk."""

        def load_weights(self, model: Any, model_config: Any) -> None:
            """In the order in which they lie, each dropped before the next; one of several ranks reads its parts."""
            ranks = _engines.ranks_of("vllm.distributed")
            model.load_weights(_engines.weights(model_config.model, self.extra, ranks))

    return SluiceModelLoader


def register() -> None:
    """Called by vLLM in each of its processes, maybe more than once."""
    loaders = library("vllm.model_executor.model_loader")
    if "sluice" not in getattr(loaders, "_LOAD_FORMAT_TO_MODEL_LOADER", {}):
        loaders.register_model_loader("sluice")(_loader())
