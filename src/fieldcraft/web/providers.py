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

_MOST_SNIPPET = 600  # characters
_TAG = re.compile(r"</?(?:b|strong|em|mark)>")  # around the words that were found


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request. `headers` may hold a key, the others may not."""

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None  # of JSON


@dataclass(frozen=True, slots=True)
class Result:
    """One result: plain text in one line each. `url` may be empty."""

    title: str
    url: str
    snippet: str


class Provider(Protocol):
    """A search engine: two pure functions, where it is, and where its key is."""

    url: str  # without a path of its own: "" for an engine that each user runs
    key_env: str  # the environment variable of its key; "" for an engine without

    def request(self, url: str, key: str, query: str, count: int) -> Request:
        """Return the request that asks the engine at `url` for `count` results."""
        ...

    def results(self, content: bytes) -> list[Result]:
        """Return the results of an answer. Raises ValueError for another answer."""
        ...


def _line(text: str) -> str:
    """Return a text of a search engine as plain text in one line."""
    return " ".join(html.unescape(_TAG.sub("", text)).split())


def make_result(title: str, url: str, snippet: str) -> Result:
    """Make a result from the texts of an engine; a long snippet is cut."""
    return Result(_line(title), "".join(url.split()), _line(snippet)[:_MOST_SNIPPET])


class Serper:
    """Google's results by serper.dev."""

    url = "https://google.serper.dev"
    key_env = "SERPER_API_KEY"

    class _Hit(BaseModel):
        title: str = ""
        link: str
        snippet: str = ""

    class _Body(BaseModel):
        organic: list[Serper._Hit]

    def request(self, url: str, key: str, query: str, count: int) -> Request:
        return Request("POST", f"{url}/search", {"X-API-KEY": key}, {"q": query, "num": count})

    def results(self, content: bytes) -> list[Result]:
        hits = self._Body.model_validate_json(content).organic
        return [make_result(hit.title, hit.link, hit.snippet) for hit in hits]


class Tavily:
    """The engine of tavily.com."""

    url = "https://api.tavily.com"
    key_env = "TAVILY_API_KEY"

    class _Hit(BaseModel):
        title: str = ""
        url: str
        content: str = ""

    class _Body(BaseModel):
        results: list[Tavily._Hit]

    def request(self, url: str, key: str, query: str, count: int) -> Request:
        headers = {"Authorization": f"Bearer {key}"}
        return Request("POST", f"{url}/search", headers, {"query": query, "max_results": count})

    def results(self, content: bytes) -> list[Result]:
        hits = self._Body.model_validate_json(content).results
        return [make_result(hit.title, hit.url, hit.content) for hit in hits]


class Brave:
    """The index of Brave. An answer without results has no `web`."""

    url = "https://api.search.brave.com"
    key_env = "BRAVE_API_KEY"

    class _Hit(BaseModel):
        title: str = ""
        url: str
        description: str = ""

    class _Web(BaseModel):
        results: list[Brave._Hit] = Field(default_factory=list)

    class _Body(BaseModel):
        type: Literal["search"]
        web: Brave._Web | None = None

    def request(self, url: str, key: str, query: str, count: int) -> Request:
        asked = httpx.URL(f"{url}/res/v1/web/search", params={"q": query, "count": count})
        headers = {"X-Subscription-Token": key, "Accept": "application/json"}
        return Request("GET", str(asked), headers)

    def results(self, content: bytes) -> list[Result]:
        web = self._Body.model_validate_json(content).web
        return [make_result(h.title, h.url, h.description) for h in (web.results if web else [])]


class SearXNG:
    """A metasearch engine that one runs oneself. It decides itself how many results it gives."""

    url = ""
    key_env = ""

    class _Hit(BaseModel):
        title: str = ""
        url: str
        content: str | None = None

    class _Body(BaseModel):
        results: list[SearXNG._Hit]

    def request(self, url: str, key: str, query: str, count: int) -> Request:
        asked = httpx.URL(f"{url}/search", params={"q": query, "format": "json"})
        return Request("GET", str(asked))

    def results(self, content: bytes) -> list[Result]:
        hits = self._Body.model_validate_json(content).results
        return [make_result(hit.title, hit.url, hit.content or "") for hit in hits]


PROVIDERS: Mapping[str, Provider] = {
    "serper": Serper(),
    "tavily": Tavily(),
    "brave": Brave(),
    "searxng": SearXNG(),
}
