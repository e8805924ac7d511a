"""Keys, and what tensorizer's classes for them have."""
from __future__ import annotations

import secrets
from enum import IntEnum
from typing import Any, Optional, Union

from .._key import Key


class CryptographyError(Exception):
    """A wrong key, a key that is missing, or one too many."""


class HashMismatchError(Exception):
    """Bytes that are not what the file's hash says."""


def _phrase(source: Any, encoding: str) -> str:
    if not isinstance(source, (str, bytes)):
        raise TypeError("Invalid source type: must be str or bytes")
    if not source:
        raise ValueError("Source cannot be empty")
    if isinstance(source, str):
        return source.encode(encoding).decode("utf-8", "strict")
    return source.decode("utf-8", "strict")


class EncryptionParams:
    """What TensorSerializer encrypts with: a key of 32 bytes; or a passphrase, by from_string()."""

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

    def __init__(self, key: bytes) -> None:
        if not isinstance(key, bytes):
            raise TypeError(f"Invalid encryption key: expected bytes, got {type(key).__name__}")
        if len(key) != 32:
            raise ValueError(f"Invalid encryption key: expected 32 bytes, got {len(key)}")
        self._secret = Key(key)

    @classmethod
    def random(cls) -> "EncryptionParams":
        """A new key."""
        return cls(secrets.token_bytes(32))

    @classmethod
    def from_string(
        cls, source: Union[str, bytes], opslimit: Optional[int] = None, memlimit: Optional[int] = None,
        salt: Union[str, bytes, None] = None, *, encoding: str = "utf-8",
    ) -> "EncryptionParams":
        """A passphrase. sluice chooses the salt, anew for each file, and how much work a guess costs."""
        phrase = _phrase(source, encoding)
        if opslimit is not None or memlimit is not None or salt is not None:
            raise NotImplementedError("opslimit, memlimit and salt cannot be chosen: `sluice encrypt` has flags for them")
        params = cls.__new__(cls)
        params._secret = Key.from_string(phrase)
        return params

    @property
    def key(self) -> bytes:
        """The 32 bytes. Of a passphrase there is none before a file is written: keep the passphrase."""
        return self._secret.key

    @property
    def salt(self) -> bytes:
        """A key has none; that of a passphrase is in the file."""
        raise ValueError("there is no salt here: a key needs none, and that of a passphrase is in the file")

    def secret(self) -> Key:
        """As sluice takes it."""
        return self._secret


class DecryptionParams:
    """What TensorDeserializer decrypts with. Made by from_string() or from_key()."""

    def __init__(self) -> None:
        self.key: Optional[bytes] = None
        self.source: Optional[str] = None

    @classmethod
    def from_string(cls, source: Union[str, bytes], *, encoding: str = "utf-8") -> "DecryptionParams":
        """A passphrase."""
        params = cls()
        params.source = _phrase(source, encoding)
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
            return Key.from_string(self.source)
        raise ValueError("Invalid DecryptionParams, no key or source string provided")
