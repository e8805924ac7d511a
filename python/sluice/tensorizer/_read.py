"""TensorDeserializer."""
from __future__ import annotations

import hashlib
import threading
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, Optional, Union

from .._blocks import contextmanager
from .._dtypes import DTYPES, library
from .._error import SluiceError
from .._files import open_file
from .._frameworks import aligned_array
from .._model import Model, open_model
from .._module import slots
from .._native import Entry, Read
from .._options import MetaTensors, Verify
from .._write import as_file, laid
from . import utils
from ._crypt import CryptographyError, DecryptionParams, HashMismatchError
from ._place import Readable
from ._redis import pieces
from ._tree import Path, leaves, nested, normal, with_lists, with_mappings

FilterFuncType = Callable[[Union[str, Sequence[Union[str, int]]]], Any]


class TensorType(IntEnum):
    """What a tensor is of."""

    PARAM = 0
    BUFFER = 1
    STATE_DICT = 2


TYPES = {"parameter": TensorType.PARAM, "buffer": TensorType.BUFFER, "entry": TensorType.STATE_DICT}


@contextmanager
def translated() -> Generator[None, None, None]:
    """Errors in tensorizer's classes."""
    try:
        yield
    except SluiceError as error:
        said = str(error)
        if any(word in error.code for word in ("KEY", "CRYPT", "KDF")) or "passphrase" in said or "decrypt" in said:
            raise CryptographyError(said) from error
        if error.kind == "INTEGRITY":
            raise HashMismatchError(said) from error
        if error.kind == "NOT_FOUND":
            raise FileNotFoundError(said) from error
        if error.kind == "FORMAT":
            raise ValueError(said) from error
        if error.kind in ("NET", "AUTH", "TIMEOUT"):
            raise OSError(said) from error
        raise


def _raw_numpy(row: Any) -> str:
    return f"<i{row.bits // 8}" if row.bits > 8 else "|i1"


class TensorDeserializer(Mapping[Any, Any]):
    """A .tensors file (or any other that sluice reads): a mapping of names to parameters. The cheapest hash that covers every byte is checked
    as the bytes come in; with verify_hash each hash is. plaid_mode, plaid_mode_buffers and num_readers change nothing. meta is open()'s, and
    not in the original."""

    def __init__(
        self, file_obj: Any, device: Any = None, filter_func: Optional[FilterFuncType] = None, dtype: Any = None, *,
        lazy_load: bool = False, plaid_mode: Optional[bool] = None, plaid_mode_buffers: Optional[int] = None,
        num_readers: Optional[int] = None, verify_hash: bool = False, encryption: Optional[DecryptionParams] = None,
        meta: MetaTensors = "zeros",
    ) -> None:
        torch = library("torch")
        self._device = utils.get_device() if device is None else torch.device(device)
        if self._device.type == "cuda" and not torch.cuda.is_available():
            raise RuntimeError("Cannot deserialize to CUDA device because CUDA is not available")
        if encryption is not None and not isinstance(encryption, DecryptionParams):
            raise TypeError(
                f"encryption parameter: expected DecryptionParams instance or None, {type(encryption).__name__} found"
            )
        if num_readers is not None and not isinstance(num_readers, int):
            raise TypeError(f"num_readers: expected int or None, got {type(num_readers).__name__}")
        if num_readers is not None and num_readers < 1:
            raise ValueError("num_readers must be positive")
        self._meta: MetaTensors = meta
        self._dtype, self._verify_hash = dtype, bool(verify_hash)
        self._cache: dict[Path, Any] = {}
        self._sure: set[Path] = set()  # of these each hash was checked
        self._strict: Optional[Model] = None  # the same, for calls that want each hash checked; opened for the first
        self._secret = None if encryption is None else encryption.secret()
        self._lock = threading.Lock()
        self._place: Optional[Readable] = Readable(file_obj)
        try:
            self._open(encryption, not lazy_load and filter_func is None)
            chosen = [entry for entry in self._entries if filter_func is None or filter_func(normal(entry.path))]
            self._found = {entry.path: entry for entry in chosen}
            self._structure = nested(self._found)
            if not lazy_load:
                self._fetch(chosen)
                self._model.forget()
        except BaseException:
            self.close()
            raise

    def _open(self, encryption: Optional[DecryptionParams], whole: bool) -> None:
        place = self._place
        assert place is not None
        with translated():
            self._model: Model = self._opened(place, "all" if self._verify_hash else "auto", whole)
            self._entries = self._model.entries()
            encrypted = self._model.encrypted
        if encryption is not None and not encrypted:
            raise CryptographyError("Tensor decryption was requested, but the file provided is not flagged as encrypted.")
        if encryption is None and encrypted:
            raise CryptographyError("Tensor is encrypted, but decryption was not requested")
        if not self._entries:
            raise ValueError("Tensor index in the file is empty")

    def _opened(self, place: Readable, verify: Verify, whole: bool) -> Model:
        return open_model(
            place.uri, framework="torch", device=str(self._device), credentials=place.credentials, key=self._secret, meta=self._meta,
            verify=verify, whole=whole,
        )

    def _reading(self, each_hash: Optional[bool]) -> Model:
        """What a call reads from that wants each hash checked, or does not."""
        if self._place is None:
            raise OSError("IO closed, instantiate if you want to load again.")
        if not each_hash or self._verify_hash:
            return self._model
        if self._strict is None:
            self._strict = self._opened(self._place, "all", False)
            if self._strict.identity != self._model.identity:
                raise HashMismatchError("the file is another one than was opened")
        return self._strict

    # ---- tensors -----------------------------------------------------------------------------------

    def _fetch(self, entries: Sequence[Entry], each_hash: Optional[bool] = None) -> None:
        """Those that are not there yet, or were not checked as this call wants it, side by side."""
        strict = bool(each_hash) and not self._verify_hash
        missing = [entry for entry in entries if entry.path not in (self._sure if strict else self._cache)]
        if not missing:
            return
        with translated():
            for entry, tensor in zip(missing, self._reading(each_hash).get_many(missing)):
                self._cache[entry.path] = self._parameter(tensor)
        if strict:
            self._sure.update(entry.path for entry in missing)

    def _parameter(self, tensor: Any) -> Any:
        torch, gradient = library("torch"), tensor.is_complex() or tensor.is_floating_point()
        if self._dtype is not None and tensor.dtype != torch.bool:
            tensor = tensor.to(self._dtype)
        return torch.nn.Parameter(tensor, requires_grad=gradient)  # as it was stored, as the original

    def _leaf(self, path: Path) -> Any:
        self._fetch([self._found[path]])
        return self._cache[path]

    def _branch(self, branch: Any, made: Callable[[Any, Callable[[Path], Any]], Any]) -> Any:
        self._fetch([self._found[path] for path in leaves(branch)])
        return made(branch, self._leaf)

    def __getitem__(self, name: Any) -> Any:
        if name not in self._structure:
            raise KeyError(f"Tensor {name} not found")
        return self._branch(self._structure[name], with_mappings)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._structure)

    def __len__(self) -> int:
        return len(self._structure)

    def __contains__(self, name: object) -> bool:
        return name in self._structure

    def keys(self) -> Any:
        """Of the outermost layer."""
        return self._structure.keys()

    def tree(
        self, prefix: Optional[Iterable[Union[str, int]]] = None, *, default: Any = None,
        filter_func: Optional[FilterFuncType] = None,
    ) -> Any:
        """What was written, mappings and lists as they were, from a prefix on; default if there is nothing."""
        if isinstance(prefix, (str, int)):
            raise TypeError(
                f"Invalid prefix: expected sequence, got {type(prefix).__name__!r} (for a single-element prefix, use a "
                "single-element sequence)"
            )
        start = tuple(prefix or ())
        chosen = [
            path for path in self._found
            if path[: len(start)] == start and (filter_func is None or filter_func(normal(path)))
        ]
        if not chosen:
            return default
        branch: Any = nested(chosen)
        for part in start:
            branch = branch[part]
        return self._branch(branch, with_lists)

    def _chosen(self, filter_func: Optional[FilterFuncType], num_tensors: int) -> list[Entry]:
        if num_tensors < -1:
            raise ValueError("num_tensors must be -1 or non-negative")
        chosen = [entry for path, entry in self._found.items() if filter_func is None or filter_func(normal(path))]
        return chosen if num_tensors == -1 else chosen[:num_tensors]

    def read_tensors(
        self, filter_func: Optional[FilterFuncType] = None, num_tensors: int = -1, verify_hash: Optional[bool] = None
    ) -> Iterator[tuple[int, int, Any, Any]]:
        """(module's number, type, name, parameter)"""
        for entry in self._chosen(filter_func, num_tensors):
            self._fetch([entry], verify_hash)
            yield entry.module, TYPES[entry.role], normal(entry.path), self._cache[entry.path]

    def read_numpy_arrays(
        self, filter_func: Optional[FilterFuncType] = None, num_tensors: int = -1, allow_raw_data: bool = False,
        verify_hash: Optional[bool] = None,
    ) -> Iterator[tuple[int, int, Any, Any, bool, Optional[str]]]:
        """(module's number, type, name, array, is it opaque, torch's type if it is)"""
        if self._device.type != "cpu":
            raise RuntimeError("read_numpy_arrays is only valid when deserializing to the CPU")
        for entry in self._chosen(filter_func, num_tensors):
            row = DTYPES.get(entry.dtype)
            opaque = row is None or not row.numpy
            name = normal(entry.path)
            if opaque and not allow_raw_data:
                raise ValueError(
                    f"{name} has an opaque datatype: {row.torch if row else entry.dtype}. Set `allow_raw_data=True` to have its "
                    "bytes as integers"
                )
            yield (
                entry.module, TYPES[entry.role], name, self._array(entry, row, opaque, verify_hash), opaque,
                f"torch.{row.torch}" if opaque and row is not None else None,
            )

    def _array(self, entry: Entry, row: Any, opaque: bool, each_hash: Optional[bool]) -> Any:
        numpy = library("numpy")
        kind = numpy.dtype(_raw_numpy(row) if opaque else row.numpy)
        array = aligned_array(kind, entry.shape)
        if entry.nbytes:
            with translated():
                self._reading(each_hash).read_into([Read(entry.number, None, array.ctypes.data, entry.nbytes)])
        return array

    # ---- modules -----------------------------------------------------------------------------------

    def load_into_module(
        self, m: Any, filter_func: Optional[FilterFuncType] = None, verify_hash: Optional[bool] = None
    ) -> int:
        """Put tensors into a module; how many. Buffers stay buffers, as persistent as they were. Then the file is closed."""
        chosen = self._chosen(filter_func, -1)
        for entry in chosen:
            if TYPES[entry.role] is TensorType.STATE_DICT:
                raise NotImplementedError(
                    "This was serialized using TensorSerializer.write_state_dict(), so it cannot be loaded using "
                    "TensorDeserializer.load_into_module(). Use the TensorDeserializer object directly as a state_dict mapping "
                    "instead."
                )
            if not isinstance(normal(entry.path), str):
                raise NotImplementedError("Cannot deserialize structured tensor keys as a module; use tree()")
        self._fetch(chosen, verify_hash)
        modules = dict(m.named_modules())
        for entry in chosen:
            owner, _, attribute = entry.name.rpartition(".")
            self._put(modules[owner], attribute, entry)
        self.close()
        return len(chosen)

    def _put(self, module: Any, attribute: str, entry: Entry) -> None:
        parameter = self._cache[entry.path]
        if TYPES[entry.role] is TensorType.PARAM:
            module.register_parameter(attribute, parameter)
        elif attribute in module._buffers:
            module._buffers[attribute] = parameter.detach()
        else:
            module.register_buffer(attribute, parameter.detach())

    def verify_module(self, m: Any) -> tuple[bool, list[tuple[str, bool]]]:
        """(is all of a module what the file's hashes say, [(name, is it)])"""
        have = {name: slot.tensor for name, slot in slots(m).items()}
        results = [
            (str(normal(path)), self._is_same(entry, have.get(entry.name.lstrip(".")))) for path, entry in self._found.items()
        ]
        return all(same for _, same in results), results

    def _is_same(self, entry: Entry, tensor: Any) -> bool:
        if tensor is None:
            return False
        found = as_file(laid(tensor))
        if found.dtype != entry.dtype or found.shape != entry.shape or (found.nbytes and not found.address):
            return False  # of another type or shape, or of the meta device
        data = (library("ctypes").c_char * found.nbytes).from_address(found.address) if found.nbytes else b""
        hashes = self._model.hashes(entry)
        if not hashes:
            raise RuntimeError(f"No hashes found in metadata for {entry.name}.")
        return all(_digest(one.kind, one.prefix, data) in (None, one.value) for one in hashes)

    def to_redis(self, redis_client: Any, key_prefix: str, force: bool = False) -> None:
        """Put the file into Redis, as redis://HOST/PREFIX reads it. Tensors that are there already stay as they are, unless force."""
        if self._place is None:
            raise OSError("IO closed, instantiate if you want to load again.")
        with translated(), open_file(self._place.uri, credentials=self._place.credentials) as file:
            there = ""
            for piece in pieces(file, key_prefix):
                if piece.of == piece.key and not force and redis_client.exists(piece.key):
                    there = piece.of
                if not piece.of or piece.of != there:
                    redis_client.set(piece.key, piece.data)

    # ---- counters, lifetime ------------------------------------------------------------------------

    @property
    def total_tensor_bytes(self) -> int:
        """Of the tensors that were chosen."""
        return sum(entry.nbytes for entry in self._found.values())

    @property
    def total_bytes_read(self) -> int:
        """From the file or the store, so far."""
        return self._model.bytes_fetched if self._place is not None else self._bytes_read

    @property
    def cache_status(self) -> Optional[str]:
        """No server is asked for it."""
        return None

    def close(self) -> None:
        """Also the file that it was given. What was read stays."""
        with self._lock:  # a descriptor that is closed twice is somebody else's by then
            place, self._place = self._place, None
        if place is None:
            return
        model = self.__dict__.get("_model")
        if model is not None:
            self._bytes_read = model.bytes_fetched
            model.close()
        if self._strict is not None:
            self._strict.close()
        place.close()

    def __enter__(self) -> "TensorDeserializer":
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if "_place" in self.__dict__:
            self.close()


def _digest(kind: str, prefix: bytes, data: Any) -> Optional[bytes]:
    if kind == "crc32":
        return zlib.crc32(data, zlib.crc32(prefix)).to_bytes(4, "big")
    if kind == "sha256":
        digest = hashlib.sha256(prefix)
        digest.update(data)
        return digest.digest()
    return None
