"""Clients of remote models, which must be available before work starts."""

from __future__ import annotations

from pathlib import Path

from fieldcraft.config.sections import EndpointConfig
from fieldcraft.endpoints.openai import ChatClient


async def open_chat_client(settings: EndpointConfig, cache: Path | None) -> ChatClient:
    """Open a client of a remote model and check that it responds; `cache` stores its replies.

    Raises UserError if it does not respond.
    """
    client = ChatClient(settings.url, settings.model, api_key_env=settings.api_key_env, cache=cache)
    await client.require_available()
    return client
