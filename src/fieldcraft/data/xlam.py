"""xLAM's questions: a query, tools and the calls that answer it, the last two as JSON texts.

Nobody runs the calls, and each question has tools of its own. So a question becomes one of the
dialect `toolrl`: a text that shows the tools, and the query below it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fieldcraft.data.formats.values import parsed_json
from fieldcraft.data.records import Malformed, Record
from fieldcraft.dialects.calls import dump_call
from fieldcraft.dialects.toolrl import HEADING, WRITTEN, with_system

_REQUEST = """\
Answer the user with calls of these tools:

{tools}

First think between <think> and </think>. Then write the calls between <tool_call> and </tool_call>,
each on a line of its own, as in {{"name": "TOOL", "parameters": {{"PARAMETER": "value"}}}}."""


def xlam_record(record: Record) -> Record:
    """Return a record of xLAM as one with `question`, `golden_answers`, and the wanted calls in
    `metadata`; any other as it is. Raises Malformed for tools or calls that cannot be read."""
    if not {"query", "tools", "answers"} <= record.keys() or not isinstance(record["query"], str):
        return record
    tools = [_tool(tool) for tool in _objects(record["tools"], "tools that cannot be read")]
    calls = [_call(call) for call in _objects(record["answers"], _UNREAD)]
    lines = (dump_call({"name": n, "parameters": given}, WRITTEN) for n, given in calls)
    dialogue = f"{HEADING}\n<user> {record['query'].strip()} </user>"
    return record | {
        "question": with_system(_REQUEST.format(tools="\n".join(tools)), dialogue),
        "golden_answers": ["\n".join(("<tool_call>", *lines, "</tool_call>"))],
        "metadata": {"calls": [{"name": name, "arguments": given} for name, given in calls]},
    }


_UNREAD = "wanted calls that cannot be read"


def _objects(given: Any, otherwise: str) -> list[Mapping[str, Any]]:
    found = parsed_json(given, otherwise) if isinstance(given, str) else given
    if not isinstance(found, list) or not found or not all(isinstance(o, dict) for o in found):
        raise Malformed(otherwise)
    return found


def _tool(tool: Mapping[str, Any]) -> str:
    if not isinstance(tool.get("name"), str):
        raise Malformed("tools that cannot be read")
    return json.dumps(tool, ensure_ascii=False)


def _call(call: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    match call:
        case {"name": str(name), "arguments": dict(arguments)}:
            return name, arguments
    raise Malformed(_UNREAD)
