"""SGLang's loader: `sglang serve --model-path DIR --load-format sluice`. The entry point of group sglang.srt.plugins is register().

SGLang's load formats are an enum, so that three things are done: the format is allowed on the command line, LoadConfig lets it through, and
the loader for it is ours. `--model-loader-extra-config` is as of sluice.vllm, without "deposit" and "sharded_state".
"""
from __future__ import annotations

import contextlib
import copy
import json
from typing import Any

from . import _engines
from ._dtypes import library

__all__ = ["register"]

FORMAT = "sluice"
_done: list[bool] = []


def _extra(load_config: Any) -> dict[str, Any]:
    given = getattr(load_config, "model_loader_extra_config", None)
    extra = _engines.checked(json.loads(given) if isinstance(given, str) and given else given)
    for key in ("deposit", "sharded_state"):
        if extra.get(key):
            raise ValueError(f"{key} in model_loader_extra_config is for vLLM alone: leave it out")
    return extra


# Who tells the arguments of the server; the second is that of versions before 0.5.23, and raises an error in it.
ARGUMENTS = (("sglang.srt.runtime_context", "get_server_args"), ("sglang.srt.server_args", "get_global_server_args"))


def _is_draft(model_config: Any) -> bool:
    """Is it the small model of speculative decoding, of other weights than the model's?"""
    if not getattr(model_config, "is_draft_model", False):
        return False
    for module, name in ARGUMENTS:
        with contextlib.suppress(ImportError, AttributeError, ValueError, RuntimeError):
            return bool(getattr(library(module), name)().model_path != model_config.model_path)
    return True


def _loader() -> Any:
    base = library("sglang.srt.model_loader.loader").DefaultModelLoader

    class SluiceModelLoader(base):  # type: ignore[misc,valid-type,unused-ignore]
        """Streams a model's weights into SGLang's own module."""

        def __init__(self, load_config: Any) -> None:
            library("sglang.srt.model_loader.loader").BaseModelLoader.__init__(self, load_config)
            self.extra = _extra(load_config)

        def download_model(self, model_config: Any) -> None:
            """Nothing is kept on a disk."""

        def _get_all_weights(self, model_config: Any, model: Any) -> Any:
            ranks = _engines.ranks_of("sglang.srt.distributed")
            extra = _engines.of_draft(self.extra) if _is_draft(model_config) else self.extra
            found = _engines.all_weights(model, model_config.model_path, getattr(model_config, "revision", None), extra, ranks)
            layer = getattr(self.load_config, "draft_model_idx", None)  # of a model's own layers for speculation one is wanted
            return found if layer is None else self._filter_mtp_weights(found, "", layer)

    return SluiceModelLoader


def _verify(original: Any, self: Any, *arguments: Any, **options: Any) -> Any:
    return None if self.load_format == FORMAT else original(self, *arguments, **options)


def _get(original: Any, load_config: Any, *arguments: Any, **options: Any) -> Any:
    if load_config.load_format != FORMAT:
        return original(load_config, *arguments, **options)
    made, plain = _loader(), copy.copy(load_config)
    if arguments or options:  # a model's configuration, by which SGLang may want a loader that quantizes
        plain.load_format, plain.model_loader_extra_config = library("sglang.srt.configs.load_config").LoadFormat.AUTO, {}
        other: object = original(plain, *arguments, **options)
        if other.__class__ is not made.__base__:
            raise ValueError(f"SGLang wants to load this model by {other.__class__.__name__}, which reads files itself: leave out --load-format sluice")
    return made(load_config)


def register() -> None:
    """Called by SGLang before it parses arguments, and in its other processes."""
    if _done:
        return
    hooks = library("sglang.srt.plugins.hook_registry")
    library("sglang.srt.arg_groups.choices").add_load_format_choices([FORMAT])
    around = hooks.HookType.AROUND
    hooks.HookRegistry.register("sglang.srt.configs.load_config.LoadConfig._verify_load_format", _verify, around)
    hooks.HookRegistry.register("sglang.srt.model_loader.loader.get_model_loader", _get, around)
    _done.append(True)
