"""Models that were opened: a mapping of names to tensors, which are read when they are asked for."""
from __future__ import annotations

import builtins
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Optional, Union

from . import _ahead, _dlpack, _fork, _frameworks, _native, _progress, _shown, _slices
from ._array import Array, Memory
from ._cancel import Limit, limit_of
from ._dtypes import Dtype, find, library, nbytes, numpy_dtype as row_dtype, torch_dtype
from ._error import SluiceError
from ._key import Secret, secret_of
from ._kinds import Texts, called, flag, number, texts
from ._native import WHOLE, Entry, Read, Source
from ._once import once
from ._options import Credentials, Framework, MetaTensors, Spec, Verify, rules, spec_text
from ._stream import GROUP_BYTES, arriving
from ._values import metadata as values_of

COPIED_BYTES = 1 << 20
LITTLE_BYTES = 64 << 10  # that are copied in less time than they would be mapped
SMALL_BYTES = 4096  # whose copy takes no longer wherever it goes
FOUND_ALONE = 8  # tensors of which each costs as much as a quarter of all in a small file


class Meta(NamedTuple):
    """What is known of a tensor without reading it.

    >>> sluice.open("m.safetensors").meta("w").nbytes
    96
    """

    name: str
    dtype: str  # "BF16"
    shape: tuple[int, ...]
    nbytes: int
    encrypted: bool
    hashes: tuple[str, ...]  # that the format keeps: "sha256", "crc32"
    is_meta: bool = False  # a shape without data, which reads as zeros unless open() is told meta="keep"


class OpenTensor(Array):
    """One tensor or data file of an opened model. It is read once, when its memory is asked for; that may be written to, and nobody
    else sees it.

    >>> tensor = sluice.open("m.safetensors")["w"]
    >>> tensor.shape, tensor.dtype, float(tensor.numpy().sum())
    ((4, 6), 'F32', 276.0)
    """

    def __init__(self, source: Source, entry: Entry) -> None:
        self._source, self._entry = source, entry
        self._held: Optional[_native.Held] = None
        self.forked()
        _fork.known(self)
        row = find(entry.dtype)
        dlpack = row.dlpack if row is not None else (1, 8, 1) if entry.is_file else entry.dlpack
        super().__init__(
            Memory, 0, entry.nbytes, entry.name, entry.dtype, dlpack, entry.shape, None, -1, True, entry.is_file
        )

    def forked(self) -> None:
        """Nobody fetches it."""
        self._lock = threading.Lock()

    def _owner(self) -> Memory:
        return self._fetch()

    def _fetch(self) -> _native.Held:
        with self._lock:  # two that read it would have two memories, of which an array has one's address and the other's life
            if self._held is None:
                held = hold(self._source, self._entry)
                self._address, self._held = held.address, held
            return self._held

    def copy_to(self, address: int, device: Any = "cuda:0") -> None:
        """Read it, checked, to memory of a GPU: it is there when this returns. address: data_ptr() of a contiguous torch tensor, say, which
        nothing else uses meanwhile: torch.cuda.synchronize() before."""
        if self.nbytes:
            where = _frameworks.device_name(device, "torch")
            self._source.read([Read(self._entry.number, None, address, self.nbytes)], device=where)

    def torch(self) -> Any:
        """A torch tensor on this memory."""
        torch = library("torch")
        shape = _frameworks.stored_shape(self.dtype, self.shape)
        dtype = torch.uint8 if self.is_file else torch_dtype(self.dtype)
        if not self.nbytes:
            return torch.empty(shape, dtype=dtype, device="cpu")
        held = self._fetch()
        flat = torch.from_dlpack(Bytes(held))
        return flat.view(dtype).reshape(shape)

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a tensor of an opened model is not pickled: pickle the model, or the array that it gives")


class Bytes:
    """Memory of the library's, as DLPack's consumers take it."""

    def __init__(self, held: _native.Held) -> None:
        self._held = held

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: Any = None) -> Any:
        held = self._held
        return _dlpack.capsule(held, held.address, (1, 0), (held.nbytes,), (1,), (1, 8, 1), False, max_version)


def may_map(source: Source, entry: Entry) -> bool:
    """Its bytes are in a local file, and reading them would check no hash."""
    return entry.is_local and (source.stays_mapped(entry.number) or not (source.checks and source.has_hash(entry.number)))


def hold(source: Source, entry: Entry) -> _native.Held:
    """All of it in memory: mapped, or read and checked."""
    if may_map(source, entry):
        return source.map(entry.number)
    held = _native.new_memory(entry.nbytes)
    source.read([Read(entry.number, None, held.address, entry.nbytes)])
    return held


class Slice:
    """A tensor that brackets take a part of: numbers, ranges with any step, None and an ellipsis. Only what they name is read.

    >>> float(sluice.open("m.safetensors", framework="numpy").slice("w")[1:3].sum())
    138.0
    """

    def __init__(self, model: "Model", entry: Entry) -> None:
        self._model, self._entry = model, entry

    def get_shape(self) -> list[int]:
        """Of the whole tensor."""
        return list(self._entry.shape)

    def get_dtype(self) -> str:
        """Of its elements: "BF16"."""
        return self._entry.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole tensor."""
        return self._entry.shape

    def __getitem__(self, index: Any) -> Any:
        return self._model.read_slice(self._entry, _slices.resolve(index, self._entry.shape))

    def __repr__(self) -> str:
        return f"<sluice.Slice of {self._entry.name!r} {self._entry.dtype} {list(self._entry.shape)}>"


class _Wish(NamedTuple):
    """How a model was opened; another process opens it in the same way."""

    uri: Any
    framework: Optional[str]
    device: str
    device_given: str  # as it was named: a UUID has another number elsewhere
    credentials: Optional[Credentials]
    key: Union[bytes, str, None]
    verify: str
    spec: str
    timeout: Optional[float]
    meta: str = "zeros"
    whole: bool = False


def _opened(wish: _Wish, progress: _progress.Wanted) -> Source:
    with _progress.shown(progress, str(wish.uri)) as tell:
        return Source(wish.uri, wish.spec, wish.key, wish.verify, WHOLE if wish.whole else 0, wish.timeout, tell)


class Model(Mapping[str, Any]):
    """Names to tensors of a model that was opened: arrays of the framework that open() was told, else OpenTensor. Nothing is kept that was
    read. A copy, also one that was pickled, is opened again, and is of the same version, or an error.

    Any thread may use it; close() waits for what is being read.

    >>> with sluice.open("m.safetensors", framework="numpy") as model:
    ...     print(len(model), "w" in model, model.format, model.nbytes)
    2 True safetensors 108
    """

    def __init__(self, wish: _Wish, progress: _progress.Wanted = None) -> None:
        self._wish, self._found_alone = wish, 0
        self._source = _opened(wish, progress)
        self._in_order: Optional[_ahead.InOrder] = None
        if wish.framework is not None and not self._source.is_local:
            self._in_order = _ahead.InOrder(self)
            _fork.known(self._in_order)

    def for_itself(self) -> "Model":
        """The same, for a thread that reads of it, and must not keep it."""
        same = Model.__new__(Model)
        same._wish, same._source, same._found_alone, same._in_order = self._wish, self._source, 0, None
        return same

    @once
    def _entries(self) -> list[Entry]:
        return self._source.entries()

    @once
    def _tensors(self) -> dict[str, Entry]:
        found: dict[str, Entry] = {}
        for entry in self._entries:
            if not entry.is_file:
                found.setdefault(entry.name, entry)
        return found

    # ---- what is in it -----------------------------------------------------------------------------

    @property
    def uri(self) -> str:
        """Where it is, without secrets."""
        return str(self._source.told("uri").decode("utf-8", "surrogateescape"))

    @property
    def format(self) -> str:
        """Of its first object that has tensors: "safetensors", "tensorizer", "pytorch", "gguf"."""
        return str(self._source.told("format").decode())

    @property
    def framework(self) -> Optional[str]:
        """Whose arrays model[name] gives; None: OpenTensor."""
        return self._wish.framework

    @property
    def device(self) -> str:
        """Where its arrays are put: "cpu", "cuda:0"."""
        return self._wish.device

    @property
    def encrypted(self) -> bool:
        """Is any of its tensors?"""
        return bool(self._source.told("encrypted"))

    @property
    def nbytes(self) -> int:
        """Of all tensors and data files, as they are read."""
        return int(self._source.told("bytes"))

    @property
    def identity(self) -> bytes:
        """32 bytes that are equal for equal versions of equal objects."""
        return bytes(self._source.told("identity"))

    @property
    def bytes_fetched(self) -> int:
        """So far, from the store: headers and what was sent again included."""
        return int(self._source.told("bytes_fetched"))

    @property
    def requests(self) -> int:
        """So far, to the store."""
        return int(self._source.told("requests"))

    def metadata(self) -> dict[str, Any]:
        """What the first file that has tensors says of itself: texts of safetensors' `__metadata__`; of GGUF every key: int, float, bool, str,
        and arrays as Values. Other formats have none.

        >>> sluice.open("m.safetensors").metadata(), sluice.open("m.gguf").metadata()["llama.block_count"]
        ({'format': 'np'}, 2)
        """
        return values_of(self._source)

    def meta(self, name: str) -> Meta:
        """Type, shape and so on of a tensor, without reading it."""
        entry = self.entry(name)
        hashes = tuple(found.kind for found in self._source.hashes(entry.number))
        return Meta(entry.name, entry.dtype, entry.shape, entry.nbytes, entry.encrypted, hashes, entry.meta)

    @once
    def files(self) -> dict[str, OpenTensor]:
        """Data files beside the tensors, such as config.json, by their names."""
        return {entry.name: OpenTensor(self._source, entry) for entry in self._entries if entry.is_file}

    def offset_keys(self) -> list[str]:
        """Names in the order in which the tensors lie in the objects."""
        return [entry.name for entry in sorted(self._tensors.values(), key=lambda entry: (entry.object, entry.offset))]

    def tree(self, prefix: str = "") -> Any:
        """Meta of tensors as nested dicts, parted at dots, from a prefix on: `model.tree("transformer.h")["0"]`."""
        found: dict[str, Any] = {}
        for name in self._tensors:
            parts = name.split(".")
            at = found
            for part in parts[:-1]:
                inner: Any = at.setdefault(part, {})
                if isinstance(inner, Meta):  # a tensor has the name of a branch, too
                    inner = at[part] = {"": inner}
                at = inner
            last: Any = at.get(parts[-1])
            if last is None or isinstance(last, Meta):
                at[parts[-1]] = self.meta(name)
            else:
                last[""] = self.meta(name)
        for part in prefix.split(".") if prefix else []:
            found = found[part]
        return found

    # ---- tensors -----------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Any:
        entry = self.entry(name)
        if self._wish.framework is None:
            return OpenTensor(self._source, entry)
        return self.get_many([entry])[0]

    def get_tensor(self, name: str) -> Any:
        """model[name]."""
        return self[name]

    def get_tensors(self) -> dict[str, Any]:
        """All of them."""
        return self.load()

    def slice(self, name: str) -> Slice:
        """A view that reads what its brackets name: `model.slice("w")[0:128, ::2]`. Brackets take what torch's take, and negative steps.
        KeyError: the model has no such tensor. The brackets raise IndexError, TypeError and ValueError as torch does.

        >>> sluice.open("m.safetensors", framework="numpy").slice("w")[1:3, ::-2].shape
        (2, 3)
        """
        return Slice(self, self.entry(name))

    get_slice = slice

    def shard(self, name: str, dim: int, rank: int, of: int) -> Any:
        """The part of a tensor that one of several ranks has: rows of a dimension; only they are read. Of a dimension of n each rank has
        ceil(n / of), the last ones less. KeyError, IndexError, ValueError: no such tensor, dimension, rank.

        >>> [sluice.open("m.safetensors", framework="numpy").shard("w", 0, rank, 3).shape for rank in range(3)]
        [(2, 6), (2, 6), (0, 6)]
        """
        entry = self.entry(name)
        dim = _slices.dimension(dim, entry.shape, name)
        index: list[Any] = [builtins.slice(None)] * len(entry.shape)
        index[dim] = _slices.part_of(entry.shape[dim], rank, of)
        return self.slice(name)[tuple(index)]

    def read_slice(self, entry: Entry, taken: _slices.Ranges) -> Any:
        """What brackets took; of a model without a framework a NumPy array."""
        framework = self._wish.framework or "numpy"
        count = 1
        for size in taken.read_shape:
            count *= size
        row = find(entry.dtype)
        if row is None:
            raise TypeError(f"'{entry.name}' has elements of {entry.dtype}, which cannot be sliced")
        shape = taken.shape
        if framework == "torch":
            shape = _frameworks.stored_shape(entry.dtype, shape)
        if self.keeps(entry):
            return _frameworks.meta_tensor(entry.dtype, shape)
        if count and self._maps(entry, row, framework):
            return _frameworks.turned(framework, self._of_mapping(entry, taken, framework, nbytes(row, count)), taken.flips, shape)

        def read(gpu: Optional[str]) -> Any:
            room = self._room(entry.dtype, taken.read_shape, framework, gpu)
            if count:
                self._read([Read(entry.number, taken.ranges, room.address, nbytes(row, count))], gpu)
            return _frameworks.turned(framework, room.result(), taken.flips, shape)

        return self._on_device(read)

    def nbytes_of(self, entry: Entry, taken: _slices.Ranges) -> int:
        """Of a part."""
        row = find(entry.dtype)
        return 0 if row is None else nbytes(row, math.prod(taken.read_shape))

    def read_jobs(
        self, jobs: Sequence[_ahead.Job], done: Optional[Callable[[int, Any], object]] = None, progress: Optional[_progress.Progress] = None
    ) -> list[Any]:
        """Tensors, or parts of them, side by side. done(index, array) as they come."""
        if all(job.taken is None for job in jobs):
            return self.get_many([job.entry for job in jobs], done, progress)
        found: list[Any] = [None] * len(jobs)
        self._on_device(lambda gpu: self._fill_parts(found, jobs, gpu, done))
        return found

    def _fill_parts(
        self, found: list[Any], jobs: Sequence[_ahead.Job], gpu: Optional[str], done: Optional[Callable[[int, Any], object]]
    ) -> None:
        framework = self._wish.framework or "numpy"
        parts = [(job.entry, job.taken) for job in jobs if job.taken is not None]
        rooms = [self._room(entry.dtype, taken.read_shape, framework, gpu) for entry, taken in parts]

        def on_done(at: int) -> None:
            if found[at] is None:
                found[at] = _frameworks.turned(framework, rooms[at].result(), parts[at][1].flips, parts[at][1].shape)
                if done:
                    done(at, found[at])

        self._read(
            [Read(entry.number, taken.ranges, room.address, job.nbytes) for (entry, taken), room, job in zip(parts, rooms, jobs)], gpu, on_done
        )

    def _maps(self, entry: Entry, row: Dtype, framework: str) -> bool:
        """Can a part of it be taken of its mapping? Threads that read it take longer."""
        can = framework == "torch" or (framework == "numpy" and bool(row.numpy))
        return can and row.bits >= 8 and self._wish.device == "cpu" and may_map(self._source, entry)

    def _of_mapping(self, entry: Entry, taken: _slices.Ranges, framework: str, size: int) -> Any:
        """What is large and lies in one piece stays mapped, as a whole tensor does; else a copy."""
        part = tuple([builtins.slice(*one) for one in taken.ranges])
        if size > COPIED_BYTES and _slices.in_one_piece(taken.ranges, entry.shape):
            mapped = OpenTensor(self._source, entry)
            return (mapped.torch() if framework == "torch" else mapped.numpy())[part]
        held = self._source.look_at(entry.number)
        if framework == "torch":
            torch = library("torch")
            whole = torch.frombuffer(held.buffer(), dtype=torch.uint8).view(torch_dtype(entry.dtype)).view(entry.shape)
            return whole[part].clone(memory_format=torch.contiguous_format)
        numpy, kind = library("numpy"), row_dtype(entry.dtype)
        found = numpy.frombuffer(held.buffer(), kind).reshape(entry.shape)[part]
        if size <= SMALL_BYTES:
            return numpy.array(found)
        array = _frameworks.aligned_array(kind, taken.read_shape)
        array[...] = found
        return array

    def _is_plain(self, entry: Entry) -> bool:
        """Is it little, and lies in a local file as it is asked for?"""
        wish = self._wish
        return (
            0 < entry.nbytes <= LITTLE_BYTES and wish.device == "cpu" and wish.framework in ("torch", "numpy") and not self.keeps(entry)
            and may_map(self._source, entry)
        )

    def _of_file(self, entry: Entry, framework: str) -> Any:
        """A tensor of a local file: mapped, or what is little as a copy."""
        if entry.nbytes > LITTLE_BYTES or self._wish.device != "cpu" or not _frameworks.knows(framework, entry.dtype):
            return _frameworks.of_memory(framework, OpenTensor(self._source, entry), self._wish.device)
        array, buffer = _frameworks.little(framework, entry.dtype, entry.shape, entry.nbytes)
        self._source.copy(entry, buffer)
        return array

    def _room(self, dtype: str, shape: tuple[int, ...], framework: str, gpu: Optional[str]) -> _frameworks.Room:
        if gpu is not None:
            return _frameworks.gpu_room(gpu, dtype, shape)
        return _frameworks.room(framework, dtype, shape, self._wish.device)

    def _read(
        self, reads: list[Read], gpu: Optional[str], done: Optional[Callable[[int], object]] = None,
        progress: Optional[_progress.Progress] = None,
    ) -> None:
        if gpu is not None:
            _frameworks.await_gpu(gpu)
        self._source.read(reads, done, progress, device=gpu)

    def _on_device(self, read: Callable[[Optional[str]], Any]) -> Any:
        """Straight to the GPU that was asked for; where its driver cannot be used, by way of the host."""
        gpu = _frameworks.gpu_of(self._wish.framework, self._wish.device)
        if gpu is not None:
            try:
                return read(gpu)
            except SluiceError as error:
                if error.kind != "GPU":
                    raise
                _frameworks.through_host(gpu, error)
        return read(None)

    def get_many(
        self, entries: Sequence[Entry], done: Optional[Callable[[int, Any], object]] = None,
        progress: Optional[_progress.Progress] = None,
    ) -> list[Any]:
        """Arrays of the framework, read side by side. done(index, array) as they come."""
        if self._wish.framework is None:
            return [OpenTensor(self._source, entry) for entry in entries]
        if len(entries) == 1 and done is None and progress is None and self._in_order is not None:
            ahead = self._in_order.take(entries[0])
            if ahead is not _ahead.MISSING:
                return [ahead]
        elif len(entries) == 1 and done is None and progress is None and self._is_plain(entries[0]):
            return [self._of_file(entries[0], self._wish.framework)]
        found: list[Any] = [None] * len(entries)
        self._on_device(lambda gpu: self._fill(found, entries, self._wish.framework or "", gpu, done, progress))
        return found

    def _fill(
        self, found: list[Any], entries: Sequence[Entry], framework: str, gpu: Optional[str],
        done: Optional[Callable[[int, Any], object]], progress: Optional[_progress.Progress],
    ) -> None:
        """Those that are not there yet."""
        rooms: list[_frameworks.Room] = []
        reads: list[Read] = []
        which: list[int] = []

        def on_done(at: int) -> None:
            found[which[at]] = rooms[at].result()
            if done:
                done(which[at], found[which[at]])

        for index, entry in enumerate(entries):
            if found[index] is not None:
                continue
            if self.keeps(entry):
                found[index] = _frameworks.meta_tensor(entry.dtype, _frameworks.stored_shape(entry.dtype, entry.shape))
                if done:
                    done(index, found[index])
                continue
            if gpu is None and entry.nbytes and framework in ("torch", "numpy") and may_map(self._source, entry):
                found[index] = self._of_file(entry, framework)
            else:
                room = self._room(entry.dtype, entry.shape, framework, gpu)
                if entry.nbytes:
                    reads.append(Read(entry.number, None, room.address, entry.nbytes))
                    rooms.append(room)
                    which.append(index)
                    continue
                found[index] = room.result()
            if done:
                done(index, found[index])
        total = sum(entry.nbytes for entry in entries if not self.keeps(entry))
        here = total - sum(read.nbytes for read in reads)
        if progress and here:
            progress(here, total)
        self._read(reads, gpu, on_done, _progress.within(progress, here, total))

    def keeps(self, entry: Entry) -> bool:
        """Is it given back as what it is, a tensor of the meta device?"""
        return entry.meta and self._wish.meta == "keep"

    def entries(self) -> list[Entry]:
        """Of its tensors, as the library has them."""
        return list(self._tensors.values())

    def entry(self, name: str) -> Entry:
        """Of one of them. A few are asked for one by one; whoever wants more has all listed."""
        if "_tensors" not in self.__dict__ and self._found_alone < FOUND_ALONE and isinstance(name, str) and name:
            self._found_alone += 1
            entry = self._source.find(name)
            if entry is not None:
                return entry
        return self._tensors[name]

    def hashes(self, entry: Entry) -> list[_native.Hash]:
        """That the format keeps of a tensor."""
        return self._source.hashes(entry.number)

    def read_into(self, reads: Sequence[Read], progress: Optional[_progress.Progress] = None) -> None:
        """To where the reads say."""
        self._source.read(reads, None, progress)

    def _chosen(
        self, names: Optional[Texts], filter: Optional[Callable[[str], object]]
    ) -> list[Entry]:
        called(filter, "filter")
        chosen = list(self._tensors.values()) if names is None else [self.entry(name) for name in texts(names, "names")]
        return [entry for entry in chosen if filter is None or filter(entry.name)]

    def load(
        self, names: Optional[Texts] = None, *, filter: Optional[Callable[[str], object]] = None, dtype: Any = None,
        timeout: Optional[float] = None, progress: _progress.Wanted = None,
    ) -> dict[str, Any]:
        """Many tensors at once: all, those of names, or those of which filter(name) is true. dtype: cast to it what is of its kind,
        floating or whole. Names of one tensor (in a .pt) are one array. timeout: seconds until all is there. progress: True for a bar, or
        a function of bytes done and bytes in all."""
        framework = self._wish.framework
        dtype = None if framework is None else _frameworks.dtype_of(framework, dtype)
        chosen = self._chosen(names, filter)
        tied: dict[object, list[Entry]] = {}
        for entry in chosen:
            tied.setdefault(entry.number if framework is None else entry.tie, []).append(entry)
        with limit_of(timeout).step(), _progress.shown(progress, self.uri) as tell:
            found = self.get_many([entries[0] for entries in tied.values()], None, tell)
        if framework is not None and dtype is not None:
            found = [_frameworks.cast(framework, array, dtype) for array in found]
        arrays = {entry.number: array for entries, array in zip(tied.values(), found) for entry in entries}
        return {entry.name: arrays[entry.number] for entry in chosen}

    def stream(
        self, names: Optional[Texts] = None, *, filter: Optional[Callable[[str], object]] = None,
        group_bytes: int = GROUP_BYTES, timeout: Union[float, Limit, None] = None, progress: _progress.Wanted = None,
    ) -> Iterator[tuple[str, Any]]:
        """(name, tensor) as they arrive, while others are being read; in groups of so many bytes, so that memory stays bounded. Whoever
        stops taking ends what is being read. timeout: seconds that reading may take in all."""
        number(group_bytes, "group_bytes")
        chosen = sorted(self._chosen(names, filter), key=lambda entry: (entry.object, entry.offset))
        with _progress.shown(progress, self.uri) as tell:
            yield from arriving(self, chosen, group_bytes, limit_of(timeout), tell)

    # ---- lifetime ----------------------------------------------------------------------------------

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        return f"<sluice.Model {_progress.without_secrets(str(self._wish.uri))!r}>"

    def _repr_html_(self) -> str:
        lines = {name: _shown.Line(name, entry.dtype, entry.shape, entry.nbytes) for name, entry in self._tensors.items()}
        return _shown.table(_progress.without_secrets(str(self._wish.uri)), lines, lines.__getitem__)

    async def __aenter__(self) -> "Model":
        return self

    async def __aexit__(self, kind: Any, value: Any, trace: Any) -> None:
        from ._aio import awaited

        await awaited(self.close)

    def __enter__(self) -> "Model":
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        self.close()

    def close(self) -> None:
        """Give connections and memory back; arrays stay good."""
        self._stop_ahead()
        self._source.close()

    def _stop_ahead(self) -> None:
        if self._in_order is not None:
            self._in_order.drop()

    def forget(self) -> None:
        """Give back what opening it whole keeps; what is read later comes from the store. Nothing is done while somebody reads."""
        self._source.forget()

    def cancel(self) -> None:
        """End what other threads read from it, with SluiceError of kind CANCELED. Nothing more can be read from it then."""
        self._source.cancel()

    def __reduce__(self) -> tuple[Any, ...]:
        return _open_again, (tuple(self._wish), self.identity)

    def __copy__(self) -> "Model":
        return _open_again(tuple(self._wish), self.identity)

    def __deepcopy__(self, memo: Any) -> "Model":
        return self.__copy__()


def _open_again(wish: tuple[Any, ...], identity: bytes) -> Model:
    same = _Wish(*wish)
    model = Model(same._replace(device=_frameworks.device_name(same.device_given, same.framework)))
    if model.identity != identity:
        model.close()
        what = _progress.without_secrets(str(wish[0]))
        raise SluiceError(f"'{what}' was pickled as another version than is there now", "INTEGRITY", "changed")
    return model


def open_model(
    uri: Any, *, device: Any = "cpu", framework: Optional[Framework] = None, credentials: Optional[Credentials] = None,
    key: Secret = None, verify: Verify = "auto", include: Optional[Texts] = None,
    exclude: Optional[Texts] = None, rename: Optional[list[dict[str, str]]] = None,
    spec: Spec = None, timeout: Optional[float] = None, meta: MetaTensors = "zeros",
    progress: _progress.Wanted = None, whole: bool = False,
) -> Model:
    """Open a model without reading its tensors: a URI, a path, or a folder of several objects, of any format and store.

    device       where arrays are put: "cpu", "cuda:0", torch.device(…), a GPU's UUID ("GPU-…", "MIG-…", as nvidia-smi -L prints it).
                 Others than "cpu" need a framework.
    framework    "torch", "numpy", "jax" or "cupy": what model[name] gives. None: OpenTensor, which can become any of them.
    credentials  made by credentials(); else they are found as other programs find them.
    key          for encrypted files: a Key, 32 bytes, or a passphrase.
    verify       "auto" checks the cheapest hash that covers every byte, "all" every hash that is there; "require" is "auto", and refuses
                 what has none; "off" checks none.
    include      a shell pattern of names, or several; exclude: of those to leave out; rename: rules as in a model's spec.
    spec         YAML or a dict: anything else that a model's spec may say.
    timeout      seconds until it is open. None: no limit.
    meta         what a meta tensor of a .tensors file becomes: "zeros", or "keep": a tensor of torch's meta device, which takes no memory.
    progress     True for a bar, or a function of bytes done and bytes in all: of the heads that are read to open it.
    whole        all of it will be read, and soon: of .tensors files up to 128 MiB come at once, in few requests, and are kept until the
                 model is closed. load() and stream() of all tensors ask for it by themselves.

    SluiceNotFoundError: nothing is there; SluicePermissionError, SluiceConnectionError, SluiceTimeoutError: of the store; SluiceValueError: not a
    model, or an option of the spec that is none; SluiceError of kind INTEGRITY: a head that is not what its hash says.

    >>> import sluice
    >>> with sluice.open("m.safetensors", framework="numpy") as model:
    ...     print(sorted(model), model.meta("w").shape, float(model["w"].sum()))
    ['b', 'w'] (4, 6) 276.0
    """
    name = _frameworks.framework_name(framework)
    if meta not in ("zeros", "keep") or (meta == "keep" and name not in (None, "torch")):
        raise ValueError(f"meta is 'zeros', or with torch 'keep', not {meta!r}")
    tensors = {"include": texts(include, "include"), "exclude": texts(exclude, "exclude"), "rename": rules(rename)}
    text = spec_text(credentials, spec, {key: value for key, value in tensors.items() if value})
    where = _frameworks.device_name(device, name)
    given = device if isinstance(device, str) else where
    return Model(_Wish(uri, name, where, given, credentials, secret_of(key), verify, text, timeout, meta, flag(whole, "whole")), progress)


open_model.__module__, open_model.__qualname__, open_model.__name__ = "sluice", "open", "open"  # as Python's own messages call it
