"""Records of how questions are answered, as plain text.

They hold thoughts, programs, queries and results, a line each, and neither the name of a tool nor
the form of a call. A large model has read programs, and what people looked up, before it is shown
any tool; a base model made from nothing reads these.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence

from fieldcraft.dialects.base import encode_written
from fieldcraft.types import (
    Action,
    Answer,
    Author,
    Observation,
    Segment,
    Step,
    Task,
    Thought,
    Tokenizer,
    Trajectory,
)
from fieldcraft.worlds.abacus.oracle import AbacusOracle
from fieldcraft.worlds.abacus.questions import new_abacus, train_tasks

NOTES_AT_ONCE = 200  # in a notebook made for records


def sums(seed: int, reserved: Collection[str]) -> Iterator[tuple[Task, list[Step]]]:
    """Yield the questions of Abacus without end, about one new notebook after the other, and their
    answers with as few programs as possible. No note is that of a name in `reserved`."""
    number = 0
    while True:
        rng = random.Random(f"records:{seed}:{number}")
        abacus = new_abacus(rng, NOTES_AT_ONCE, NOTES_AT_ONCE, set(reserved), heldout=False)
        for task in train_tasks(abacus, rng.randrange(2**32), NOTES_AT_ONCE):
            yield task, AbacusOracle(abacus.notebook).demonstration(task)
        number += 1


def record(task: Task, steps: Sequence[Step], tokenizer: Tokenizer) -> Trajectory:
    """Return the record of an answer. Text that came back is read and not written, as an
    observation is."""

    def segment(author: Author, text: str) -> Segment:
        return Segment(author, encode_written(tokenizer, f"{text}\n"), f"{text}\n")

    written = [segment(Author.PROMPT, task.question)]
    for step in steps:
        author = Author.TOOL if isinstance(step, Observation) else Author.POLICY
        written.append(segment(author, _told(step)))
    return Trajectory(Task(f"record:{task.id}", "", ()), written)


def _told(step: Step) -> str:
    match step:
        case Action(_, arguments):
            return "\n".join(map(str, arguments.values()))
        case Thought(text) | Observation(text) | Answer(text):
            return text.strip()
