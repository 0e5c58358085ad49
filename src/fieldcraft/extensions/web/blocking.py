"""Blocklist of pages with benchmark data, which an agent must not see during evaluation."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from urllib.parse import unquote

import httpx

from fieldcraft.types import UserError

# Copies of questions and answers of benchmarks. Agents have found the answers of BrowseComp in a
# data set on Hugging Face.
BENCHMARK_PATTERNS = (
    "huggingface.co/datasets/*",
    "huggingface.co/spaces/*",
    "hf.co/datasets/*",
    "hf-mirror.com/datasets/*",
    "datasets-server.huggingface.co",
    "openaipublic.blob.core.windows.net/simple-evals/*",
    "github.com/openai/simple-evals*",
    "raw.githubusercontent.com/openai/simple-evals*",
)
_NESTED_URL = re.compile(
    r"https?:/+"
)  # archives and proxies embed the address of the page in theirs
_HOST = re.compile(r"\[[0-9a-f:.]+\]|[^\s*?#@:\[\]\\]+")  # without a port
_AUTHORITY_END = re.compile(r"[/?#\\]")
_MAX_DECODINGS = 3  # nested percent-encodings; a server decodes once, a proxy again


class Blocklist:
    """Hosts and URLs of pages that are neither read nor listed."""

    def __init__(self, patterns: Sequence[str]) -> None:
        """Create a blocklist.

        Args:
            patterns: hosts (`example.org`, with every host below it), or hosts with a path and
                `*` for any characters (`example.org/data/*`).

        Raises UserError for a pattern that would never match, such as one with a scheme or a port,
        or with `*` in the host.
        """
        self._patterns = [_normalise_pattern(pattern) for pattern in patterns]

    def is_blocked(self, url: str) -> bool:
        """Return whether a page is blocked, also when accessed through an archive or a proxy."""
        return any(
            _matches(location, pattern)
            for location in _iterate_locations(url)
            for pattern in self._patterns
        )


def _normalise_pattern(pattern: str) -> str:
    """Return a pattern in the form of `_iterate_locations`. Raises UserError if none matches it."""
    host, _, path = unquote(pattern).strip().lower().partition("/")
    if not _HOST.fullmatch(host) or path.endswith("/"):
        raise UserError(
            f"'{pattern}' does not match any URL: write a host, as in example.org, or a host and a"
            " path, as in example.org/data/*."
        )
    return f"{_normalise_host(host)}/{path}"


def _normalise_host(host: str) -> str:
    """Return a host as in a request: in punycode, and without a full stop at its end."""
    host = host.rstrip(".")
    if host.isascii():
        return host
    try:
        return httpx.URL(f"http://{host}").raw_host.decode()
    except httpx.InvalidURL:
        return host


def _iterate_locations(url: str) -> Iterator[str]:
    """Yield `host/path?query` of a URL and of every URL embedded in it, in lower case."""
    for _ in range(_MAX_DECODINGS):
        url = unquote(url)
    for part in _NESTED_URL.split(url.lower())[1:]:
        end = _AUTHORITY_END.search(part)
        authority, rest = (part[: end.start()], part[end.start() :]) if end else (part, "")
        host = _normalise_host(re.sub(r":\d*$", "", authority.rpartition("@")[2]))
        yield f"{host}{posixpath.normpath('/' + rest.lstrip('/'))}"


def _matches(location: str, pattern: str) -> bool:
    host, _, path = pattern.partition("/")
    url_host, _, rest = location.partition("/")
    if url_host.removeprefix("www.") == host.removeprefix("www.") or url_host.endswith(f".{host}"):
        return not path or fnmatchcase(rest, path)
    return bool(path) and fnmatchcase(rest, f"*[/=]{pattern}")  # archives may omit the scheme
