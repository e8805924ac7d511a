"""What an engine's module holds when it has loaded a model, kept in the pool for the engine's next start.

An engine fuses, cuts and renames what it loads. All of that has been done to what is kept here, and nothing yet of what it does to its
own module afterwards (packing for its kernels, say): each start does that again, as after any load. So a start with a deposit differs from one
without in nothing but where the bytes come from.
"""
from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping
from typing import Any, Optional, cast

from ._dtypes import library, of_torch
from ._error import SluiceError
from ._pool import Deposit, PoolModel, attach

ABSENT = ("absent", "stale", "busy")  # nobody deposited it; from another version; another start is at it
TAKEN = ("exists", "busy")  # another start was faster
ALIGN = 256
TEXT = 1 << 16  # longer ones are told apart by their hash
RANKS = ("tp", "pp", "dp", "ep", "pcp", "dcp")


def _plain(value: Any, depth: int = 2) -> Any:
    """What can be compared of a module's attribute: numbers, texts, these in each other and in objects. Tensors by place and version."""
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value if not isinstance(value, (str, bytes)) or len(value) < TEXT else hash(value)
    if isinstance(value, library("torch").Tensor):
        return "tensor", id(value), value._version
    if isinstance(value, (list, tuple)):
        return [_plain(each, depth) for each in value[:64]], len(value)  # pyright: ignore
    if isinstance(value, dict):
        return [(str(key), _plain(each, depth)) for key, each in list(value.items())[:64]], len(value)  # pyright: ignore
    inner = getattr(value, "__dict__", None)
    if depth and isinstance(inner, dict) and not isinstance(value, (type, library("torch").nn.Module)):
        return type(value).__name__, [(key, _plain(each, depth - 1)) for key, each in inner.items()]  # pyright: ignore
    return type(value).__name__, id(value)


def attributes(module: Any) -> dict[str, Any]:
    """Of a module and those in it all that is neither a parameter nor a buffer: what loading a model changes of these no deposit has."""
    hidden = ("_parameters", "_buffers", "_modules")
    found: dict[str, Any] = {}
    for path, inner in module.named_modules():
        own: dict[str, Any] = cast("dict[str, Any]", vars(inner))
        found.update({f"{path}.{name}": _plain(value) for name, value in own.items() if name not in hidden})
    return found


def tensors(module: Any) -> dict[str, Any]:
    """Parameters and buffers by name, those that are not saved included; a tied one once."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def outline(found: Mapping[str, Any]) -> list[tuple[str, str, tuple[int, ...]]]:
    """Names, types and shapes."""
    return [(name, str(tensor.dtype), tuple(tensor.shape)) for name, tensor in found.items()]


def _ranks(distributed: str) -> list[Any]:
    """(rank, of) of each kind of parallelism that the engine's module knows."""
    found: list[Any] = []
    for kind in RANKS:
        try:
            group = getattr(library(distributed), f"get_{kind}_group")()
            found.append((kind, int(group.rank_in_group), int(group.world_size)))
        except (ImportError, AttributeError, AssertionError):
            continue
    return found


def _said(config: Any) -> Any:
    """All that a configuration says, as far as it is the same at each start."""
    if hasattr(config, "compute_hash"):
        return type(config).__name__, config.compute_hash()
    if hasattr(config, "to_json_string"):
        return config.to_json_string()
    return None


def _gpu() -> Any:
    cuda = library("torch").cuda
    return [cuda.get_device_name(), *cuda.get_device_capability()] if cuda.is_available() else "cpu"


def key_of(engine: str, module: Any, configs: Mapping[str, Any], distributed: str) -> str:
    """Everything that must be the same for the tensors to be of use: engine, versions, module, configuration, ranks, device. The version of the
    model itself is not in it: the pool binds each deposit to the one that it was made from."""
    torch, version = library("torch"), str(getattr(library(engine), "__version__", ""))
    model_config = configs["model"]
    said = {
        "engine": [engine, version, 1], "torch": torch.__version__, "module": f"{type(module).__module__}.{type(module).__qualname__}",
        "tensors": outline(tensors(module)), "ranks": _ranks(distributed), "gpu": _gpu(),
        "dtype": str(getattr(model_config, "dtype", "")), "quantization": str(getattr(model_config, "quantization", "")),
        "hf": _said(getattr(model_config, "hf_config", None)), "configs": {name: _said(one) for name, one in configs.items()},
    }
    text = json.dumps(said, sort_keys=True, default=str)
    return f"{engine}-{version}-{hashlib.sha256(text.encode()).hexdigest()}"


class Start:
    """One start of an engine, which takes what is there, or keeps what it made. The model's lease lasts as long as the block."""

    def __init__(self, extra: Mapping[str, Any], key: str, module: Any) -> None:
        self._name, self._key, self._module = extra["model"], key, module
        self._where: dict[str, Any] = {"socket": extra.get("socket"), "timeout": extra.get("timeout")}
        self._device = extra.get("device", "cpu")
        self.source: Optional[PoolModel] = None  # what must be loaded: a deposit is bound to its version
        self._before: Any = None

    def __enter__(self) -> "Start":
        return self

    def __exit__(self, *_: Any) -> None:
        if self.source is not None:
            self.source.close()

    def take(self) -> bool:
        """Fill the module with what an earlier start deposited. False: load it, from source."""
        found = tensors(self._module)
        if any(tensor.is_meta for tensor in found.values()):
            warnings.warn("the engine makes this model's tensors while it loads: it is neither taken from a deposit nor kept as one",
                          RuntimeWarning, stacklevel=3)
            return False
        self._before = outline(found), attributes(self._module)
        self.source = attach(self._name, self._device, **self._where)
        try:
            kept = attach(self._name, self._device, deposit=self._key, **self._where)
        except SluiceError as error:
            if error.code not in ABSENT:
                raise
            return False
        with kept, library("torch").no_grad():
            if {name: tuple(kept[name].shape) for name in kept} != {name: _stored(tensor) for name, tensor in found.items()}:
                raise ValueError(f"the deposit {self._key} of '{self._name}' does not fit the module: evict it")
            for name, tensor in found.items():
                tensor.copy_(kept[name].torch().reshape(tensor.shape))
        return True

    def keep(self, has_all: bool) -> None:
        """Deposit what the module holds now. What cannot be kept is said in a warning: the start itself is as good as any."""
        why = self._why_not(has_all)
        if not why and self.source is not None:
            try:
                self._deposit(self.source)
            except SluiceError as error:
                why = "" if error.code in TAKEN else str(error)
        if why:
            warnings.warn(f"'{self._name}' is not kept as a deposit, so the next start loads it again: {why}", RuntimeWarning, stacklevel=3)

    def _why_not(self, has_all: bool) -> str:
        if self._before is None:
            return ""  # take() has said it
        if getattr(self._module, "secondary_weights", ()):
            return "some of its weights lie elsewhere"
        if not has_all:
            return "the engine does not say that each tensor got weights"
        now = tensors(self._module)
        if outline(now) != self._before[0]:
            return "the engine exchanged tensors while it loaded"
        changed = [name for name, value in attributes(self._module).items() if self._before[1].get(name) != value]
        return f"loading changed more than tensors: {', '.join(sorted(changed)[:3])}" if changed else ""

    def _deposit(self, source: PoolModel) -> None:
        found = tensors(self._module)
        room = sum(-(-tensor.numel() * tensor.element_size() // ALIGN) * ALIGN for tensor in found.values())
        torch = library("torch")
        with Deposit(source, self._key, room, socket=self._where["socket"]) as new, torch.no_grad():
            for name, tensor in found.items():
                place = new.room(name, of_torch(tensor.dtype).name, _stored(tensor)).torch()
                place.copy_(tensor.detach().reshape(place.shape))


def _stored(tensor: Any) -> tuple[int, ...]:
    return tuple(int(size) for size in tensor.shape) or (1,)
