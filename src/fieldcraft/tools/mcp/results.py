"""Results of an MCP server, rendered as text for the model."""

from __future__ import annotations

import json
from typing import Any

from fieldcraft.types import ToolError


def render_result(result: Any) -> str:
    """Return the text of a `CallToolResult`. Other content is replaced by a sentence about it.

    Raises ToolError with that text if the server reports that the call failed.
    """
    texts = [_render_part(part) for part in result.content]
    has_text = any(
        text and part.type in ("text", "resource")
        for part, text in zip(result.content, texts, strict=True)
    )
    if not has_text and result.structured_content is not None:
        texts = [json.dumps(result.structured_content, ensure_ascii=False), *filter(None, texts)]
    text = "\n".join(texts)
    if result.is_error:
        raise ToolError(text or "The tool failed and did not say why.")
    return text


def _render_part(part: Any) -> str:
    """Return the text of one piece of content, by its type in the protocol."""
    match part.type:
        case "text":
            return str(part.text)
        case "resource":
            # A resource contains either text or bytes.
            text = part.resource.model_dump().get("text")
            return f"[The file {part.resource.uri} is not text.]" if text is None else str(text)
        case "resource_link":
            return f"[The resource {part.name} is at {part.uri}.]"
        case kind:
            article = "an" if kind[0] in "ai" else "a"
            return f"[The tool returned {article} {kind}, not text.]"
