"""Keys, and what tensorizer's classes for them have."""
from __future__ import annotations

import secrets
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Optional, Union

from .._key import Key


class CryptographyError(Exception):
    """A wrong key, a key that is missing, or one too many."""


class HashMismatchError(Exception):
    """Bytes that are not what the file's hash says."""


def _phrase(source: Any, encoding: str) -> str:
    """As tensorizer encodes it; bytes that are no UTF-8 keep their values."""
    if not source:
        raise ValueError("Source cannot be empty")
    if not isinstance(source, (str, bytes)):
        raise TypeError("Invalid source type: must be str or bytes")
    data = source.encode(encoding) if isinstance(source, str) else source
    return data.decode("utf-8", "surrogateescape")


def _limit(name: str, value: Any, other: type[IntEnum], least: int, most: int) -> None:
    if isinstance(value, other) or not isinstance(value, int):
        raise TypeError(f"{name} parameter: expected EncryptionParams limit, int, or None; {type(value).__name__} found")
    if not least <= value <= most:
        raise ValueError(f"Invalid {name}, must be in the range {least} to {most}")


@dataclass(init=False, repr=False)
class EncryptionParams:
    """What TensorSerializer encrypts with: a key of 32 bytes; or a passphrase, by from_string(). Equal keys with equal salts are equal."""

    key: bytes
    _salt: Optional[bytes]

    class OpsLimit(IntEnum):
        """Passes of Argon2id, in libsodium's grades."""

        MIN = 1
        INTERACTIVE = 2
        MODERATE = 3
        SENSITIVE = 4

    class MemLimit(IntEnum):
        """Memory of Argon2id, in libsodium's grades."""

        MIN = 8192
        INTERACTIVE = 64 << 20
        MODERATE = 256 << 20
        SENSITIVE = 1 << 30

    def __init__(self, key: Union[bytes, bytearray, memoryview]) -> None:
        if not isinstance(key, (bytes, bytearray, memoryview)):
            raise TypeError(f"Invalid encryption key: expected bytes, got {type(key).__name__}: from_string() takes a passphrase")
        if len(key) != 32:
            raise ValueError(f"Invalid encryption key: expected 32 bytes, got {len(key)}")
        self.key = bytes(key)
        self._secret = Key(self.key)
        self._salt = None

    @classmethod
    def random(cls) -> "EncryptionParams":
        """A new key."""
        return cls(secrets.token_bytes(32))

    @classmethod
    def from_string(
        cls, source: Union[str, bytes], opslimit: Optional[int] = None, memlimit: Optional[int] = None,
        salt: Union[bytes, bytearray, memoryview, None] = None, *, encoding: str = "utf-8",
    ) -> "EncryptionParams":
        """A passphrase, and how much work each guess at it costs. The key is made at once. More work than sluice ever does for a file,
        16 passes and 2 GiB, is refused."""
        phrase = _phrase(source, encoding)
        ops = cls.OpsLimit.MODERATE if opslimit is None else opslimit
        memory = cls.MemLimit.MODERATE if memlimit is None else memlimit
        _limit("opslimit", ops, cls.MemLimit, 1, 16)
        _limit("memlimit", memory, cls.OpsLimit, 8192, 2 << 30)
        if salt is not None and not isinstance(salt, (bytes, bytearray, memoryview)):
            raise TypeError(f"Invalid type for salt, expected bytes, bytearray, or memoryview; got {type(salt).__name__}")
        if salt is not None and len(salt) != 16:
            raise ValueError(f"Invalid salt size, {len(salt)} != 16")
        known = secrets.token_bytes(16) if salt is None else bytes(salt)
        secret = Key.from_string(phrase, opslimit=int(ops), memlimit=int(memory), salt=known)
        params = cls(secret.key)
        params._secret, params._salt = secret, known
        return params

    @property
    def salt(self) -> bytes:
        """Of a passphrase's key; the file says it, too."""
        if self._salt is None:
            raise ValueError("An exact binary key is being used, which has no salt.")
        return self._salt

    def secret(self) -> Key:
        """As sluice takes it."""
        return self._secret


@dataclass(init=False, repr=False)
class DecryptionParams:
    """What TensorDeserializer decrypts with. Made by from_string() or from_key()."""

    key: Optional[bytes]
    source: Optional[bytes]

    def __init__(self) -> None:
        self.key = self.source = None

    @classmethod
    def from_string(cls, source: Union[str, bytes], *, encoding: str = "utf-8") -> "DecryptionParams":
        """A passphrase."""
        params = cls()
        params.source = _phrase(source, encoding).encode("utf-8", "surrogateescape")
        return params

    @classmethod
    def from_key(cls, key: bytes) -> "DecryptionParams":
        """32 bytes."""
        if not key:
            raise ValueError("Key cannot be empty")
        if len(key) != 32:
            raise ValueError(f"Invalid key length: expected 32 bytes, got {len(key)}")
        params = cls()
        params.key = bytes(key)
        return params

    def secret(self) -> Key:
        """As sluice takes it."""
        if self.key is not None:
            return Key(self.key)
        if self.source is not None:
            return Key.from_string(self.source.decode("utf-8", "surrogateescape"))
        raise ValueError("Invalid DecryptionParams, no key or source string provided")
