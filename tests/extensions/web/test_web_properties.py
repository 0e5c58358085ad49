"""Parsers return a result or raise their declared error for any text of a model or server."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fieldcraft.data.decontamination import has_canary
from fieldcraft.extensions.web.blocking import BENCHMARK_PATTERNS, Blocklist
from fieldcraft.extensions.web.fetch import parse_url
from fieldcraft.extensions.web.page_text import read_page
from fieldcraft.extensions.web.providers import PROVIDERS
from fieldcraft.types import ToolError

pytest.importorskip("trafilatura", reason="needs the extra web")

ODD = st.text(st.characters(), max_size=60)  # with halves of characters
URLS = st.one_of(
    ODD, st.builds("{}://{}{}".format, st.sampled_from(["http", "https", "x"]), ODD, ODD)
)
KINDS = st.sampled_from(
    [
        *("", "text/html", "text/plain", "text/html; charset=utf-16", "application/pdf", ";"),
        *("text/html; charset=nothing", "text/plain; charset=", "application/ld+json", "image/png"),
    ]
)
PIECES = [
    b"<html>",
    b"<a href='",
    b"http://[",
    b"'>",
    b"<!--",
    b"&#xD800;",
    b"\xff\xfe",
    b"%PDF-1.4",
]
PIECES += [
    b"\x00",
    b"<?xml version='1.0' encoding='latin-9'?>",
    b"<p>words here</p>",
    b"1 0 obj <<",
]
CONTENT = st.one_of(
    st.binary(max_size=200), st.lists(st.sampled_from(PIECES), max_size=12).map(b"".join)
)


@given(URLS)
def test_an_address_is_one_of_the_web_or_refused(text):
    try:
        url = parse_url(text)
    except ToolError:
        return
    assert url.scheme in ("http", "https")
    assert url.host
    assert not url.userinfo
    assert not url.fragment
    assert parse_url(str(url)) == url


@given(URLS, st.text("ab/?#&%=é\ud800", max_size=20))
def test_every_address_is_blocked_or_not(text, rest):
    assert Blocklist(BENCHMARK_PATTERNS).is_blocked(text) in (True, False)
    assert Blocklist(BENCHMARK_PATTERNS).is_blocked(f"https://hf.co/datasets/a{rest}")
    assert has_canary(f"{text} canary GUID {text}")


@settings(max_examples=60)
@given(CONTENT, KINDS)
def test_every_page_is_text_or_refused(content, kind):
    try:
        page = read_page(content, kind, "http://a/b")
    except ToolError:
        return
    page.text.encode()
    assert page.text.strip() or page.links
    assert all(to.startswith(("http://", "https://")) for _, to in page.links)


@given(st.sampled_from([*PROVIDERS]), ODD.map(lambda t: t.encode(errors="replace")), ODD)
def test_every_answer_of_an_engine_is_read_or_refused(name, content, query):
    with contextlib.suppress(ValueError):
        PROVIDERS[name].parse_results(content)
    query = query.encode(errors="replace").decode()
    assert PROVIDERS[name].build_request("http://a", "k", query, 1).url.startswith("http://a/")
