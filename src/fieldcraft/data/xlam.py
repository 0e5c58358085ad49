"""xLAM's questions: a query, tools and the expected calls, the last two as JSON texts.

The calls are not executed, and each question has its own tools. So a question is converted to the
dialect `toolrl`: a text that describes the tools, followed by the query.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fieldcraft.data.formats.values import parse_json
from fieldcraft.data.records import Record, RecordError
from fieldcraft.dialects.calls import dump_call_json
from fieldcraft.dialects.toolrl import DIALOGUE_HEADING, POLICY_TAGS, join_system_and_dialogue

_PROMPT_TEMPLATE = """\
Answer the user with calls of these tools:

{tools}

First think between <think> and </think>. Then write the calls between <tool_call> and </tool_call>,
each on a line of its own, as in {{"name": "TOOL", "parameters": {{"PARAMETER": "value"}}}}."""


def normalise_xlam_record(record: Record) -> Record:
    """Convert an xLAM record to one with `question`, `golden_answers`, and the expected calls in
    `metadata`; return any other record unchanged. Raises RecordError for tools or calls that cannot
    be parsed."""
    if not {"query", "tools", "answers"} <= record.keys() or not isinstance(record["query"], str):
        return record
    tools = [
        _render_tool(tool) for tool in _parse_objects(record["tools"], "tools that cannot be read")
    ]
    calls = [_split_call(call) for call in _parse_objects(record["answers"], _UNREADABLE_CALLS)]
    lines = (dump_call_json({"name": n, "parameters": given}, POLICY_TAGS) for n, given in calls)
    dialogue = f"{DIALOGUE_HEADING}\n<user> {record['query'].strip()} </user>"
    return record | {
        "question": join_system_and_dialogue(
            _PROMPT_TEMPLATE.format(tools="\n".join(tools)), dialogue
        ),
        "golden_answers": ["\n".join(("<tool_call>", *lines, "</tool_call>"))],
        "metadata": {"calls": [{"name": name, "arguments": given} for name, given in calls]},
    }


_UNREADABLE_CALLS = "expected calls that cannot be read"


def _parse_objects(given: Any, reason: str) -> list[Mapping[str, Any]]:
    found = parse_json(given, reason) if isinstance(given, str) else given
    if not isinstance(found, list) or not found or not all(isinstance(o, dict) for o in found):
        raise RecordError(reason)
    return found


def _render_tool(tool: Mapping[str, Any]) -> str:
    if not isinstance(tool.get("name"), str):
        raise RecordError("tools that cannot be read")
    return json.dumps(tool, ensure_ascii=False)


def _split_call(call: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    match call:
        case {"name": str(name), "arguments": dict(arguments)}:
            return name, arguments
    raise RecordError(_UNREADABLE_CALLS)
