"""Remote models that must answer before work begins."""

from __future__ import annotations

from pathlib import Path

from fieldcraft.config.sections import Endpoint
from fieldcraft.endpoints.openai import ChatEndpoint


async def open_endpoint(settings: Endpoint, cache: Path | None) -> ChatEndpoint:
    """Open the remote model of a section, which must answer now; `cache` keeps its replies.

    Raises UserError if it does not answer.
    """
    endpoint = ChatEndpoint(
        settings.url, settings.model, api_key_env=settings.api_key_env, cache=cache
    )
    await endpoint.check()
    return endpoint
