"""Search engines of the web: what each one is asked, and how its answer is read. No network here.

The interfaces are those that the providers document: Serper (serper.dev), Tavily
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
_TAG = re.compile(r"</?(?:b|strong|em|mark)>")  # around the words that were found


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """One HTTP request. `headers` may hold a key, the others may not."""

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None  # of JSON


@dataclass(frozen=True, slots=True)
class SearchResult:
    """One result: plain text in one line each. `url` may be empty."""

    title: str
    url: str
    snippet: str


class SearchProvider(Protocol):
    """A search engine: two pure functions, where it is, and where its key is."""

    url: str  # without a path of its own: "" for an engine that each user runs
    key_env: str  # the environment variable of its key; "" for an engine without

    def build_request(self, url: str, key: str, query: str, count: int) -> SearchRequest:
        """Return the request that asks the engine at `url` for `count` results."""
        ...

    def parse_results(self, content: bytes) -> list[SearchResult]:
        """Return the results of an answer. Raises ValueError for another answer."""
        ...


def _clean_line(text: str) -> str:
    """Return a text of a search engine as plain text in one line."""
    return " ".join(html.unescape(_TAG.sub("", text)).split())


def make_result(title: str, url: str, snippet: str) -> SearchResult:
    """Make a result from the texts of an engine; a long snippet is cut."""
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
    """Google's results by serper.dev."""

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
    """The engine of tavily.com."""

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
    """The index of Brave. An answer without results has no `web`."""

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
    """A metasearch engine that one runs oneself. It decides itself how many results it gives."""

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
