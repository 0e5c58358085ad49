"""Files of chats, of preference pairs and of AFM's chains, by the format of their first record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from fieldcraft.data.file_formats import FileFormat, TaskAndSteps
from fieldcraft.data.records import (
    Record,
    RecordError,
    RejectedRecords,
    read_records,
    read_valid_records,
    require_record,
)
from fieldcraft.data.steps_io import ContrastivePair
from fieldcraft.extensions.formats import afm_blocks
from fieldcraft.extensions.formats.demonstration_formats import (
    AfmFormat,
    DemonstrationFormat,
    detect_format,
    normalise_chat_record,
)
from fieldcraft.extensions.formats.preference_pairs import is_pair, parse_pair
from fieldcraft.extensions.formats.published_trajectories import is_autocoa
from fieldcraft.types import UserError

_NUM_INSPECTED_RECORDS = 100  # first records inspected for a call
_OPENAI_ADVICE = (
    "write OpenAI's 'messages', with calls in 'tool_calls' and results of the role 'tool'"
)
_RESPONSES_ITEM_TYPES = ("message", "reasoning", "function_call", "function_call_output")


class ChatFiles(FileFormat):
    """Formats of demonstrations in `demonstration_formats.py` and of preference pairs."""

    def normalise_question(self, record: Record) -> Record:
        return normalise_chat_record(record)

    def find_recipe_key(self, record: Record) -> str | None:
        if is_pair(record):
            return "pairs"
        return None if detect_format(record) is None else "demonstrations"

    def read_demonstrations(
        self, path: Path, first: Record, max_left_out: float
    ) -> tuple[list[TaskAndSteps], Counter[str]] | None:
        detected = detect_format(first)
        if path.suffix != ".txt" and not isinstance(detected, AfmFormat):
            _require_supported_format(read_valid_records(path))
        if detected is None or is_autocoa(first):
            return None
        return _read_records(path, detected, max_left_out)

    def read_pairs(
        self, path: Path, first: Record, max_left_out: float
    ) -> tuple[list[ContrastivePair], Counter[str]] | None:
        if not is_pair(first):
            return None
        rejected = RejectedRecords(path)
        pairs: list[ContrastivePair] = []
        for location, found in read_records(path):
            try:
                pairs.append(parse_pair(require_record(found)))
            except RecordError as error:
                rejected.add(location, error)
        rejected.require_few(len(pairs), max_left_out)
        return pairs, rejected.reasons


def _read_records(
    path: Path, source_format: DemonstrationFormat, max_left_out: float
) -> tuple[list[TaskAndSteps], Counter[str]]:
    """Return the demonstrations, and counts of reasons for which others were left out."""
    demonstrations: list[TaskAndSteps] = []
    rejected = RejectedRecords(path)
    for location, each in read_records(path):
        try:
            demonstrations.append(source_format.to_demonstration(require_record(each)))
        except RecordError as error:
            rejected.add(location, error)
    rejected.require_few(len(demonstrations), max_left_out)
    return demonstrations, rejected.reasons


def _require_supported_format(located_records: Iterable[tuple[str, Record]]) -> None:
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
            return f"messages of Anthropic, with calls in blocks of their content: {_OPENAI_ADVICE}"
        case {"contents": [{"parts": list()}, *_]}:
            return f"Gemini's 'contents' with their 'parts': {_OPENAI_ADVICE}"
        case {"input": list(items)} | {"output": list(items)} | {"items": list(items)} if _has_type(
            items, *_RESPONSES_ITEM_TYPES
        ):
            return f"items of OpenAI's Responses: {_OPENAI_ADVICE}"
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
