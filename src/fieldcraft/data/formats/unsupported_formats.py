"""Known formats of demonstrations that are not supported, and conversions for them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from fieldcraft.data.formats import afm_blocks
from fieldcraft.data.records import Record
from fieldcraft.types import UserError

_NUM_INSPECTED_RECORDS = 100  # first records inspected for a call
_OPENAI = "write OpenAI's 'messages', with calls in 'tool_calls' and results of the role 'tool'"
_RESPONSES_ITEM_TYPES = ("message", "reasoning", "function_call", "function_call_output")


def require_supported_format(located_records: Iterable[tuple[str, Record]]) -> None:
    """Raise UserError, naming the location, if one of the first records has a known but unsupported
    format."""
    for location, record in islice(located_records, _NUM_INSPECTED_RECORDS):
        if description := _describe_unsupported(record):
            raise UserError(f"{location} holds {description}.")


def _describe_unsupported(record: Record) -> str:
    """Return the format of a record and the remedy, or "" for any other record."""
    match record:
        case {"messages": list(messages)} if _has_type(
            _content_parts(messages), "tool_use", "tool_result"
        ):
            return f"messages of Anthropic, with calls in blocks of their content: {_OPENAI}"
        case {"contents": [{"parts": list()}, *_]}:
            return f"Gemini's 'contents' with their 'parts': {_OPENAI}"
        case {"input": list(items)} | {"output": list(items)} | {"items": list(items)} if _has_type(
            items, *_RESPONSES_ITEM_TYPES
        ):
            return f"items of OpenAI's Responses: {_OPENAI}"
        case {"instruction": str(), "output": str(output)} if not afm_blocks.is_block_text(output):
            return (
                "Alpaca's 'instruction', 'input' and 'output': write OpenAI's 'messages', with"
                " instruction and input as the user's message and the output as the assistant's"
            )
    return ""


def _content_parts(messages: list[Any]) -> list[Any]:
    """Return the parts of the contents of messages."""
    contents = [m.get("content") for m in messages if isinstance(m, dict)]
    return [part for content in contents if isinstance(content, list) for part in content]


def _has_type(parts: list[Any], *types: str) -> bool:
    return any(isinstance(part, dict) and part.get("type") in types for part in parts)
