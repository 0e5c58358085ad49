"""Questions with expected calls: ToolRL's files (arXiv 2504.13958), and xLAM's.

ToolRL's records have a system text with tools, a dialogue, and the expected output. Its supervised
data is an array of {instruction, input, output}. Its reinforcement learning data is verl's parquet,
with a system and a user message in `prompt` and the output as `ground_truth`. Both kinds of files
serve as questions and as demonstrations.

xLAM's records have a query, tools and the expected calls, the last two as JSON texts. The calls are
not executed, and each question has its own tools. So a question is converted to the dialect
`toolrl`: a text that describes the tools, followed by the query.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fieldcraft.data.file_formats import FileFormat, TaskAndSteps
from fieldcraft.data.records import (
    Record,
    RecordError,
    parse_json,
    parse_records,
)
from fieldcraft.data.tasks import parse_task
from fieldcraft.dialects.calls import dump_call_json
from fieldcraft.extensions.methods.toolrl import (
    DIALOGUE_HEADING,
    POLICY_TAGS,
    join_system_and_dialogue,
    parse_answer_calls,
    split_thought,
)
from fieldcraft.types import Answer, MalformedCall, Thought


class ToolRLFormat(FileFormat):
    """Format of ToolRL's files, and of xLAM's questions."""

    def normalise_question(self, record: Record) -> Record:
        return normalise_xlam_record(normalise_toolrl_record(record))

    def read_demonstrations(
        self, path: Path, first: Record, max_left_out: float
    ) -> tuple[list[TaskAndSteps], Counter[str]] | None:
        if _split_record(first) is None:
            return None
        return parse_records(path, parse_demonstration, max_left_out)


def normalise_toolrl_record(record: Record) -> Record:
    """Convert a ToolRL record to one with `question`, `golden_answers`, and the expected calls in
    `metadata`; return any other record unchanged. Raises RecordError for an output without an
    answer, or with a call that cannot be parsed."""
    parts = _split_record(record)
    if parts is None:
        return record
    system, dialogue, output = parts
    _, answer = split_thought(output)
    if not answer:
        sentence = "the output ends with its thought; remove the record."
        raise RecordError("no answer after the thought", sentence)
    calls = []
    for call in parse_answer_calls(answer):
        if isinstance(call, MalformedCall):
            sentence = f"{call.reason} Correct the output, or remove the record."
            raise RecordError("an expected call that cannot be read", sentence)
        calls.append({"name": call.tool, "arguments": call.arguments})
    return record | {
        "question": join_system_and_dialogue(system, dialogue),
        "golden_answers": [answer],
        "metadata": {"calls": calls},
    }


def parse_demonstration(record: Record) -> TaskAndSteps:
    """Return the question of a record, and its thought and its answer. Raises RecordError for a
    record of another kind."""
    parts = _split_record(record)
    if parts is None:
        raise RecordError("another format than ToolRL's, the format of the first record")
    thought, answer = split_thought(parts[2])
    return parse_task(record), [Thought(thought), Answer(answer)]


def _split_record(record: Record) -> tuple[str, str, str] | None:
    """Return the system text, the dialogue and the output, or None for a record of another kind."""
    match record:
        case {"instruction": str(system), "input": str(dialogue), "output": str(output)}:
            pass
        case {
            "prompt": [
                {"role": "system", "content": str(system)},
                {"role": "user", "content": str(dialogue)},
            ],
            "reward_model": {"ground_truth": str(output)},
        }:
            pass
        case _:
            return None
    return (system, dialogue, output) if dialogue.lstrip().startswith(DIALOGUE_HEADING) else None


# -- xLAM --------------------------------------------------------------------------------------

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
