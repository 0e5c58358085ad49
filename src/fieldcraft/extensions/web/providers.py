"""Web search engines: construction of requests and parsing of responses, without network access.

The interfaces follow the documentation of the providers: Serper (serper.dev), Tavily
(docs.tavily.com), Brave (api-dashboard.search.brave.com) and SearXNG (docs.searxng.org), whose
server has to allow the format `json`.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import httpx
from pydantic import BaseModel, Field

_MAX_SNIPPET_CHARACTERS = 600  # characters
_TAG = re.compile(r"</?(?:b|strong|em|mark)>")  # around matched words


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """HTTP request. Only `headers` may contain a key."""

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None  # JSON


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Search result: title, URL and snippet are plain text of one line each. `url` may be empty."""

    title: str
    url: str
    snippet: str


class SearchProvider(Protocol):
    """Search engine: two pure functions, its URL, and the environment variable of its key."""

    url: str  # base URL; "" for a self-hosted engine
    key_env: str  # environment variable of its key; "" if the engine needs no key

    def build_request(self, url: str, key: str, query: str, count: int) -> SearchRequest:
        """Return the request for `count` results from the engine at `url`."""
        ...

    def parse_results(self, content: bytes) -> list[SearchResult]:
        """Return the results of a response. Raises ValueError for an invalid response."""
        ...


def _clean_line(text: str) -> str:
    """Convert a text of a search engine to one line of plain text."""
    return " ".join(html.unescape(_TAG.sub("", text)).split())


def make_result(title: str, url: str, snippet: str) -> SearchResult:
    """Make a result from the texts of an engine; a long snippet is truncated."""
    return SearchResult(
        _clean_line(title), "".join(url.split()), _clean_line(snippet)[:_MAX_SNIPPET_CHARACTERS]
    )


class _SerperHit(BaseModel):
    title: str = ""
    link: str
    snippet: str = ""


class _SerperResponse(BaseModel):
    organic: list[_SerperHit]


class Serper:
    """Google results from serper.dev."""

    url = "https://google.serper.dev"
    key_env = "SERPER_API_KEY"

    def build_request(self, url: str, key: str, query: str, count: int) -> SearchRequest:
        return SearchRequest(
            "POST", f"{url}/search", {"X-API-KEY": key}, {"q": query, "num": count}
        )

    def parse_results(self, content: bytes) -> list[SearchResult]:
        hits = _SerperResponse.model_validate_json(content).organic
        return [make_result(hit.title, hit.link, hit.snippet) for hit in hits]


class _TavilyHit(BaseModel):
    title: str = ""
    url: str
    content: str = ""


class _TavilyResponse(BaseModel):
    results: list[_TavilyHit]


class Tavily:
    """Search engine of tavily.com."""

    url = "https://api.tavily.com"
    key_env = "TAVILY_API_KEY"

    def build_request(self, url: str, key: str, query: str, count: int) -> SearchRequest:
        headers = {"Authorization": f"Bearer {key}"}
        return SearchRequest(
            "POST", f"{url}/search", headers, {"query": query, "max_results": count}
        )

    def parse_results(self, content: bytes) -> list[SearchResult]:
        hits = _TavilyResponse.model_validate_json(content).results
        return [make_result(hit.title, hit.url, hit.content) for hit in hits]


class _BraveHit(BaseModel):
    title: str = ""
    url: str
    description: str = ""


class _BraveWeb(BaseModel):
    results: list[_BraveHit] = Field(default_factory=list)


class _BraveResponse(BaseModel):
    type: Literal["search"]
    web: _BraveWeb | None = None


class Brave:
    """Search index of Brave. A response without results has no `web`."""

    url = "https://api.search.brave.com"
    key_env = "BRAVE_API_KEY"

    def build_request(self, url: str, key: str, query: str, count: int) -> SearchRequest:
        search_url = httpx.URL(f"{url}/res/v1/web/search", params={"q": query, "count": count})
        headers = {"X-Subscription-Token": key, "Accept": "application/json"}
        return SearchRequest("GET", str(search_url), headers)

    def parse_results(self, content: bytes) -> list[SearchResult]:
        web = _BraveResponse.model_validate_json(content).web
        return [make_result(h.title, h.url, h.description) for h in (web.results if web else [])]


class _SearXNGHit(BaseModel):
    title: str = ""
    url: str
    content: str | None = None


class _SearXNGResponse(BaseModel):
    results: list[_SearXNGHit]


class SearXNG:
    """Self-hosted metasearch engine, which determines the number of results itself."""

    url = ""
    key_env = ""

    def build_request(self, url: str, key: str, query: str, count: int) -> SearchRequest:
        search_url = httpx.URL(f"{url}/search", params={"q": query, "format": "json"})
        return SearchRequest("GET", str(search_url))

    def parse_results(self, content: bytes) -> list[SearchResult]:
        hits = _SearXNGResponse.model_validate_json(content).results
        return [make_result(hit.title, hit.url, hit.content or "") for hit in hits]


PROVIDERS: Mapping[str, SearchProvider] = {
    "serper": Serper(),
    "tavily": Tavily(),
    "brave": Brave(),
    "searxng": SearXNG(),
}
