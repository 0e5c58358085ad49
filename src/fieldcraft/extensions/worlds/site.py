"""Web site of a world, to test agents that search and read the web without network access.

Each passage is a page with links to the passages that it names. `/search` mimics the JSON API of
SearXNG. The site also has problems of the real web: some links lead to pages that moved or no
longer exist, some pages are slow, and one contains a prompt injection. A run serves the site of its
world in its own process, if the world has an address.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import weakref
from pathlib import Path
from urllib.parse import quote

import httpx
from jinja2 import Environment
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse
from starlette.routing import Route

from fieldcraft.data.world import World
from fieldcraft.extensions.worlds.pages import CLOSING_TEXT, make_page_url, make_snippet
from fieldcraft.extensions.worlds.site_index import build_site_index
from fieldcraft.tools.http import InProcessSites
from fieldcraft.tools.serving import serve_until_interrupt

SLOW_PAGE_SECONDS = 2.0  # response time of a slow page
_SLOW_PAGE_SECONDS_IN_RUN = 0.02

_PAGE = Environment(autoescape=True).from_string(
    """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>{{ title }}</title></head>
<body>
<header><h1>{{ title }}</h1></header>
<main><article>
{% for paragraph in text.splitlines() %}<p>{{ paragraph }}</p>
{% endfor %}
<p>{{ closing }}</p>
</article></main>
<nav>
<ul>{% for words, to in links %}<li><a href="{{ to }}">{{ words }}</a></li>
{% endfor %}</ul>
</nav>
</body>
</html>
""",
    globals={"closing": CLOSING_TEXT},
)


def create_site(world: World, folder: Path, slow_seconds: float = SLOW_PAGE_SECONDS) -> Starlette:
    """Create the site as an ASGI application.

    Args:
        world: world whose passages become pages; their titles must be unique.
        folder: folder in which the search index is built.
        slow_seconds: response time of a slow page.

    Raises UserError for a world without passages.
    """
    site_index = build_site_index(world, folder)
    pages = site_index.pages

    async def home(request: Request) -> HTMLResponse:
        links = [(page.title, make_page_url("", page.title)) for page in pages.values()]
        text = f"This site has {len(pages)} pages about one world."
        return HTMLResponse(_PAGE.render(title="All pages", text=text, links=links))

    async def page(request: Request) -> HTMLResponse:
        site_page = pages.get(request.path_params["slug"])
        if site_page is None:
            raise HTTPException(404)
        if site_page.is_delayed:
            await asyncio.sleep(slow_seconds)
        return HTMLResponse(
            _PAGE.render(title=site_page.title, text=site_page.text, links=site_page.links)
        )

    async def moved(request: Request) -> RedirectResponse:
        return RedirectResponse(f"/wiki/{quote(request.path_params['slug'])}", status_code=301)

    async def search(request: Request) -> JSONResponse:
        if request.query_params.get("format") != "json":
            raise HTTPException(400, "add format=json")
        query = request.query_params.get("q", "")
        base = str(request.base_url).rstrip("/")
        results = [
            {
                "url": f"{base}{hit.id}",
                "title": hit.title,
                "content": make_snippet(hit.text, world.snippet_parts),
                "engine": "fieldcraft",
                "score": hit.score,
                "category": "general",
            }
            for hit in site_index.search(query)
        ]
        empty: dict[str, list[str]] = {"answers": [], "corrections": [], "infoboxes": []}
        empty |= {"suggestions": [], "unresponsive_engines": []}
        answer = {"query": query, "number_of_results": len(results), "results": results}
        return JSONResponse(answer | empty)

    async def health(request: Request) -> JSONResponse:
        return JSONResponse({"status": "ok", "pages": len(pages)})

    return Starlette(
        routes=[
            Route("/", home),
            Route("/wiki/{slug:path}", page),
            Route("/moved/{slug:path}", moved),
            Route("/search", search),
            Route("/health", health),
        ]
    )


def serve_site(world: World, host: str, port: int) -> None:
    """Serve a world until Ctrl-C. Port 0 selects a free port, which is printed.

    Raises:
        UserError: the world has no passages, or the address is not available.
    """
    with tempfile.TemporaryDirectory() as folder:
        serve_until_interrupt(create_site(world, Path(folder)), "world", host, port)


def open_site(world: World) -> InProcessSites:
    """Open the site of a world in this process, keyed by its address; empty for a world without an
    address."""
    if world.site is None:
        return {}
    folder = tempfile.mkdtemp()
    app = create_site(world, Path(folder), _SLOW_PAGE_SECONDS_IN_RUN)
    weakref.finalize(app, shutil.rmtree, folder)  # when the site is no longer used
    return {world.site: httpx.ASGITransport(app)}
