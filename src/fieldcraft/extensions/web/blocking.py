"""Blocklist of pages with benchmark data, which an agent must not see during evaluation."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from urllib.parse import unquote

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
_MAX_DECODINGS = 3  # nested percent-encodings; a server decodes once, a proxy again


class Blocklist:
    """Hosts and URLs of pages that are neither read nor listed."""

    def __init__(self, patterns: Sequence[str]) -> None:
        """Create a blocklist.

        Args:
            patterns: hosts (`example.org`, with every host below it), or hosts with a path and
                `*` for any characters (`example.org/data/*`).

        Raises UserError for a pattern with a scheme, which would never match.
        """
        for pattern in patterns:
            if "://" in pattern or not pattern.strip("/* "):
                raise UserError(
                    f"'{pattern}' does not match any URL: write a host, as in example.org, or a"
                    " host and a path, as in example.org/data/*."
                )
        self._patterns = [pattern.lower() for pattern in patterns]

    def is_blocked(self, url: str) -> bool:
        """Return whether a page is blocked, also when accessed through an archive or a proxy."""
        return any(
            _matches(location, pattern)
            for location in _iterate_locations(url)
            for pattern in self._patterns
        )


def _iterate_locations(url: str) -> Iterator[str]:
    """Yield `host/path?query` of a URL and of every URL embedded in it, in lower case."""
    for _ in range(_MAX_DECODINGS):
        url = unquote(url)
    for part in _NESTED_URL.split(url.lower())[1:]:
        authority, slash, rest = part.partition("/")
        host = re.sub(r":\d*$", "", authority.rpartition("@")[2]).rstrip(".")
        yield f"{host}{posixpath.normpath(slash + rest.lstrip('/')) if slash else '/'}"


def _matches(location: str, pattern: str) -> bool:
    host, _, path = pattern.partition("/")
    url_host, _, rest = location.partition("/")
    if url_host.removeprefix("www.") == host.removeprefix("www.") or url_host.endswith(f".{host}"):
        return not path or fnmatchcase(rest, path)
    return bool(path) and fnmatchcase(rest, f"*[/=]{pattern}")  # archives may omit the scheme
