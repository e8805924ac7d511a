"""tensorizer.stream_io: files and URIs as binary files."""
from __future__ import annotations

import io
import os
from typing import Any, Optional, Union

from .._error import SluiceError
from .._files import open_file
from .._options import Credentials, credentials
from ._place import Destination, Stream

__all__ = ["CAInfo", "CURLStreamFile", "RedisStreamFile", "open_stream", "s3_download"]

_REMOTE = ("http", "https", "s3", "redis", "rediss", "gs", "az", "hf", "ms", "modelscope")


# Where S3 is if nobody says it, neither here nor in the environment; "": as sluice finds it, which is Amazon's in the end.
default_s3_read_endpoint = ""
default_s3_write_endpoint = ""


class CAInfo:
    """Whose certificates are trusted: those of a PEM file, those of a directory, or everybody's. Exactly one of them is said."""

    __slots__ = ("_allow_untrusted", "_cacert", "_capath", "_fd")

    def __init__(self, *, cacert: Optional[str] = None, capath: Optional[str] = None, allow_untrusted: bool = False) -> None:
        if (cacert is not None) + (capath is not None) + bool(allow_untrusted) != 1:
            raise ValueError(
                "Exactly one of cacert, capath, or allow_untrusted=True must be specified. For default certificate verification, "
                "use certificate_handling=None"
            )
        if cacert is not None and not os.path.isfile(cacert):
            raise ValueError(f"Invalid cacert file path: {cacert}")
        if capath is not None and not os.path.isdir(capath):
            raise ValueError(f"Invalid capath directory path: {capath}")
        self._cacert, self._capath, self._allow_untrusted = cacert, capath, bool(allow_untrusted)
        self._fd = None if capath is None else _one_file(capath)

    @property
    def curl_flags(self) -> tuple[str, ...]:
        """As curl's command line says it."""
        if self._cacert is not None:
            return ("--cacert", str(self._cacert))
        return ("--capath", str(self._capath)) if self._capath is not None else ("--insecure",)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CAInfo) and self.curl_flags == other.curl_flags

    def __hash__(self) -> int:
        return hash(self.curl_flags)

    def __del__(self) -> None:
        fd = getattr(self, "_fd", None)
        if fd is not None:
            os.close(fd)

    def trusted(self) -> dict[str, Any]:
        """As credentials() takes it; good as long as this object lives."""
        if self._allow_untrusted:
            return {"verify_tls": False}
        return {"ca_file": f"/proc/self/fd/{self._fd}" if self._fd is not None else self._cacert}


def _one_file(folder: str) -> int:
    """All certificates of a directory, in a file of this process's memory."""
    fd = os.memfd_create("sluice-certificates", os.MFD_CLOEXEC)
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            with open(path, "rb") as file:
                data = file.read(1 << 24)
            if b"-----BEGIN CERTIFICATE-----" in data:
                os.write(fd, data + b"\n")
    return fd


def _enforce_scheme(endpoint: str, allow_http: bool = False, force_http: bool = False) -> str:
    """An endpoint with its scheme; http:// is good where it is written out."""
    if "://" not in endpoint:
        return f"{'http' if force_http else 'https'}://{endpoint}"
    return "http://" + endpoint[8:] if force_http and endpoint.startswith("https://") else endpoint


def _endpoint(endpoint: Optional[str], force_http: Optional[bool], default: str) -> Optional[str]:
    if not endpoint and not os.environ.get("AWS_ENDPOINT_URL_S3") and not os.environ.get("AWS_ENDPOINT_URL"):
        endpoint = default
    return _enforce_scheme(endpoint, True, bool(force_http)) if endpoint else None


def _who(
    key: Optional[str], secret: Optional[str], endpoint: Optional[str], config: Any, region: Optional[str],
    handling: Optional[CAInfo], scheme: str,
) -> Credentials:
    s3 = scheme == "s3"
    return credentials(
        access_key_id=key or None if s3 else None, secret_access_key=secret or None if s3 else None,
        endpoint=endpoint if s3 else None, region=region if s3 else None,
        config_file=os.fsdecode(config) if config and s3 and not key else None,
        anonymous=True if s3 and key == secret == "" else None, **_handling(handling),
    )


def _part(begin: Optional[int], end: Optional[int]) -> tuple[int, Optional[int]]:
    if (begin or 0) < 0:
        raise ValueError("Invalid begin, must be non-negative")
    if end is not None and end <= (begin or 0):
        raise ValueError(f"End marker must come strictly after begin marker (requested range: {begin or 0} to {end})")
    return begin or 0, end


class _Opened(Stream):
    """A URI, or a part of it."""

    def __init__(
        self, uri: str, who: Credentials, begin: Optional[int], end: Optional[int], buffer_size: Optional[int],
        trusted: Optional[CAInfo] = None,
    ) -> None:
        self._trusted = trusted  # its file is read when a connection is made
        first, last = _part(begin, end)
        try:
            raw: Any = open_file(uri, begin=first, end=last, buffer_size=0, credentials=who)
        except SluiceError as error:
            kind = FileNotFoundError if error.kind == "NOT_FOUND" else OSError
            raise kind(f"Failed to open stream: {error}") from error
        super().__init__(raw, uri, who, not first and last is None, buffer_size or io.DEFAULT_BUFFER_SIZE)
        self._error_context: list[str] = []

    def _failed(self, error: SluiceError) -> OSError:
        return OSError("\n".join([str(error), *self._error_context]))

    def read(self, size: Optional[int] = None) -> bytes:
        """So many bytes; without a number all that are left."""
        try:
            return super().read(size)
        except SluiceError as error:
            raise self._failed(error) from error

    def readinto(self, ba: Any) -> int:
        """As many as fit."""
        try:
            return super().readinto(ba)
        except SluiceError as error:
            raise self._failed(error) from error

    def seek(self, position: int, whence: int = io.SEEK_SET) -> int:
        """As of any file."""
        return super().seek(position, whence)


class CURLStreamFile(_Opened):
    """An HTTP URL, or an s3:// URI, as a file. It seeks freely; what is read is asked for then."""

    def __init__(
        self, uri: str, begin: Optional[int] = None, end: Optional[int] = None, headers: Optional[dict[str, Any]] = None, *,
        buffer_size: Optional[int] = None, certificate_handling: Optional[CAInfo] = None,
    ) -> None:
        super().__init__(
            uri, credentials(headers=headers, **_handling(certificate_handling)), begin, end, buffer_size, certificate_handling
        )

    def register_error_context(self, msg: str) -> None:
        """What the message of a read that fails later ends with."""
        self._error_context.append(msg)


class _Asked(CURLStreamFile):
    """The same by whom open_stream() was told."""

    def __init__(
        self, uri: str, who: Credentials, begin: Optional[int], end: Optional[int], buffer_size: Optional[int],
        trusted: Optional[CAInfo],
    ) -> None:
        _Opened.__init__(self, uri, who, begin, end, buffer_size, trusted)


class RedisStreamFile(_Opened):
    """A model in Redis as one file."""

    def __init__(
        self, uri: str, *, begin: Optional[int] = None, end: Optional[int] = None, buffer_size: Optional[int] = None
    ) -> None:
        super().__init__(uri, credentials(), begin, end, buffer_size)


def _handling(given: Optional[CAInfo]) -> dict[str, Any]:
    if given is not None and not isinstance(given, CAInfo):
        raise TypeError(f"certificate_handling must either be None or a CAInfo object, not {type(given).__name__}")
    return given.trusted() if given is not None else {}


def _local(path: str, mode: str, buffer_size: Optional[int], begin: Optional[int]) -> Any:
    if "b" not in mode:
        raise ValueError('Only binary modes ("rb", "wb", "wb+", etc.) are valid when opening local file streams.')
    folder = os.path.dirname(path)
    if folder and any(letter in mode for letter in "wax"):
        os.makedirs(folder, exist_ok=True)
    file = open(path, mode, buffering=-1 if buffer_size is None else buffer_size)
    file.seek(begin or 0)
    return file


def open_stream(
    path_uri: Union[str, bytes, "os.PathLike[str]", int], mode: str = "rb", s3_access_key_id: Optional[str] = None,
    s3_secret_access_key: Optional[str] = None, s3_endpoint: Optional[str] = None, s3_config_path: Any = None,
    buffer_size: Optional[int] = None, force_http: Optional[bool] = None, *, begin: Optional[int] = None,
    end: Optional[int] = None, s3_region_name: Optional[str] = None, s3_signature_version: Optional[str] = None,
    certificate_handling: Optional[CAInfo] = None,
) -> Any:
    """A path or a URI as a binary file. A URI that is opened for writing is for TensorSerializer."""
    if isinstance(path_uri, int):
        return os.fdopen(path_uri, mode)
    path = os.fsdecode(path_uri)
    scheme = path.split("://", 1)[0].lower() if "://" in path and isinstance(path_uri, str) else ""
    if scheme not in _REMOTE:
        return _local(path, mode, buffer_size, begin)
    kind = "".join(sorted(mode))
    if kind != "br" and (scheme != "s3" or kind not in ("bw", "+bw", "ab", "+ab")):
        raise ValueError(
            f'Only the mode "rb" is valid when opening {scheme}:// streams.' if scheme != "s3" else
            'Only the modes "rb", "wb[+]", and "ab[+]" are valid when opening s3:// streams.'
        )
    if s3_signature_version not in (None, "s3v4"):
        raise NotImplementedError("requests are signed with version 4 only")
    who = _who(
        s3_access_key_id, s3_secret_access_key,
        _endpoint(s3_endpoint, force_http, default_s3_read_endpoint if kind == "br" else default_s3_write_endpoint),
        s3_config_path, s3_region_name, certificate_handling, scheme,
    )
    if kind != "br":
        return Destination(path, who)
    if scheme in ("redis", "rediss"):
        return RedisStreamFile(path, begin=begin, end=end, buffer_size=buffer_size)
    return _Asked(path, who, begin, end, buffer_size, certificate_handling)


def s3_download(
    path_uri: str, s3_access_key_id: Optional[str], s3_secret_access_key: Optional[str], s3_endpoint: Optional[str] = None,
    s3_region_name: Optional[str] = None, s3_signature_version: Optional[str] = None, buffer_size: Optional[int] = None,
    begin: Optional[int] = None, end: Optional[int] = None, certificate_handling: Optional[CAInfo] = None,
) -> CURLStreamFile:
    """An s3:// URI as a file."""
    if not path_uri.lower().startswith("s3://"):
        raise ValueError("Invalid S3 URI: it does not begin with s3://")
    found: CURLStreamFile = open_stream(
        path_uri, "rb", s3_access_key_id, s3_secret_access_key, s3_endpoint, None, buffer_size, begin=begin, end=end,
        s3_region_name=s3_region_name, s3_signature_version=s3_signature_version, certificate_handling=certificate_handling,
    )
    return found
