"""Keys for encrypted .tensors files."""
from __future__ import annotations

import os
import secrets
from typing import Any, Union


class Key:
    """32 bytes, or a passphrase that a key is made of, with Argon2id. Key(…) takes either: bytes are a key, a str is a passphrase."""

    def __init__(self, secret: Union[bytes, bytearray, memoryview, str]) -> None:
        if isinstance(secret, str):
            if not secret:
                raise ValueError("an empty passphrase keeps nobody out")
            self._secret: Union[bytes, str] = secret
            return
        self._secret = bytes(secret)
        if len(self._secret) != 32:
            raise ValueError(f"a key has 32 bytes, not {len(self._secret)}")

    @classmethod
    def random(cls) -> "Key":
        """A new one."""
        return cls(secrets.token_bytes(32))

    @classmethod
    def from_string(cls, passphrase: str) -> "Key":
        """A passphrase; the file says what else is needed."""
        if not isinstance(passphrase, str):
            raise TypeError(f"a passphrase is a str, not {type(passphrase).__name__}")
        return cls(passphrase)

    @classmethod
    def from_key(cls, key: Union[bytes, bytearray, memoryview]) -> "Key":
        """32 bytes."""
        if isinstance(key, str):
            raise TypeError("a key is bytes: Key.from_string() takes a passphrase")
        return cls(key)

    @classmethod
    def from_file(cls, path: Union[str, "os.PathLike[str]"]) -> "Key":
        """A file of 32 bytes, as `sluice keygen` writes it."""
        with open(path, "rb") as file:
            return cls(file.read(33))

    @property
    def key(self) -> bytes:
        """The 32 bytes; a passphrase has none of its own, they depend on the file."""
        if isinstance(self._secret, str):
            raise ValueError("a passphrase: its key depends on the file")
        return self._secret

    def secret(self) -> Union[bytes, str]:
        """What it was made of."""
        return self._secret

    def __repr__(self) -> str:
        return "<sluice.Key of a passphrase>" if isinstance(self._secret, str) else "<sluice.Key>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self._secret == other._secret

    def __hash__(self) -> int:
        return hash(self._secret)


def secret_of(key: Any) -> Union[bytes, str, None]:
    """Of a Key, or what one is made of."""
    if key is None:
        return None
    return (key if isinstance(key, Key) else Key(key)).secret()
