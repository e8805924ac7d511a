"""tensorizer.torch_compat: torch.save() and torch.load() with tensors in a .tensors file beside the pickle. The files are tensorizer's.

torch is given a module for pickling whose classes put a number where a storage would be. They are pickle's own in Python, since those ask
for persistent ids by methods that a subclass can reach.
"""
from __future__ import annotations

import _compat_pickle
import collections
import contextvars
import functools
import io
import logging
import os
import pickle
import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any, NamedTuple, Optional

from .._dtypes import library
from .._kinds import is_tuple
from .serialization import TensorDeserializer, TensorSerializer

__all__ = ["tensorizer_loading", "tensorizer_saving"]

logger = logging.getLogger(__name__)
_TAG, _VERSION = "TensorizerPickler", 0


class _Wish(NamedTuple):
    """What a context was entered with."""

    file_obj: Any
    function: Optional[Callable[..., Any]]
    options: dict[str, Any]
    suppress_weights_only: bool = False


_SAVING: contextvars.ContextVar[Optional[_Wish]] = contextvars.ContextVar("sluice_saving", default=None)
_LOADING: contextvars.ContextVar[Optional[_Wish]] = contextvars.ContextVar("sluice_loading", default=None)
_GUARDING: contextvars.ContextVar[bool] = contextvars.ContextVar("sluice_guarding", default=False)
_PICKLER: Any = getattr(pickle, "_Pickler")
_UNPICKLER: Any = getattr(pickle, "_Unpickler")


def _beside(file: Any) -> Any:
    """Where tensors go if nobody says it."""
    if isinstance(file, io.BytesIO):
        logger.warning("a BytesIO has no name: its tensors stay in it, unless file_obj says where else")
        return None
    try:
        return os.fsdecode(file) + ".tensors"
    except TypeError:
        return os.fsdecode(file.name) + ".tensors"


def _place(wish: _Wish, file: Any) -> Any:
    if wish.file_obj is None:
        return _beside(file)
    return wish.file_obj(file) if callable(wish.file_obj) else wish.file_obj


def _untyped(storage: Any) -> Any:
    return getattr(storage, "_untyped_storage", getattr(storage, "_storage", storage))


def _has_data(storage: Any) -> bool:
    inner = _untyped(storage)
    return bool(inner.device.type != "meta" and inner.data_ptr() != 0)


def _bytes_of(storage: Any) -> Any:
    """All of a storage as a tensor of bytes."""
    torch = library("torch")
    inner = _untyped(storage)
    return torch.empty(0, dtype=torch.uint8, device=inner.device).set_(inner)


def _saving_module(tensors: list[Any]) -> ModuleType:
    torch = library("torch")
    numbers: dict[Any, int] = {}

    class Pickler(_PICKLER):  # type: ignore[misc]
        """Storages become numbers."""

        def save(self, obj: Any, save_persistent_id: bool = True) -> Any:
            """As pickle's."""
            if save_persistent_id and torch.is_storage(obj) and _has_data(obj):
                inner = _untyped(obj)
                key = (inner.data_ptr(), inner.nbytes(), str(inner.device))
                if key not in numbers:
                    numbers[key] = len(tensors)
                    tensors.append(_bytes_of(obj))
                return self.save_pers((_TAG, _VERSION, "storage", numbers[key], getattr(obj, "dtype", None)))
            return super().save(obj, save_persistent_id)  # pyright: ignore

    return _module(Pickler, pickle.Unpickler)


def _loading_module(fetch: Callable[[], Any], safe: bool) -> ModuleType:
    got: list[Any] = []

    def storage(number: int, dtype: Any) -> Any:
        torch = library("torch")
        if not got:
            got.append(list(fetch()))
        inner = got[0][number].detach()
        inner = inner.untyped_storage() if hasattr(inner, "untyped_storage") else inner.storage()._untyped()
        return torch.storage.TypedStorage(wrap_storage=inner, dtype=dtype or torch.uint8, _internal=True)

    def ours(pid: Any) -> bool:
        return is_tuple(pid) and len(pid) >= 3 and bool(pid[0] == _TAG)

    def load_binpersid(self: Any) -> None:
        pid = self.stack.pop()
        if not ours(pid):
            self.append(self.persistent_load(pid))
            return
        if pid[1] > _VERSION:
            raise pickle.UnpicklingError(f"Unsupported TensorizerPickler data version ({pid[1]})")
        if pid[2] != "storage":
            raise pickle.UnpicklingError(f"Unsupported TensorizerPickler object type ({pid[2]})")
        self.append(storage(*pid[3:]))

    base = _guarded() if safe else _UNPICKLER

    dispatch = {**base.dispatch, pickle.BINPERSID[0]: load_binpersid}  # numbers become storages
    return _module(pickle.Pickler, type("Unpickler", (base,), {"dispatch": dispatch}))


def _refuse_global(what: str) -> Any:
    raise pickle.UnpicklingError(
        f"{what} is not on torch's list of what a file of weights may hold, and nothing of it was called: "
        "weights_only=False or suppress_weights_only=True is for files that are trusted"
    )


def _guarded() -> Any:
    """An unpickler that finds, calls and builds only what torch.load(weights_only=True) does: torch's own list, and what the program added."""
    own = library("torch._weights_only_unpickler")
    known: dict[str, Any] = {**getattr(own, "_get_allowed_globals")(), **getattr(own, "_get_user_allowed_globals", dict)()}
    torch = library("torch")

    def is_known(what: Any) -> bool:
        return any(what is one for one in known.values())

    def find_class(_self: Any, module: str, name: str) -> Any:
        module, name = _compat_pickle.NAME_MAPPING.get((module, name), (_compat_pickle.IMPORT_MAPPING.get(module, module), name))
        full = f"{module}.{name}"
        return known[full] if full in known else _refuse_global(full)

    def load_reduce(self: Any) -> None:
        arguments = self.stack.pop()
        function = self.stack[-1]
        self.stack[-1] = function(*arguments) if is_known(function) else _refuse_global(f"a call of {function!r:.80}")

    def load_newobj(self: Any) -> None:
        arguments, kind = self.stack.pop(), self.stack.pop()
        if kind is torch.nn.Parameter:
            self.append(kind(*arguments))
        elif isinstance(kind, type) and is_known(kind):
            self.append(kind.__new__(kind, *arguments))
        else:
            _refuse_global(f"an object of {kind!r:.80}")

    def load_build(self: Any) -> None:
        state, made = self.stack.pop(), self.stack[-1]
        if type(made) is torch.Tensor:
            made.set_(*state)
        elif type(made) is collections.OrderedDict:
            made.__dict__.update(state)
        elif is_known(type(made)):
            made.__setstate__(state) if hasattr(made, "__setstate__") else made.__dict__.update(state)
        else:
            _refuse_global(f"a state of {type(made)!r:.80}")

    def refuse(_self: Any) -> None:
        _refuse_global("an old kind of call")

    dispatch = {
        **_UNPICKLER.dispatch,
        pickle.REDUCE[0]: load_reduce,
        pickle.NEWOBJ[0]: load_newobj,
        pickle.BUILD[0]: load_build,
        **{code[0]: refuse for code in (pickle.INST, pickle.OBJ, pickle.NEWOBJ_EX, pickle.EXT1, pickle.EXT2, pickle.EXT4)},
    }
    return type("Guarded", (_UNPICKLER,), {"dispatch": dispatch, "find_class": find_class})


def _module(pickler: Any, unpickler: Any) -> ModuleType:
    made = ModuleType("sluice_pickle")

    def load(file: Any, **options: Any) -> Any:
        return unpickler(file, **options).load()

    def loads(data: Any, **options: Any) -> Any:
        return load(io.BytesIO(data), **options)

    made.__dict__.update({name: getattr(pickle, name) for name in pickle.__all__})
    made.__dict__.update(Pickler=pickler, Unpickler=unpickler, load=load, loads=loads)
    return made


def _refuse(pickle_module: Any) -> None:
    if pickle_module is not None and pickle_module is not pickle:
        raise ValueError(
            "Tensorizer-based torch serialization is incompatible with using a pickle_module other than the default"
        )


def _save(original: Any, wish: _Wish, obj: Any, file: Any, arguments: Any, options: Any) -> Any:
    place = _place(wish, file)
    tensors: list[Any] = []
    if place is None:
        return original(obj, file, *arguments, **options)
    result = original(obj, file, *arguments, **{**options, "pickle_module": _saving_module(tensors)})
    if not tensors:
        return result
    if wish.function is not None:
        wish.function(place, tensors, wish.options)
        return result
    serializer = TensorSerializer(place, **wish.options)
    serializer.write_state_dict(tensors)
    serializer.close()
    return result


def _fetched(place: Any, wish: _Wish) -> Any:
    if wish.function is not None:
        return wish.function(place, wish.options)
    with TensorDeserializer(place, **wish.options) as deserializer:
        return deserializer.tree()


def _load(original: Any, wish: _Wish, file: Any, arguments: Any, options: Any) -> Any:
    place = _place(wish, file)
    if wish.suppress_weights_only:
        options = {**options, "weights_only": False}
    if place is None:
        return original(file, *arguments, **options)
    safe = options.get("weights_only") is not False
    # torch takes a module only where it is told that it need not be safe: the module is.
    if safe or "weights_only" in options:
        options = {**options, "weights_only": False}
    token = _GUARDING.set(safe)
    try:
        return original(file, *arguments, **{**options, "pickle_module": _loading_module(lambda: _fetched(place, wish), safe)})
    finally:
        _GUARDING.reset(token)


class _Patch:
    """One function of torch, while anybody is inside; who is not gets the original."""

    def __init__(self, name: str, wrap: Callable[[Any], Any]) -> None:
        self._path, self._wrap, self._users = name.split("."), wrap, 0
        self._lock = threading.Lock()
        self._original: Any = None

    @contextmanager
    def entered(self) -> Generator[None, None, None]:
        """The first one puts it there, the last one takes it away."""
        place, name = functools.reduce(getattr, self._path[:-1], library("torch")), self._path[-1]
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._original = getattr(place, name)
                setattr(place, name, self._wrap(self._original))
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    setattr(place, name, self._original)


def _wrapped_save(original: Any) -> Any:
    @functools.wraps(original)
    def save(obj: Any, f: Any, pickle_module: Any = pickle, *arguments: Any, **options: Any) -> Any:
        wish = _SAVING.get()
        if wish is None:
            return original(obj, f, pickle_module, *arguments, **options)
        _refuse(pickle_module)
        return _save(original, wish, obj, f, (pickle_module, *arguments) if arguments else (), options)

    return save


def _wrapped_load(original: Any) -> Any:
    @functools.wraps(original)
    def load(f: Any, map_location: Any = None, pickle_module: Any = None, *arguments: Any, **options: Any) -> Any:
        wish = _LOADING.get()
        if wish is None:
            return original(f, map_location, pickle_module, *arguments, **options)
        _refuse(pickle_module)
        return _load(original, wish, f, (map_location,), options)

    return load


def _wrapped_script(original: Any) -> Any:
    @functools.wraps(original)
    def load(*arguments: Any, **options: Any) -> Any:
        if _GUARDING.get():
            _refuse_global("a program of TorchScript")
        return original(*arguments, **options)

    return load


_SAVE_PATCH, _LOAD_PATCH = _Patch("save", _wrapped_save), _Patch("load", _wrapped_load)
_SCRIPT_PATCH = _Patch("jit.load", _wrapped_script)


@contextmanager
def _inside(variable: Any, wish: _Wish, *patches: _Patch) -> Generator[None, None, None]:
    token = variable.set(wish)
    try:
        with ExitStack() as inside:
            for patch in patches:
                inside.enter_context(patch.entered())
            yield
    finally:
        variable.reset(token)


def tensorizer_saving(file_obj: Any = None, *, save_func: Optional[Callable[..., Any]] = None, **kwargs: Any) -> Any:
    """A `with` block in which torch.save() puts tensors beside the pickle. Other threads and tasks see nothing of it.

    file_obj   where: as of TensorSerializer, or a function of torch.save()'s file; None: its name and ".tensors". A function that gives
               None leaves everything to torch.
    save_func  called with the place, the tensors and the other arguments, instead of TensorSerializer.
    """
    return _inside(_SAVING, _Wish(file_obj, save_func, kwargs), _SAVE_PATCH)


def tensorizer_loading(
    file_obj: Any = None, *, load_func: Optional[Callable[..., Any]] = None, suppress_weights_only: bool = False, **kwargs: Any
) -> Any:
    """The same for torch.load(). load_func is called with the place and the other arguments, and gives the tensors.

    In the block torch.load() is as careful as torch.load(weights_only=True), unless it is told weights_only=False: what is not on torch's
    list of what weights may hold is neither called nor made. The original gives that up in the block.

    suppress_weights_only  weights_only is false in the block, whatever torch.load() is told: only for files that are trusted.
    """
    return _inside(_LOADING, _Wish(file_obj, load_func, kwargs, suppress_weights_only), _LOAD_PATCH, _SCRIPT_PATCH)
