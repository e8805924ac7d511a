"""tensorizer.stream_io: files and URIs as binary files."""
from __future__ import annotations

import io
import os
from typing import Any, NamedTuple, Optional, Union

from .._files import open_file
from .._options import Credentials, credentials
from ._place import Destination, Stream

__all__ = ["CAInfo", "open_stream"]

_REMOTE = ("http", "https", "s3", "redis", "rediss", "gs", "az", "hf")


class CAInfo(NamedTuple):
    """Whose certificates are trusted: a file of them, or nobody's are asked for."""

    cainfo: Optional[str] = None
    allow_untrusted: bool = False


def _endpoint(endpoint: Optional[str], force_http: Optional[bool]) -> Optional[str]:
    if not endpoint:
        return None
    if "://" not in endpoint:
        return f"{'http' if force_http else 'https'}://{endpoint}"
    return endpoint


def _who(
    key: Optional[str], secret: Optional[str], endpoint: Optional[str], config: Any, region: Optional[str],
    handling: Optional[CAInfo], scheme: str,
) -> Credentials:
    s3 = scheme == "s3"
    return credentials(
        access_key_id=key or None if s3 else None, secret_access_key=secret or None if s3 else None,
        endpoint=endpoint if s3 else None, region=region if s3 else None,
        config_file=os.fsdecode(config) if config and s3 and not key else None,
        ca_file=handling.cainfo if handling else None, verify_tls=False if handling and handling.allow_untrusted else None,
    )


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
        s3_access_key_id, s3_secret_access_key, _endpoint(s3_endpoint, force_http), s3_config_path, s3_region_name,
        certificate_handling, scheme,
    )
    if kind != "br":
        return Destination(path, who)
    raw: Any = open_file(path, begin=begin or 0, end=end, buffer_size=0, credentials=who)
    return Stream(raw, path, who, not begin and end is None, buffer_size or io.DEFAULT_BUFFER_SIZE)
