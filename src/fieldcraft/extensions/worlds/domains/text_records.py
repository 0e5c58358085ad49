"""Records of answered questions as plain text.

They hold thoughts, programs, queries and results, one per line, without tool names or call syntax.
A large model has read programs, and queries with their results, before it is trained on tools; a
base model trained from scratch reads these records instead.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence

from fieldcraft.dialects.base import encode_policy_text
from fieldcraft.extensions.worlds.abacus.oracle import AbacusOracle
from fieldcraft.extensions.worlds.abacus.questions import draw_train_tasks, make_abacus
from fieldcraft.types import (
    Answer,
    Author,
    DemoStep,
    Observation,
    Segment,
    Task,
    Thought,
    Tokenizer,
    ToolCall,
    Trajectory,
)

NOTES_AT_ONCE = 200  # notes per notebook made for records


def iterate_sums(seed: int, reserved: Collection[str]) -> Iterator[tuple[Task, list[DemoStep]]]:
    """Yield an infinite sequence of questions of Abacus, with a new notebook per batch, and their
    answers with the minimum number of programs. Names in `reserved` do not occur."""
    number = 0
    while True:
        rng = random.Random(f"records:{seed}:{number}")
        abacus = make_abacus(rng, NOTES_AT_ONCE, NOTES_AT_ONCE, set(reserved), heldout=False)
        for task in draw_train_tasks(abacus, rng.randrange(2**32), NOTES_AT_ONCE):
            yield task, AbacusOracle(abacus.notebook).demonstration(task)
        number += 1


def make_record(task: Task, steps: Sequence[DemoStep], tokenizer: Tokenizer) -> Trajectory:
    """Return the record of an answer. Tool output is read, not written, as for observations."""

    def make_segment(author: Author, text: str) -> Segment:
        return Segment(author, encode_policy_text(tokenizer, f"{text}\n"), f"{text}\n")

    segments = [make_segment(Author.PROMPT, task.question)]
    for step in steps:
        author = Author.TOOL if isinstance(step, Observation) else Author.POLICY
        segments.append(make_segment(author, _render_step(step)))
    return Trajectory(Task(f"record:{task.id}", "", ()), segments)


def _render_step(step: DemoStep) -> str:
    match step:
        case ToolCall(_, arguments):
            return "\n".join(map(str, arguments.values()))
        case Thought(text) | Observation(text) | Answer(text):
            return text.strip()
