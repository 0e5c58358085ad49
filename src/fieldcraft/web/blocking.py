"""Pages that an agent must not see, because they hold the benchmark that it is tested on."""

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
# Authors of benchmarks write this beside a number into their files, so that copies can be found.
_CANARY = re.compile(r"canary[\s_-]+guid", re.IGNORECASE)
_NESTED_URL = re.compile(
    r"https?:/+"
)  # an archive or a proxy has the address of the page in its own
_MAX_DECODINGS = 3  # of %25 and the like; a server decodes once, a proxy once more


class Blocklist:
    """Hosts and addresses of pages that are neither read nor listed."""

    def __init__(self, patterns: Sequence[str]) -> None:
        """Take the patterns of addresses that are blocked.

        Args:
            patterns: a host (`example.org`, with all that ends in `.example.org`), or a host and a
                path with `*` for any characters (`example.org/data/*`).

        Raises UserError for a pattern with a scheme, which could match nothing.
        """
        for pattern in patterns:
            if "://" in pattern or not pattern.strip("/* "):
                raise UserError(
                    f"'{pattern}' does not match any URL: write a host, as in example.org, or a"
                    " host and a path, as in example.org/data/*."
                )
        self._patterns = [pattern.lower() for pattern in patterns]

    def is_blocked(self, url: str) -> bool:
        """Return whether a page must not be seen, also by way of an archive or a proxy."""
        return any(
            _matches(location, pattern)
            for location in _iterate_locations(url)
            for pattern in self._patterns
        )


def has_canary(text: str) -> bool:
    """Return whether a text has the mark by which authors make copies of a benchmark known."""
    return _CANARY.search(text) is not None


def _iterate_locations(url: str) -> Iterator[str]:
    """Yield `host/path?query` of an address and of every other one inside it, in small letters."""
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
    return bool(path) and fnmatchcase(rest, f"*[/=]{pattern}")  # archives do without a scheme
