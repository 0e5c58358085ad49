"""Secrets in URLs: recipes must not contain them, and outputs mask them.

Recipes are copied into runs, reports, exports and trackers, and URLs into messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote_plus, urlsplit, urlunsplit

from fieldcraft.types import UserError

MASK = "***"
_USER_OR_PASSWORD = "a user or a password"
# Keys of texts that only models read; `prompt` is one in the section `fold` alone.
_FREE_TEXT_KEYS = frozenset({"instruction", "system_prompt", "chat_template_kwargs"})
_FOLD_PROMPT = ("fold", "prompt")
_URL_REGEX = re.compile(r"[A-Za-z][\w+.-]*://\S+")
_CREDENTIALS_REGEX = re.compile(r"(?<!\S)[^\s/@:]+:[^\s/@]+@(?=[^\s@]+$)")  # user:password@host
# Words in the name of a query parameter with a secret, as in api_key and X-Amz-Signature.
_SECRET_NAME_REGEX = re.compile(
    r"(?<![a-z])(api_?key|access_?key|key|token|secret|pass(word|wd)?|pwd|auth(orization)?"
    r"|sig(nature)?|credentials?|bearer|jwt|session(_?id)?|sas)(?![a-z])"
)
_CAMEL_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def is_secret_name(name: str) -> bool:
    """Return whether a query parameter of this name is a secret: apiKey, access_token, sig."""
    return _SECRET_NAME_REGEX.search(_CAMEL_BOUNDARY.sub("_", name).lower()) is not None


def find_secret(text: str) -> str | None:
    """Return the kind of secret in the URLs of a text: a user or password, or the name of a query
    parameter; None if there is none."""
    if _CREDENTIALS_REGEX.search(text):
        return _USER_OR_PASSWORD
    kinds = (_find_url_secret(found[0]) for found in _URL_REGEX.finditer(text))
    return next((kind for kind in kinds if kind is not None), None)


def mask_secrets(text: str) -> str:
    """Return a text for reports, logs and messages, with *** for each secret in its URLs."""
    text = _CREDENTIALS_REGEX.sub(f"{MASK}@", text)
    return _URL_REGEX.sub(lambda found: _mask_url(found[0]), text)


class ExposedSecretError(UserError):
    """A URL that will be copied contains a secret."""


def require_no_secrets(data: Any) -> None:
    """Raise ExposedSecretError for a URL with a secret in any key of a recipe. The message contains
    the key, and never the secret."""
    for path, text in _iter_texts(data, ()):
        require_no_secret(".".join(path), text)


def require_no_secret(key: str, text: str | None) -> None:
    """Raise ExposedSecretError if the value of a key or an option is a URL with a secret."""
    if text is None or (kind := find_secret(text)) is None:
        return
    raise ExposedSecretError(
        f"the URL of '{key}' contains {kind}, which would be copied into runs and reports: remove"
        " it from the URL, and name an environment variable with the secret in api_key_env if the"
        " section has that key; otherwise let a proxy on this machine add it."
    )


def _iter_texts(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    match value:
        case Mapping():
            for key, inner in value.items():
                if key not in _FREE_TEXT_KEYS and (*path[-1:], key) != _FOLD_PROMPT:
                    yield from _iter_texts(inner, (*path, str(key)))
        case list() | tuple():
            for number, inner in enumerate(value):
                yield from _iter_texts(inner, (*path, str(number)))
        case str():
            yield path, value


def _find_url_secret(address: str) -> str | None:
    parts = _split_url(address)
    if parts is None:
        return _USER_OR_PASSWORD if "@" in address else None
    if "@" in parts.netloc:
        return _USER_OR_PASSWORD
    for query in (parts.query, parts.fragment):
        for name, _ in parse_qsl(query):
            if is_secret_name(name):
                return f"a value of '{name}'"
    return None


def _split_url(address: str) -> SplitResult | None:
    """Split a URL. Return None for an invalid one, such as a URL with an unquoted password."""
    try:
        parts = urlsplit(address)
        _ = parts.port
    except ValueError:
        return None
    return parts


def _mask_url(address: str) -> str:
    if _find_url_secret(address) is None:
        return address
    parts = _split_url(address)
    if parts is None:
        scheme, _, rest = address.partition("://")
        return f"{scheme}://{MASK}@{rest.rpartition('@')[2]}"
    host = parts.netloc.rpartition("@")[2]
    netloc = f"{MASK}@{host}" if "@" in parts.netloc else host
    query, fragment = (_mask_query(part) for part in (parts.query, parts.fragment))
    return urlunsplit((parts.scheme, netloc, parts.path, query, fragment))


def _mask_query(query: str) -> str:
    """Return a query with masked secrets; the rest is unchanged."""
    parts = (part.partition("=") for part in query.split("&"))
    return "&".join(
        f"{name}={MASK}"
        if equals and is_secret_name(unquote_plus(name))
        else f"{name}{equals}{value}"
        for name, equals, value in parts
    )
