"""Copies of a benchmark are neither read nor listed."""

import pytest

from fieldcraft.data.decontamination import has_canary
from fieldcraft.extensions.web.blocking import BENCHMARK_PATTERNS, Blocklist
from fieldcraft.types import UserError

DATA = "huggingface.co/datasets/a/b"
MINE = ("blocked.example", "Bücher.example", " ended.example./", "paths.example/a%20B/*")
MINE += ("[2001:db8::1]",)


@pytest.mark.parametrize(
    "url",
    [
        f"https://{DATA}",
        f"HTTP://HuggingFace.co:443/datasets/x?y#{DATA}",
        f"https://www.{DATA}",
        "https://user@huggingface.co/datasets/a",
        "https://huggingface.co./datasets/a",
        "https://huggingface.co//./datasets/a",
        "https://huggingface.co/%64atasets/a",
        "https://huggingface.co/%2564atasets/a",
        "https://huggingface.co/models/../datasets/a",
        f"https://web.archive.org/web/2025/https://{DATA}",
        f"https://web.archive.org/web/2025/{DATA}",
        f"https://example.org/get?url=https%3A%2F%2F{DATA}",
        f"https://example.org/get?url={DATA}",
        "https://datasets-server.huggingface.co/rows?dataset=a",
        "https://blocked.example",
        "https://a.blocked.example/b?c",
        "https://blocked.example?c",
        "https://bücher.example/",
        "https://xn--bcher-kva.example/",
        "https://ended.example",
        "https://paths.example/a%20b/c",
        "https://[2001:db8::1]:8080/",
    ],
)
def test_blocked(url):
    assert Blocklist([*BENCHMARK_PATTERNS, *MINE]).is_blocked(url)


@pytest.mark.parametrize(
    "url",
    [
        "https://huggingface.co/docs/datasets",
        "https://huggingface.co/models",
        "https://nothuggingface.co/datasets/a",
        "https://notblocked.example/a",
        "https://example.org/blocked.example",
        "https://en.wikipedia.org/wiki/Hugging_Face",
        "",
    ],
)
def test_not_blocked(url):
    assert not Blocklist([*BENCHMARK_PATTERNS, "blocked.example"]).is_blocked(url)


PARTS = ["*.example.org", "example.org:80", "example.org/data/", "/example.org", "a b.org", "a?b"]


@pytest.mark.parametrize("pattern", ["https://example.org", "*", "", "/", *PARTS])
def test_a_pattern_that_blocks_nothing_or_everything_is_a_mistake(pattern):
    with pytest.raises(
        UserError, match=r"does not match any URL: write a host, as in example\.org"
    ):
        Blocklist([pattern])


def test_canaries():
    assert has_canary("BENCHMARK DATA. It has the canary GUID abc:26b5c67b")
    assert not has_canary("A canary in a coal mine has no number.")
