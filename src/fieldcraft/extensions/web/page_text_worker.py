"""Worker process that extracts the text of pages: a parser may run forever on a hostile page.

A request is {"content": "... in base64", "kind": "...", "url": "..."}. The reply is
{"text": "...", "links": [[words, address], ...]}, or {"error": "..."} if the page has no text.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator
from typing import Any

from fieldcraft.extensions.web.page_text import read_page
from fieldcraft.tools.killable_worker import serve_requests
from fieldcraft.types import ToolError


def _read_page(question: dict[str, Any]) -> Iterator[dict[str, Any]]:
    try:
        page = read_page(b64decode(question["content"]), question["kind"], question["url"])
    except ToolError as error:
        yield {"error": str(error)}
    else:
        yield {"text": page.text, "links": page.links}


if __name__ == "__main__":
    read_page(b"<p>The first page loads the libraries.", "text/html", "http://localhost/")
    serve_requests(_read_page)
