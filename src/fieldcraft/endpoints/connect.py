"""Remote models that must answer before work begins."""

from __future__ import annotations

from pathlib import Path

from fieldcraft.config.sections import EndpointConfig
from fieldcraft.endpoints.openai import ChatClient


async def open_chat_client(settings: EndpointConfig, cache: Path | None) -> ChatClient:
    """Open the remote model of a section, which must answer now; `cache` keeps its replies.

    Raises UserError if it does not answer.
    """
    client = ChatClient(settings.url, settings.model, api_key_env=settings.api_key_env, cache=cache)
    await client.require_available()
    return client
