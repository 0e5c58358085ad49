"""Helpers of the tests about memories of the Berkeley Function Calling Leaderboard."""

from collections.abc import Mapping
from functools import cache

from bfcl_parts import questions_of, read_records

from fieldcraft.extensions.external_envs.bfcl.questions import BfclQuestion
from fieldcraft.types import ToolCall


def questions_about(category: str, scenario: str) -> list[BfclQuestion]:
    return [q for q in questions_of(category) if q.scenario == scenario]


@cache
def read_answers() -> Mapping[str, str]:
    """Return the first accepted answer of each question, by the number in its id."""
    records = read_records("possible_answer", "BFCL_v4_memory.json")
    return {number_of(record["id"]): record["ground_truth"][0] for record in records}


def number_of(name: str) -> str:
    return name.rpartition("_")[2]


def make_note(question: BfclQuestion) -> ToolCall:
    """Return the call that writes the answer of a question."""
    number, answer = (
        number_of(question.id).partition("-")[0],
        read_answers()[number_of(question.id)],
    )
    if question.category == "memory_kv":
        return ToolCall("archival_memory_add", {"key": f"fact_{number}", "value": answer})
    return ToolCall("memory_append", {"text": f"fact_{number}={answer};"})
