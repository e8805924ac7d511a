"""How stores are reached: what a model's spec says under `source`, with secrets that never lie in a file on a disk."""
from __future__ import annotations

import copy
import os
from typing import Any, Literal, Optional, Union

from ._kinds import encoded, flag, is_list, is_mapping, told

Framework = Literal["torch", "numpy", "jax", "cupy"]
Verify = Literal["auto", "all", "require", "off"]
MetaTensors = Literal["zeros", "keep"]  # what a meta tensor becomes
Spec = Union[str, dict[str, Any], None]  # YAML, or what it says


class Credentials:
    """Made by credentials(). Secrets are in memory of this process, which the library reads as files.

    >>> sluice.credentials(endpoint="http://127.0.0.1:7070").source()
    {'s3': {'endpoint': 'http://127.0.0.1:7070'}}
    """

    def __init__(self, source: dict[str, dict[str, Any]], secrets: dict[tuple[str, str], str]) -> None:
        self._source = {kind: dict(values) for kind, values in source.items()}
        self._secrets = dict(secrets)
        self._fds: list[int] = []
        for (kind, key), text in secrets.items():
            fd = os.memfd_create("sluice-credentials", os.MFD_CLOEXEC)
            self._fds.append(fd)
            os.write(fd, encoded(text, "a secret"))
            self._source.setdefault(kind, {})[key] = f"/proc/self/fd/{fd}"

    def __del__(self) -> None:
        for fd in self.__dict__.pop("_fds", []):
            os.close(fd)

    def __repr__(self) -> str:
        return f"<sluice.Credentials for {', '.join(sorted(self._source)) or 'nothing'}>"

    def __reduce__(self) -> tuple[Any, ...]:
        plain = {
            kind: {key: value for key, value in values.items() if (kind, key) not in self._secrets}
            for kind, values in self._source.items()
        }
        return Credentials, (plain, self._secrets)

    def source(self) -> dict[str, dict[str, Any]]:
        """What stands under `source` of a spec."""
        return self._source


def _given(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _texts_of(given: Any, what: str) -> dict[str, str]:
    """A dict of texts, each a line."""
    if given is None:
        return {}
    if not is_mapping(given):
        raise TypeError(f"{what} is a dict of texts, not {given!r}")
    for name, value in given.items():
        for text in (name, value):
            if not isinstance(text, str):
                raise TypeError(f"{what} is a dict of texts, which {text!r} is not")
            if "\n" in text or "\r" in text:
                raise ValueError(f"{what} has a line's end in {name!r}")
    return dict(given)


def rules(rename: Any) -> list[dict[str, str]]:
    """Of `rename`, as a spec has them. None: none."""
    if rename is None:
        return []
    if not is_list(rename) or not all(is_mapping(rule) for rule in rename):
        raise TypeError(f"rename is a list of rules, each a dict, not {rename!r}")
    return [dict(rule) for rule in rename]


def _s3cmd(key: Optional[str], secret: Optional[str], token: Optional[str]) -> str:
    for value in (key, secret, token):
        if value is not None and ("\n" in value or "\r" in value):
            raise ValueError("a credential has a line's end in it")
    lines = _given(access_key=key, secret_key=secret, access_token=token)
    return "[default]\n" + "".join(f"{name} = {value}\n" for name, value in lines.items())


def credentials(
    *, access_key_id: Optional[str] = None, secret_access_key: Optional[str] = None, session_token: Optional[str] = None,
    region: Optional[str] = None, endpoint: Optional[str] = None, addressing: Optional[str] = None,
    profile: Optional[str] = None, config_file: Optional[str] = None, anonymous: Optional[bool] = None,
    bearer_token: Optional[str] = None, headers: Optional[dict[str, str]] = None, hf_token: Optional[str] = None,
    hf_endpoint: Optional[str] = None, google_credentials_file: Optional[str] = None, azure_account: Optional[str] = None,
    azure_account_key: Optional[str] = None, azure_sas: Optional[str] = None, redis_password: Optional[str] = None,
    ca_file: Optional[str] = None, verify_tls: Optional[bool] = None, source: Optional[dict[str, dict[str, Any]]] = None,
) -> Credentials:
    """Who asks, where the usual places (environment, profiles, metadata servers) do not say it.

    The first nine are of S3 and its like; endpoint may be http:// too. source: anything else that stands under `source` of a
    model's spec, such as {"gs": {"userProject": "p"}}. ValueError: one of two that go together is missing.

    >>> who = sluice.credentials(endpoint="http://127.0.0.1:7070", access_key_id="a", secret_access_key="b")
    >>> sluice.open("s3://models/m/", credentials=who)  # doctest: +SKIP
    """
    for name, text in {
        "access_key_id": access_key_id, "secret_access_key": secret_access_key, "session_token": session_token, "region": region,
        "endpoint": endpoint, "addressing": addressing, "profile": profile, "config_file": config_file, "bearer_token": bearer_token,
        "hf_token": hf_token, "hf_endpoint": hf_endpoint, "google_credentials_file": google_credentials_file, "azure_account": azure_account,
        "azure_account_key": azure_account_key, "azure_sas": azure_sas, "redis_password": redis_password, "ca_file": ca_file,
    }.items():
        encoded(told(text, name) or "", name)
    for name, value in (("anonymous", anonymous), ("verify_tls", verify_tls)):
        if value is not None:
            flag(value, name)
    if (access_key_id is None) != (secret_access_key is None):
        raise ValueError("access_key_id and secret_access_key go together")
    if session_token is not None and access_key_id is None:
        raise ValueError("session_token goes with access_key_id and secret_access_key")
    if source is not None and not (is_mapping(source) and all(is_mapping(values) for values in source.values())):
        raise TypeError(f'source is a dict of dicts such as {{"gs": {{"userProject": "p"}}}}, not {source!r}')
    found: dict[str, dict[str, Any]] = {
        "s3": _given(
            region=region, endpoint=endpoint, addressing=addressing, profile=profile, configFile=config_file, anonymous=anonymous
        ),
        "hf": _given(endpoint=hf_endpoint),
        "gs": _given(credentialsFile=google_credentials_file),
        "az": _given(account=azure_account),
        "tls": _given(caFile=ca_file, verify=verify_tls),
    }
    secrets: dict[tuple[str, str], Optional[str]] = {
        ("s3", "configFile"): None if access_key_id is None else _s3cmd(access_key_id, secret_access_key, session_token),
        ("http", "bearerTokenFile"): bearer_token,
        ("http", "headersFile"): "".join(f"{name}: {value}\n" for name, value in _texts_of(headers, "headers").items()) or None,
        ("hf", "tokenFile"): hf_token,
        ("az", "accountKeyFile"): azure_account_key,
        ("az", "sasFile"): azure_sas,
        ("redis", "passwordFile"): redis_password,
    }
    for kind, values in (source or {}).items():
        found.setdefault(kind, {}).update(values)
    return Credentials({kind: values for kind, values in found.items() if values}, _given_secrets(secrets))


def _given_secrets(secrets: dict[tuple[str, str], Optional[str]]) -> dict[tuple[str, str], str]:
    return {key: value for key, value in secrets.items() if value is not None}


def spec_text(
    who: Optional[Credentials], spec: Union[str, dict[str, Any], None] = None, tensors: Optional[dict[str, Any]] = None
) -> str:
    """YAML for the library; JSON is YAML."""
    if who is not None and not isinstance(who, Credentials):
        raise TypeError(f"credentials are made by sluice.credentials(), and are not {who!r}")
    if spec is not None and not isinstance(spec, (str, dict)):
        raise TypeError(f"spec is a dict, or YAML in a str, not {spec!r}")
    if isinstance(spec, str):
        if who is not None or tensors:
            raise ValueError("a spec in YAML stands alone: say credentials and names in it, or give the spec as a dict")
        return spec
    whole: dict[str, Any] = copy.deepcopy(spec) if spec else {}
    if who is not None:
        whole.setdefault("source", {}).update(who.source())
    if tensors:
        whole.setdefault("tensors", {}).update(tensors)
    if not whole:
        return ""
    import json  # few models have a spec of their own

    try:
        return json.dumps(whole)
    except TypeError as error:
        raise TypeError(f"spec has a value that is neither text, number, list nor dict: {error}") from None
