"""Records of how questions are answered, as plain text.

They hold thoughts, programs, queries and results, a line each, and neither the name of a tool nor
the form of a call. A large model has read programs, and what people looked up, before it is shown
any tool; a base model made from nothing reads these.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence

from fieldcraft.dialects.base import encode_policy_text
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
from fieldcraft.worlds.abacus.oracle import AbacusOracle
from fieldcraft.worlds.abacus.questions import draw_train_tasks, make_abacus

NOTES_AT_ONCE = 200  # in a notebook made for records


def iterate_sums(seed: int, reserved: Collection[str]) -> Iterator[tuple[Task, list[DemoStep]]]:
    """Yield the questions of Abacus without end, about one new notebook after the other, and their
    answers with as few programs as possible. No note is that of a name in `reserved`."""
    number = 0
    while True:
        rng = random.Random(f"records:{seed}:{number}")
        abacus = make_abacus(rng, NOTES_AT_ONCE, NOTES_AT_ONCE, set(reserved), heldout=False)
        for task in draw_train_tasks(abacus, rng.randrange(2**32), NOTES_AT_ONCE):
            yield task, AbacusOracle(abacus.notebook).demonstration(task)
        number += 1


def make_record(task: Task, steps: Sequence[DemoStep], tokenizer: Tokenizer) -> Trajectory:
    """Return the record of an answer. Text that came back is read and not written, as an
    observation is."""

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
