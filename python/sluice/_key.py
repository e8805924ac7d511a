"""Keys for encrypted .tensors files."""
from __future__ import annotations

import os
from typing import Optional, Union

from ._kinds import encoded, number


class Phrase(str):
    """A passphrase, and how a key is made of it where a file is written; zeros and None: as sluice chooses."""

    opslimit: int = 0
    memlimit: int = 0
    salt: Optional[bytes] = None


class Key:
    """32 bytes, or a passphrase that a key is made of, with Argon2id. Key(…) takes either: bytes are a key, a str is a passphrase.

    >>> import numpy
    >>> key = sluice.Key.random()
    >>> sluice.save({"a": numpy.ones(2)}, "secret.tensors", key=key)
    >>> sluice.load("secret.tensors", key=key, framework="numpy")["a"].tolist()
    [1.0, 1.0]
    """

    def __init__(self, secret: Union[bytes, bytearray, memoryview, str]) -> None:
        if isinstance(secret, str):
            if not secret:
                raise ValueError("a key of an empty passphrase protects nothing")
            encoded(secret, "a key's passphrase")
            self._secret: Union[bytes, str] = secret
            return
        try:
            self._secret = bytes(memoryview(secret))  # of a number bytes() makes as many zeros
        except TypeError:
            raise TypeError(f"a key is 32 bytes, or a passphrase, which is a str, not {type(secret).__name__}") from None
        if len(self._secret) != 32:
            raise ValueError(f"a key has 32 bytes, not {len(self._secret)}")

    @classmethod
    def random(cls) -> "Key":
        """A new one."""
        return cls(os.urandom(32))

    @classmethod
    def from_string(
        cls, passphrase: str, *, opslimit: Optional[int] = None, memlimit: Optional[int] = None, salt: Optional[bytes] = None
    ) -> "Key":
        """A passphrase. Where it decrypts, the file says the rest; a file that is written gets this:

        opslimit  passes of Argon2id, 1 to 16; None: 3.
        memlimit  bytes of memory, 8192 to 2 GiB; None: 256 MiB.
        salt      16 bytes; None: others for each file.
        """
        if not isinstance(passphrase, str):
            raise TypeError(f"a passphrase is a str, not {type(passphrase).__name__}")
        for name, value, least in (("opslimit", opslimit, 1), ("memlimit", memlimit, 8192)):
            if value is not None and number(value, name) < least:
                raise ValueError(f"{name} is {value}: {least} is the least")
        if salt is not None and not isinstance(salt, (bytes, bytearray, memoryview)):
            raise TypeError(f"a salt is bytes, not {salt!r}")
        if salt is not None and len(salt) != 16:
            raise ValueError(f"a salt has 16 bytes, not {len(salt)}")
        phrase = Phrase(passphrase)
        phrase.opslimit, phrase.memlimit = opslimit or 0, memlimit or 0
        phrase.salt = None if salt is None else bytes(salt)
        return cls(phrase)

    @classmethod
    def from_key(cls, key: Union[bytes, bytearray, memoryview]) -> "Key":
        """32 bytes."""
        if isinstance(key, str):
            raise TypeError("a key is bytes: Key.from_string() takes a passphrase")
        return cls(key)

    @classmethod
    def from_file(cls, path: Union[str, "os.PathLike[str]"]) -> "Key":
        """A file of 32 bytes, as `sluice keygen` writes it."""
        with open(os.fspath(path), "rb") as file:  # a number would be a descriptor
            return cls(file.read(33))

    @property
    def key(self) -> bytes:
        """The 32 bytes; those of a passphrase are computed each time, which may take a second, and depend on a salt."""
        if isinstance(self._secret, bytes):
            return self._secret
        if not isinstance(self._secret, Phrase) or self._secret.salt is None:
            raise ValueError("a passphrase without a salt: its key depends on the file")
        from ._native import derive

        return derive(self._secret)

    def secret(self) -> Union[bytes, str]:
        """What it was made of."""
        return self._secret

    def __repr__(self) -> str:
        return "<sluice.Key of a passphrase>" if isinstance(self._secret, str) else "<sluice.Key>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self._secret == other._secret

    def __hash__(self) -> int:
        return hash(self._secret)


Secret = Union[Key, bytes, str, None]


def secret_of(key: Secret) -> Union[bytes, str, None]:
    """Of a Key, or what one is made of."""
    if key is None:
        return None
    return (key if isinstance(key, Key) else Key(key)).secret()
