"""Weights into a torch module: in place where they fit, and as new parameters where a module has none yet (the meta device)."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Optional

from . import _frameworks, _progress
from ._cancel import Limit
from ._dtypes import library, of_torch
from ._key import Secret
from ._kinds import Texts, called, flag
from ._model import Model, open_model
from ._native import Entry, Read
from ._options import Credentials, MetaTensors, Spec, Verify


class Slot(NamedTuple):
    """Where a module keeps a tensor."""

    owner: Any  # the submodule
    attribute: str
    tensor: Any
    is_parameter: bool


def slots(module: Any) -> dict[str, Slot]:
    """By name, with every name that a tied weight has; buffers that are not saved included."""
    found: dict[str, Slot] = {}
    for path, owner in module.named_modules(remove_duplicate=False):
        dot = path + "." if path else ""
        for kind, parameters in ((True, owner._parameters), (False, owner._buffers)):
            for name, tensor in parameters.items():
                if tensor is not None:
                    found[dot + name] = Slot(owner, name, tensor, kind)
    return found


def tie_of(tensor: Any) -> Any:
    """Equal for names of one tensor; of those with memory, for names of the same memory and shape."""
    if tensor.device.type == "meta" or not tensor.numel():
        return id(tensor)
    return (str(tensor.device), tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()), str(tensor.dtype))


def put(slot: Slot, tensor: Any) -> Any:
    """Instead of what a module has there; a buffer stays a buffer. What it has then."""
    torch = library("torch")
    if slot.is_parameter:
        tensor = torch.nn.Parameter(tensor, requires_grad=slot.tensor.requires_grad and tensor.is_floating_point())
        slot.owner._parameters[slot.attribute] = tensor
    else:
        slot.owner._buffers[slot.attribute] = tensor
    return tensor


def _fits(slot: Slot, entry: Entry) -> bool:
    """Its bytes can be read to where the module has them."""
    tensor = slot.tensor
    return (
        tensor.device.type == "cpu" and tensor.is_contiguous() and of_torch(tensor.dtype).name == entry.dtype
        and tuple(tensor.shape) == entry.shape and entry.nbytes > 0
    )


class _Filling:
    """One module, and one model that fills it."""

    def __init__(self, module: Any, model: Model, filter: Optional[Callable[[str], object]], device: Any, dtype: Any) -> None:
        self.slots, self.model, self.device, self.dtype = slots(module), model, device, dtype
        self.saved = set(module.state_dict(keep_vars=True).keys())
        self.entries = [entry for entry in model.entries() if filter is None or filter(entry.name)]
        self.filtered = filter is not None
        names = {entry.name for entry in self.entries}
        self.known: list[tuple[Entry, Slot]] = []
        self.others: list[str] = []
        for entry in self.entries:
            slot = self.slots.get(entry.name)
            if slot is None and entry.name[:1] == "." and entry.name[1:] not in names:
                slot = self.slots.get(entry.name[1:])  # what tensorizer calls a tensor of the module itself
            if slot is not None:
                self.known.append((entry, slot))
            else:
                self.others.append(entry.name)

    def unexpected(self) -> list[str]:
        """Names that the module has not."""
        return self.others

    def missing(self) -> list[str]:
        """Names that neither the model has, nor a name that is tied to them. Of buffers that are not saved those that have no memory, either."""
        ties = {tie_of(slot.tensor) for _, slot in self.known}
        return [
            name for name, slot in self.slots.items()
            if not self.filtered and tie_of(slot.tensor) not in ties and (name in self.saved or slot.tensor.device.type == "meta")
        ]

    def misfits(self) -> Iterator[str]:
        """Sentences on tensors of other shapes."""
        for entry, slot in self.known:
            have = tuple(slot.tensor.shape)
            stored = _frameworks.stored_shape(entry.dtype, entry.shape)
            if have != stored:
                yield f"size mismatch for {entry.name}: the model has {list(stored)}, the module {list(have)}"

    def fill(self, tell: Optional[_progress.Progress]) -> None:
        """Read everything; straight into the module where it can be."""
        torch = library("torch")
        direct = [(entry, slot) for entry, slot in self.known if self._stays(slot) and _fits(slot, entry) and not self.model.keeps(entry)]
        straight = {entry.number for entry, _ in direct}
        here, total = sum(entry.nbytes for entry, _ in direct), sum(entry.nbytes for entry, _ in self.known)
        self.model.read_into(
            [Read(entry.number, None, slot.tensor.data_ptr(), entry.nbytes) for entry, slot in direct],
            _progress.within(tell, 0, total),
        )
        rest = [(entry, slot) for entry, slot in self.known if entry.number not in straight]
        made: dict[Any, Any] = {}
        with torch.no_grad():
            read = self.model.get_many([entry for entry, _ in rest], None, _progress.within(tell, here, total))
            for (_, slot), tensor in zip(rest, read):
                self._take(slot, tensor, made)
        self._tie(made)

    def _stays(self, slot: Slot) -> bool:
        """The module keeps the tensor that it has."""
        tensor = slot.tensor
        there = self.device is None or tensor.device == library("torch").device(self.device)
        return tensor.device.type != "meta" and there and (self.dtype is None or tensor.dtype == self.dtype)

    def _take(self, slot: Slot, tensor: Any, made: dict[Any, Any]) -> None:
        if tensor.device.type == "meta":
            made[tie_of(slot.tensor)] = put(slot, _frameworks.cast("torch", tensor, self.dtype))
            return
        meta = slot.tensor.device.type == "meta"
        if not meta and self.device is None and self.dtype is None:
            slot.tensor.copy_(tensor)
            return
        dtype = self.dtype if self.dtype is not None else None if meta else slot.tensor.dtype
        tensor = _frameworks.cast("torch", tensor, dtype)
        where = self.device if self.device is not None else None if meta else slot.tensor.device
        made[tie_of(slot.tensor)] = put(slot, tensor if where is None else tensor.to(where))

    def _tie(self, made: dict[Any, Any]) -> None:
        """Names that were one tensor are one again."""
        for slot in self.slots.values():
            new = made.get(tie_of(slot.tensor))
            if new is not None:
                (slot.owner._parameters if slot.is_parameter else slot.owner._buffers)[slot.attribute] = new


def load_into_module(
    module: Any, uri: Any, *, strict: bool = True, filter: Optional[Callable[[str], object]] = None, device: Any = None,
    dtype: Any = None, timeout: Optional[float] = None, progress: _progress.Wanted = None, credentials: Optional[Credentials] = None, key: Secret = None,
    verify: Verify = "auto", include: Optional[Texts] = None, exclude: Optional[Texts] = None, rename: Optional[list[dict[str, str]]] = None,
    spec: Spec = None, meta: MetaTensors = "zeros", whole: Optional[bool] = None,
) -> tuple[list[str], list[str]]:
    """Fill a torch module; (names that were missing, names that it has not). uri may be an open Model of framework "torch".

    Tensors that the module has already are filled in place; those on the meta device become new ones. Tied weights stay tied, and one
    name of theirs is enough. Buffers stay buffers.

    strict  RuntimeError for missing and unexpected names, before anything is read. A buffer that is not saved and is on the meta device is
            missing, too: a model has none, and whoever leaves it out computes it then.
    filter  of names; with it nothing is missing.
    device  where the module's tensors go; None: where they are, and from the meta device to the CPU.
    dtype   of what is floating (or whole), or a name such as "bf16"; None: as the module has it, and on the meta device as the model has it.
    timeout seconds until all is there. None: no limit.

    What is not here is as of sluice.open(), and counts for a uri alone. RuntimeError: shapes do not fit, or names under strict; SluiceError as
    of sluice.load().

    >>> module = torch.nn.Linear(6, 4)  # doctest: +SKIP
    >>> sluice.load_into_module(module, "linear.safetensors")  # doctest: +SKIP
    ([], [])
    """
    flag(strict, "strict")
    called(filter, "filter")
    with Limit(timeout).step():
        opened = uri if isinstance(uri, Model) else open_model(
            uri, framework="torch", credentials=credentials, key=key, verify=verify, include=include, exclude=exclude, rename=rename, spec=spec,
            meta=meta, whole=filter is None if whole is None else whole,
        )
        return _loaded(module, uri, opened, strict, filter, device, _frameworks.dtype_of("torch", dtype), progress)


def _loaded(
    module: Any, uri: Any, opened: Model, strict: bool, filter: Optional[Callable[[str], object]], device: Any, dtype: Any,
    progress: _progress.Wanted,
) -> tuple[list[str], list[str]]:
    try:
        if isinstance(device, str):
            device = _frameworks.device_name(device, "torch")
        filling = _Filling(module, opened, filter, device, dtype)
        missing, unexpected = filling.missing(), filling.unexpected()
        wrong = list(filling.misfits())
        if strict and missing:
            wrong.insert(0, "missing: " + ", ".join(missing))
        if strict and unexpected:
            wrong.insert(0, "unexpected: " + ", ".join(unexpected))
        if wrong:
            raise RuntimeError(f"'{opened.uri}' does not fit {type(module).__name__}: " + "; ".join(wrong))
        with _progress.shown(progress, opened.uri) as tell:
            filling.fill(tell)
        return missing, unexpected
    finally:
        if opened is not uri:
            opened.close()
