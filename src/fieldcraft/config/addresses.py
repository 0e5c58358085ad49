"""Addresses in recipes: none holds a secret, and none is shown with one.

Recipes are copied into runs, reports, exports and trackers, and addresses into messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote_plus, urlsplit, urlunsplit

from fieldcraft.types import UserError

HIDDEN = "***"
_USER = "a user or a password"
_TEXTS = frozenset({"instruction", "system", "template", "request"})  # that only models read
_ADDRESS = re.compile(r"[A-Za-z][\w+.-]*://\S+")
_WITHOUT_SCHEME = re.compile(r"(?<!\S)[^\s/@:]+:[^\s/@]+@(?=[^\s@]+$)")  # user:password@host
# Words of the name of a query parameter that holds a secret, as in api_key and X-Amz-Signature.
_SECRET = re.compile(
    r"(?<![a-z])(api_?key|access_?key|key|token|secret|pass(word|wd)?|pwd|auth(orization)?"
    r"|sig(nature)?|credentials?|bearer|jwt|session(_?id)?|sas)(?![a-z])"
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def is_secret(name: str) -> bool:
    """Return whether a query parameter of this name holds a secret: apiKey, access_token, sig."""
    return _SECRET.search(_CAMEL.sub("_", name).lower()) is not None


def secret_in(text: str) -> str | None:
    """Return the kind of secret in the addresses of a text: a user or password, or the name of a
    query parameter; None where there is none."""
    if _WITHOUT_SCHEME.search(text):
        return _USER
    kinds = (_secret_of(found[0]) for found in _ADDRESS.finditer(text))
    return next((kind for kind in kinds if kind is not None), None)


def shown_address(text: str) -> str:
    """Return a text for reports, logs and messages: every secret in its addresses becomes ***."""
    text = _WITHOUT_SCHEME.sub(f"{HIDDEN}@", text)
    return _ADDRESS.sub(lambda found: _without_secrets(found[0]), text)


class SecretShown(UserError):
    """An address holds a secret, in a place that is copied."""


def refuse_secrets(data: Any) -> None:
    """Raise SecretShown for an address with a secret anywhere in the keys of a recipe. The message
    names the key, and never the secret."""
    for place, text in _texts(data, ()):
        refuse_secret(".".join(place), text)


def refuse_secret(key: str, text: str | None) -> None:
    """Raise SecretShown for an address with a secret as the value of a key or an option."""
    if text is None or (kind := secret_in(text)) is None:
        return
    raise SecretShown(
        f"the address of '{key}' holds {kind}, which would be copied into runs and reports: write"
        " the address without it, and name an environment variable that holds the secret in"
        " api_key_env where the section has that key, else let a proxy on this machine add it."
    )


def _texts(value: Any, place: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    match value:
        case Mapping():
            for key, inner in value.items():
                if key not in _TEXTS:
                    yield from _texts(inner, (*place, str(key)))
        case list() | tuple():
            for number, inner in enumerate(value):
                yield from _texts(inner, (*place, str(number)))
        case str():
            yield place, value


def _secret_of(address: str) -> str | None:
    parts = _parts(address)
    if parts is None:
        return _USER if "@" in address else None
    if "@" in parts.netloc:
        return _USER
    for query in (parts.query, parts.fragment):
        for name, _ in parse_qsl(query):
            if is_secret(name):
                return f"a value of '{name}'"
    return None


def _parts(address: str) -> SplitResult | None:
    """Split an address; None for one that cannot be read, as one with a password that is not
    quoted."""
    try:
        parts = urlsplit(address)
        _ = parts.port
    except ValueError:
        return None
    return parts


def _without_secrets(address: str) -> str:
    if _secret_of(address) is None:
        return address
    parts = _parts(address)
    if parts is None:
        scheme, _, rest = address.partition("://")
        return f"{scheme}://{HIDDEN}@{rest.rpartition('@')[2]}"
    host = parts.netloc.rpartition("@")[2]
    netloc = f"{HIDDEN}@{host}" if "@" in parts.netloc else host
    query, fragment = (_masked(part) for part in (parts.query, parts.fragment))
    return urlunsplit((parts.scheme, netloc, parts.path, query, fragment))


def _masked(query: str) -> str:
    """Return a query whose secrets have no values, the rest as it was written."""
    parts = (part.partition("=") for part in query.split("&"))
    return "&".join(
        f"{name}={HIDDEN}" if equals and is_secret(unquote_plus(name)) else f"{name}{equals}{value}"
        for name, equals, value in parts
    )
