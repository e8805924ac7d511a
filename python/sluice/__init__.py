"""Model weights: opened, loaded and saved wherever they are, and shared by the processes of a machine.

    import sluice
    model = sluice.open("s3://models/gpt-j-6b/")            # reads headers only
    rows = model.slice("lm_head.weight")[0:128, ::2]        # fetches these rows only
    tensors = sluice.load("hf://org/name", device="cuda:0") # every tensor, checked
    sluice.save(tensors, "model.tensors")

    model = sluice.attach("gpt-j-6b")                       # of this machine's pool; may still be loading
    weight = model["lm_head.weight"].torch()                # waits for this tensor alone

No framework is imported unless it is used, and of this package's modules those that are.
"""
from importlib import import_module as _import_module
from typing import TYPE_CHECKING, Any

from ._error import (
    SluiceConnectionError, SluiceError, SluiceNotFoundError, SluicePermissionError, SluiceTimeoutError, SluiceValueError,
)
from ._library import library as _library

_MODULES = {  # a name brings its module when it is used for the first time
    "_aio": ("aattach", "aload", "aload_into_module", "aopen", "apull", "asave", "astream"), "_edit": ("Editor", "edit"),
    "_files": ("File", "Object", "ls", "open_file", "pull"), "_key": ("Key",), "_load": ("load", "stream"),
    "_model": ("Meta", "Model", "OpenTensor", "Slice", "open"), "_module": ("load_into_module",), "_options": ("Credentials", "credentials"),
    "_pool": ("Deposit", "Part", "PoolModel", "Room", "Tensor", "attach"), "_values": ("Values",), "_write": ("Writer", "save"), "pool": ("pool",),
}
if TYPE_CHECKING:
    from . import pool
    from ._aio import aattach, aload, aload_into_module, aopen, apull, asave, astream
    from ._edit import Editor, edit
    from ._files import File, Object, ls, open_file, pull
    from ._key import Key
    from ._load import load, stream
    from ._model import Meta, Model, OpenTensor, Slice
    from ._model import open_model
    from ._module import load_into_module
    from ._options import Credentials, credentials
    from ._pool import Deposit, Part, PoolModel, Room, Tensor, attach
    from ._values import Values
    from ._write import Writer, save

    open = open_model  # not in __all__: `from sluice import *` leaves Python's open() as it is
else:
    _PLACES = {name: module for module, names in _MODULES.items() for name in names}

    def __getattr__(name: str) -> Any:
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = _import_module(f".{_PLACES[name]}", __name__)
        found = globals()[name] = module if name == "pool" else getattr(module, "open_model" if name == "open" else name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *_PLACES})

__version__ = _library.sluice_version().decode()
__all__ = [
    "Credentials", "Deposit", "Editor", "File", "Key", "Meta", "Model", "Object", "OpenTensor", "Part", "PoolModel", "Room", "Slice",
    "SluiceConnectionError", "SluiceError", "SluiceNotFoundError", "SluicePermissionError", "SluiceTimeoutError", "SluiceValueError", "Tensor", "Values", "Writer", "aattach", "aload", "aload_into_module", "aopen", "apull", "asave", "astream", "attach",
    "credentials", "edit", "load", "load_into_module", "ls", "open_file", "pool", "pull", "save", "stream",
]
