"""LoRA adapters by name, from any store, on a machine whose engines read folders.

    adapters = sluice.lora.Adapters("s3://models/adapters/", "/var/cache/adapters")
    found = adapters.fetch("sql")                   # Adapter(name, path, version, number), or None

For vLLM the entry point of group vllm.general_plugins is register(): SLUICE_LORA is the prefix, SLUICE_LORA_DIR the folder of this machine,
SLUICE_LORA_BYTES what may lie in it, SLUICE_LORA_BASE other names of the base model, with commas between.

Each version has a folder, DIR/NAME/VERSION, which is fetched once for all who ask, whichever process they are in. A process that was given
one holds its lease, DIR/NAME/VERSION.lease, until it ends: engines read a folder again whenever they like, and do not ask again.
"""
from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any, cast, NamedTuple, Optional, Union

from ._aio import awaited
from ._dtypes import library
from ._error import SluiceError
from ._files import pull, version_of
from ._model import open_model
from ._options import Credentials

__all__ = ["Adapter", "Adapters", "register"]

CONFIG = "adapter_config.json"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin", "adapter_model.pt")
INCLUDED = [
    CONFIG, *WEIGHTS, "new_embeddings.*", "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt",
    "chat_template.*",
]
PICKLES = (".bin", ".pt", ".pth")  # looked at before an engine does, since a pickle may be a program
TEXT_BYTES_MAX = 1 << 20
TRIES = 3
IDLE_SECONDS = 15  # connections wait for the next adapter for so long
BOOT = "/proc/sys/kernel/random/boot_id"
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
LEASE, GONE = ".lease", ".gone"
UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}

_LOG = logging.getLogger("sluice")


class Adapter(NamedTuple):
    """One version of an adapter, in a folder of this machine."""

    name: str
    path: str
    version: str  # hex digits: others for other bytes
    number: int  # from 1 on, of this version in this process


class _Unfit(Exception):
    """The reason why a folder of that name does not serve as an adapter of this model."""


def _number(text: str) -> int:
    """Of bytes: 20GiB, 500M."""
    found = re.fullmatch(r"([0-9]{1,15})\s*([kmgt]?)(i?)b?", text.strip().lower())
    if not found or (found[3] and not found[2]):
        raise ValueError(f"SLUICE_LORA_BYTES is a size such as 20GiB, not {text!r}")
    return int(found[1]) * int((1024 if found[3] else 1000) ** UNITS[found[2]])


def _agrees(named: str, base: str) -> bool:
    """Is it one model? It may lie in a folder here, and be named as of a hub there."""
    last = [each.rstrip("/").rsplit("/", 1)[-1].lower() for each in (named, base)]
    return named == base or (last[0] == last[1] and last[0] not in ("", ".", ".."))


def _check(folder: str, bases: list[str]) -> None:
    """Is it an adapter, and of one of these models?"""
    try:
        with open(os.path.join(folder, CONFIG), "rb") as file:
            found: Any = json.loads(file.read(TEXT_BYTES_MAX))
    except (OSError, ValueError, RecursionError) as error:
        raise _Unfit(f"its {CONFIG} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise _Unfit(f"its {CONFIG} is not a mapping")
    config = cast("dict[str, Any]", found)
    kind, named = config.get("peft_type", "LORA"), config.get("base_model_name_or_path")
    if kind != "LORA":
        raise _Unfit(f"its peft_type is {kind!r}, not 'LORA'")
    if bases and isinstance(named, str) and named and not any(_agrees(named, base) for base in bases):
        raise _Unfit(f"its base model is {named!r}, and this one is {bases[0]!r}: SLUICE_LORA_BASE may name others that are the same")
    if not any(os.path.exists(os.path.join(folder, name)) for name in WEIGHTS):
        raise _Unfit(f"it has none of {', '.join(WEIGHTS)}")
    for name in os.listdir(folder):
        if name.endswith(PICKLES):
            try:
                with open_model(os.path.join(folder, name)) as model:
                    if model.format != "pytorch":  # to sluice; a pickle may have other bytes first
                        raise _Unfit(f"the engine would unpickle '{name}', which is {model.format}")
            except SluiceError as error:
                raise _Unfit(f"the engine would unpickle '{name}': {error}") from None


def _is_whole(folder: str) -> bool:
    """A load has published it, and the machine was not restarted since."""
    try:
        with open(os.path.join(folder, ".sluice", "ready"), "rb") as file, open(BOOT, encoding="ascii") as boot:
            ready: Any = json.loads(file.read(TEXT_BYTES_MAX))
            return isinstance(ready, dict) and bool(cast("dict[str, Any]", ready).get("boot") == boot.read().strip())
    except (OSError, ValueError):
        return False


class _Lease:
    """Held by whoever may read a version; who removes it has it alone. The file's time is when it was given out last."""

    def __init__(self, path: str) -> None:
        self.path = path
        while True:
            self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.flock(self.fd, fcntl.LOCK_SH)
            if self.is_there():
                break
            os.close(self.fd)  # it was removed meanwhile
        self.touch()

    def is_there(self) -> bool:
        """Under its name still?"""
        try:
            named, held = os.stat(self.path), os.fstat(self.fd)
        except FileNotFoundError:
            return False
        return (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino)

    def touch(self) -> None:
        """It is given out now."""
        os.utime(self.fd)

    def end(self) -> None:
        """Others may remove what it is for."""
        os.close(self.fd)


class _Kept(NamedTuple):
    """A version that lies in the folder."""

    used: float
    folder: str
    nbytes: int


def _bytes_of(folder: str) -> int:
    return sum(os.lstat(os.path.join(parent, name)).st_size for parent, _, names in os.walk(folder) for name in names)


def _remove(folder: str, before: float) -> bool:
    """A version that nobody holds, and that nobody was given since. It is gone at once, or stays."""
    try:
        fd = os.open(folder + LEASE, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(fd).st_mtime > before:
            return False
        gone = folder + GONE
        shutil.rmtree(gone, ignore_errors=True)
        os.rename(folder, gone)
        os.unlink(folder + LEASE)
        shutil.rmtree(gone, ignore_errors=True)
        return True
    except OSError:
        return False
    finally:
        os.close(fd)


class Adapters:
    """Adapters below a prefix, each fetched into a folder of this machine when it is asked for. Any thread may ask.

    uri           what their names are put behind, of any store that lists.
    directory     of this machine; several processes may have one.
    limit_bytes   above it versions are removed that no living process was given, those first that were given out longest ago. None: none.
    kept_minutes  after it was given out nothing is removed for so long, whether who has it lives or not.
    """

    def __init__(
        self, uri: str, directory: Union[str, "os.PathLike[str]"], *, limit_bytes: Optional[int] = None, kept_minutes: float = 10,
        credentials: Optional[Credentials] = None, bases: Optional[list[str]] = None, timeout: Optional[float] = None,
    ) -> None:
        self.uri = uri if uri.endswith("/") else uri + "/"
        self.directory: str = os.path.abspath(str(directory))
        self._limit, self._kept_seconds, self._bases = limit_bytes, kept_minutes * 60, list(bases or ())
        self._options: dict[str, Any] = {"credentials": credentials, "timeout": timeout}
        self._lock = threading.Lock()
        self._names: weakref.WeakValueDictionary[str, threading.Lock] = weakref.WeakValueDictionary()  # of those that are asked for now
        self._leases: dict[str, _Lease] = {}  # by folder, of what was given out
        self._numbers: dict[int, str] = {}

    def fetch(self, name: str, base: Optional[str] = None) -> Optional[Adapter]:
        """The version that is there now, whole and checked. None, and a warning: there is none of that name, or it does not fit the base
        model. SluiceError: the store could not be asked, or failed."""
        if not NAME.fullmatch(name):
            _LOG.warning("adapter %.200r: a name has letters, digits, '_', '-' and '.', and does not begin with a dot", name)
            return None
        with self._lock:
            mine = self._names.setdefault(name, threading.Lock())
        with mine:
            try:
                return self._fetched(name, base)
            except _Unfit as error:
                _LOG.warning("adapter '%s' of '%s': %s", name, self.uri, error)
            except SluiceError as error:
                if error.kind != "NOT_FOUND":
                    raise
                _LOG.warning("adapter '%s' is not there: %s", name, error)
        return None

    def _fetched(self, name: str, base: Optional[str]) -> Adapter:
        for _ in range(TRIES):
            version = self._version_of(name)
            folder = os.path.join(self.directory, name, version)
            os.makedirs(os.path.dirname(folder), exist_ok=True)
            lease = self._leases.get(folder) or _Lease(folder + LEASE)
            try:
                kept = self._load(name, version, folder)
                if kept:
                    _check(folder, ([base] if base else []) + self._bases)
                    lease.touch()
                    self._leases[folder] = lease
                    self._shrink()
                    return Adapter(name, folder, version, self._number_of(folder))
            finally:
                if folder not in self._leases:
                    lease.end()
        raise SluiceError(f"adapter '{name}' of '{self.uri}' changes while it is fetched, or its store has no versions", "INTEGRITY")

    def _version_of(self, name: str) -> str:
        return version_of(f"{self.uri}{name}/", include=INCLUDED, idle_seconds=IDLE_SECONDS, **self._options)

    def _load(self, name: str, version: str, folder: str) -> bool:
        """The version into its folder, unless it lies there. False: another one came, which has no place under this name."""
        if _is_whole(folder):
            return True
        pull(f"{self.uri}{name}/", folder, include=INCLUDED, spec={"readers": {"idleSeconds": IDLE_SECONDS}}, **self._options)
        if self._version_of(name) == version:
            return True
        os.unlink(os.path.join(folder, ".sluice", "ready"))
        return False

    def _number_of(self, folder: str) -> int:
        """The same in every process, but for two of one process that would have one."""
        with self._lock:
            number = int.from_bytes(hashlib.sha256(os.path.relpath(folder, self.directory).encode()).digest()[:4], "big") >> 1
            while not number or self._numbers.setdefault(number, folder) != folder:
                number = (number + 1) & 0x7FFFFFFF
            return number

    def _kept(self) -> Iterator[_Kept]:
        for name in os.scandir(self.directory):
            if not NAME.fullmatch(name.name) or not name.is_dir(follow_symlinks=False):
                continue
            for version in os.scandir(name.path):
                if version.name.endswith(GONE):  # whoever removed it was ended
                    shutil.rmtree(version.path, ignore_errors=True)
                if re.fullmatch(r"[0-9a-f]{32}", version.name) and version.is_dir(follow_symlinks=False):
                    try:
                        yield _Kept(os.stat(version.path + LEASE).st_mtime, version.path, _bytes_of(version.path))
                    except FileNotFoundError:
                        continue  # somebody removes it

    def _shrink(self) -> None:
        """Those that may go, until the others are no more than the limit."""
        if self._limit is None:
            return
        kept = sorted(self._kept())
        left, before = sum(each.nbytes for each in kept), time.time() - self._kept_seconds
        for each in kept:
            if left <= self._limit:
                return
            if each.used <= before and each.folder not in self._leases and _remove(each.folder, before):
                left -= each.nbytes
        if left > self._limit:
            _LOG.warning("adapters in '%s' take %d bytes, and %d are allowed: all of them are in use", self.directory, left, self._limit)


def _from_environment() -> Optional[Adapters]:
    uri, directory = os.environ.get("SLUICE_LORA"), os.environ.get("SLUICE_LORA_DIR")
    limit, bases = os.environ.get("SLUICE_LORA_BYTES"), os.environ.get("SLUICE_LORA_BASE", "")
    if not uri:
        return None
    if not directory:
        raise ValueError("SLUICE_LORA says where adapters come from, and SLUICE_LORA_DIR does not say into which folder")
    return Adapters(uri, directory, limit_bytes=_number(limit) if limit else None, bases=[each for each in bases.split(",") if each])


def _resolver(adapters: Adapters) -> Any:
    base: Any = library("vllm.lora.resolver").LoRAResolver
    request: Any = library("vllm.lora.request").LoRARequest

    class SluiceResolver(base):  # type: ignore[misc,valid-type,unused-ignore]
        """What vLLM asks for a name that it does not know."""

        async def resolve_lora(self, base_model_name: str, lora_name: str) -> Any:
            """A request for the adapter's folder, or None."""
            found = await awaited(adapters.fetch, lora_name, base_model_name)
            return found and request(lora_name=lora_name, lora_int_id=found.number, lora_path=found.path)

    return SluiceResolver()


def register() -> None:
    """Called by vLLM in each of its processes, maybe more than once."""
    adapters = _from_environment()
    if adapters is None:
        return
    registry = library("vllm.lora.resolver").LoRAResolverRegistry
    if "sluice_lora" not in registry.get_supported_resolvers():
        registry.register_resolver("sluice_lora", _resolver(adapters))
