"""ToolRL's files (arXiv 2504.13958): a system text with tools, a dialogue, and the expected output.

Its supervised data is an array of {instruction, input, output}. Its reinforcement learning data is
verl's parquet, with a system and a user message in `prompt` and the output as `ground_truth`. Both
kinds of files serve as questions and as demonstrations.
"""

from __future__ import annotations

from pathlib import Path

from fieldcraft.data.records import Record, RecordError, read_valid_records
from fieldcraft.dialects.toolrl import (
    DIALOGUE_HEADING,
    join_system_and_dialogue,
    parse_answer_calls,
    split_thought,
)
from fieldcraft.types import Answer, DemoStep, MalformedCall, Thought


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


def is_toolrl_file(path: Path) -> bool:
    """Return whether a file is ToolRL's, judging by its first record."""
    _, record = next(read_valid_records(path), ("", {}))
    return _split_record(record) is not None


def parse_turn(record: Record) -> list[DemoStep]:
    """Return the thought and the answer of a record. Raises RecordError for a record of another
    kind."""
    parts = _split_record(record)
    if parts is None:
        raise RecordError("another format than ToolRL's, the format of the first record")
    thought, answer = split_thought(parts[2])
    return [Thought(thought), Answer(answer)]


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
