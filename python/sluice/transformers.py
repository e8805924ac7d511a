"""transformers models from a URI, a directory or the pool, in one line."""
from __future__ import annotations

import os
import tempfile
from collections.abc import Generator
from typing import Any, Optional, Union

from ._blocks import contextmanager
from ._cancel import Limit
from ._dtypes import library
from ._files import ls, pull
from ._key import Secret
from ._kinds import Texts, texts
from ._model import open_model
from ._options import Credentials
from ._pool import attach
from ._progress import Wanted

__all__ = ["from_pool", "from_pretrained"]

WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.tensors", "*.gguf", "*.index.json", "*.msgpack", "*.h5")


@contextmanager
def _folder(files: Any) -> Generator[str, None, None]:
    """Small files as a folder, as transformers wants them."""
    with tempfile.TemporaryDirectory(prefix="sluice-") as place:
        for name, tensor in files.items():
            if not {"", ".", ".."}.isdisjoint(name.split("/")):  # stores have objects of any name
                raise ValueError(f"the model has a file {name!r}, which would not lie in its folder: leave it out with exclude=")
            path = os.path.join(place, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(tensor.memoryview())
        yield place


def _made(cls: Any, place: str, state: dict[str, Any], options: dict[str, Any]) -> Any:
    transformers = library("transformers")
    config = options.pop("config", None)
    if config is None:
        config = transformers.AutoConfig.from_pretrained(place, trust_remote_code=options.get("trust_remote_code", False))
    if cls is None:
        names: list[str] = getattr(config, "architectures", None) or []
        if not names or not hasattr(transformers, names[0]):
            raise ValueError(f"config.json names no class of transformers: {names}; give cls")
        cls = getattr(transformers, names[0])
    elif hasattr(cls, "_model_mapping"):  # AutoModel and its like know the class by the configuration
        cls = cls._model_mapping[type(config)]
    old = options.pop("torch_dtype", None)  # as transformers called it
    dtype = options.pop("dtype", old)
    if dtype is None:
        dtype = next((tensor.dtype for tensor in state.values() if tensor.is_floating_point()), None)
    return cls.from_pretrained(None, config=config, state_dict=state, dtype=dtype, **options)


def from_pretrained(
    uri: Union[str, "os.PathLike[str]"], cls: Any = None, *, device: Any = "cpu", credentials: Optional[Credentials] = None,
    key: Secret = None, include: Optional[Texts] = None, exclude: Optional[Texts] = None,
    spec: Optional[dict[str, Any]] = None, timeout: Optional[float] = None, progress: Wanted = None, **options: Any,
) -> Any:
    """A transformers model from any URI, or a directory: `sluice.transformers.from_pretrained("s3://models/llama/")`.

    cls       a class of transformers, AutoModelForCausalLM and its like included; None: what config.json names.
    include   a shell pattern of the folder's objects, or several; exclude: of those to leave out, such as "checkpoint-*/*".
    options   of from_pretrained(); dtype (torch_dtype) is that of the weights unless given.

    key, spec, timeout and progress are as of sluice.open().
    """
    chosen = {"include": texts(include, "include"), "exclude": texts(exclude, "exclude")}
    whole: dict[str, Any] = dict(spec or {})
    whole["source"] = {**whole.get("source", {}), **{name: value for name, value in chosen.items() if value}}
    limit = Limit(timeout)
    with limit.step():
        opened = open_model(uri, framework="torch", device=device, credentials=credentials, key=key, spec=whole if whole["source"] else spec)
    with opened as model, limit.step(), _folder(model.files) as place:
        return _made(cls, place, model.load(progress=progress), options)


def from_pool(
    name: str, cls: Any = None, *, device: Any = "cpu", socket: Optional[str] = None, timeout: Optional[float] = None,
    **options: Any,
) -> Any:
    """The same from the pool: parameters are the pool's memory, shared by every process that does so."""
    model = attach(name, device, socket=socket, timeout=timeout)
    with _folder(model.files) as place:
        return _made(cls, place, {key: tensor.torch() for key, tensor in model.items()}, options)


def pull_without_weights(uri: Any, directory: Any, credentials: Optional[Credentials] = None) -> list[str]:
    """Configuration and tokenizer of a model into a directory; their names."""
    small = [found.name for found in ls(uri, exclude=WEIGHTS, credentials=credentials)]
    if small:
        pull(uri, directory, exclude=WEIGHTS, credentials=credentials)
    return small
