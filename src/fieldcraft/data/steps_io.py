"""Demonstrations and contrastive pairs as steps of text, JSON lines that fit any tokenizer.

A record begins as one of FlashRAG's question files, so that such a file is one of questions too:

{"id": ..., "question": ..., "golden_answers": [...], "metadata": {...},
 "steps": [{"thought": ...}, {"action": "search", "arguments": {"query": ...}},
           {"observation": ...}, {"thought": ...}, {"answer": ...}]}

A thought may have a role other than "think", such as {"thought": ..., "role": "plan"}.
A pair has "before", "chosen" and "rejected" in the place of "steps".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from fieldcraft.data.records import kind_of
from fieldcraft.dialects.demonstrations import answered_calls
from fieldcraft.records.jsonl import json_lines, read_json_lines, write_json_lines
from fieldcraft.records.meta import checked_meta
from fieldcraft.records.reading import reading
from fieldcraft.types import (
    Action,
    Answer,
    Author,
    Observation,
    Role,
    Segment,
    Status,
    Step,
    Task,
    Thought,
    Trajectory,
    UserError,
)

Record = dict[str, Any]
RIGHT = "right"  # of the metadata: the verdict on the answer, where it was graded


@dataclass(frozen=True, slots=True)
class StepPair:
    """Two ways to go on after `before`: `chosen` is right and `rejected` is not."""

    task: Task
    before: tuple[Step, ...]
    chosen: tuple[Step, ...]
    rejected: tuple[Step, ...]

    @property
    def acts(self) -> bool:
        """Return whether the chosen way uses a tool."""
        return any(isinstance(step, Action) for step in self.chosen)


def step_records(steps: Sequence[Step]) -> list[Record]:
    """Return the steps as JSON values; `read_steps` gives them back."""
    return [_record(step) for step in steps]


def _record(step: Step) -> Record:
    match step:
        case Thought(text, role):
            return {"thought": text} | ({} if role is Role.THINK else {"role": role.value})
        case Action(tool, arguments):
            return {"action": tool, "arguments": arguments}
        case Observation(text):
            return {"observation": text}
        case Answer(text):
            return {"answer": text}


def read_steps(records: Any, where: str) -> tuple[Step, ...]:
    """Read the steps that `step_records` wrote. Raises UserError, which says `where`, for anything
    else."""
    if not isinstance(records, list):
        raise UserError(f"{where}: there is no list of steps; give a file that fieldcraft wrote.")
    return tuple(_step(record, where) for record in records)


def _step(record: Any, where: str) -> Step:
    match record:
        case {"thought": str(text)} if (role := record.get("role", Role.THINK)) in list(Role):
            return Thought(text, Role(role))
        case {"action": str(tool), "arguments": dict(arguments)}:
            return Action(tool, arguments)
        case {"observation": str(text)}:
            return Observation(text)
        case {"answer": str(text)}:
            return Answer(text)
    raise UserError(
        f"{where}: {json.dumps(record)[:80]} is no step; write a thought, an action with arguments,"
        " an observation or an answer."
    )


# -- files -------------------------------------------------------------------------------------


def write_demonstrations(path: Path, shown: Iterable[tuple[Task, Sequence[Step]]]) -> None:
    """Write demonstrations, whole or not at all."""
    write_json_lines(path, (demonstration_record(task, steps) for task, steps in shown))


def demonstration_record(task: Task, steps: Sequence[Step]) -> Record:
    """Return the line of a demonstration."""
    return {**_question(task), "steps": step_records(steps)}


def write_pairs(path: Path, pairs: Iterable[StepPair]) -> None:
    """Write pairs, whole or not at all."""
    write_json_lines(
        path,
        (
            {
                **_question(pair.task),
                "before": step_records(pair.before),
                "chosen": step_records(pair.chosen),
                "rejected": step_records(pair.rejected),
            }
            for pair in pairs
        ),
    )


def holds_steps(path: Path) -> bool:
    """Return whether a file is one that `write_demonstrations` wrote, as its first record tells."""
    if kind_of(path) != ".jsonl":
        return False
    found = (record for _, record in json_lines(path) if isinstance(record, dict))
    return "steps" in next(found, {})


def read_demonstrations(path: Path) -> list[tuple[Task, list[Step]]]:
    """Read what `write_demonstrations` wrote. Raises UserError naming the file and the line."""
    return [
        (task, list(read_steps(record.get("steps"), where))) for task, where, record in _read(path)
    ]


def read_pairs(path: Path) -> list[StepPair]:
    """Read what `write_pairs` wrote. Raises UserError naming the file and the line."""
    pairs = []
    for task, where, record in _read(path):
        before, chosen, rejected = (
            read_steps(record.get(part), where) for part in ("before", "chosen", "rejected")
        )
        if not chosen or not rejected:
            raise UserError(f"{where}: one side of the pair is empty; remove the line.")
        pairs.append(StepPair(task, before, chosen, rejected))
    return pairs


# -- a view ------------------------------------------------------------------------------------


def as_trajectory(task: Task, steps: Sequence[Step]) -> Trajectory:
    """Return the steps as a trajectory to grade or to look at: texts without tokens, and the calls.
    What it says of its answer is what was noted when that was graded."""
    trajectory = Trajectory(task, error=str(task.meta.get("rejected", "")))
    trajectory.calls += answered_calls(steps)
    for before, step in pairwise((None, *steps)):
        author, text = Author.POLICY, ""
        match step:
            case Thought(text, role):
                text = text if role is Role.THINK else f"<{role}>{text}</{role}>"
                text = f"\n{text}" if isinstance(before, Thought) else text
            case Action(tool, arguments):
                values = list(arguments.values())
                plain = len(values) == 1 and isinstance(values[0], str)
                shown = values[0] if plain else json.dumps(arguments, ensure_ascii=False)
                text = f"\n<{tool}>{shown}</{tool}>"
            case Observation(text):
                author = Author.TOOL
            case Answer(text):
                trajectory.status, trajectory.answer = Status.ANSWERED, text
                trajectory.well_formed = True
                text = f"\n<answer>{text}</answer>"
        trajectory.segments.append(Segment(author, [], text))
    noted = task.meta.get(RIGHT)
    if isinstance(noted, bool):
        trajectory.correct, trajectory.rewards = RIGHT, {RIGHT: float(noted)}
    return trajectory


def _question(task: Task) -> Record:
    return {
        "id": task.id,
        "question": task.question,
        "golden_answers": list(task.answers),
        "metadata": task.meta,
    }


def _read(path: Path) -> Iterator[tuple[Task, str, Record]]:
    """Yield (question, where it stands, record) for each line."""
    for number, record in read_json_lines(path):
        where = f"{path}, line {number}"
        match record:
            case {
                "id": str(identity),
                "question": str(question),
                "golden_answers": list(answers),
                "metadata": dict(meta),
            } if all(isinstance(answer, str) for answer in answers):
                with reading(f"{where}: the metadata", "correct it"):
                    checked_meta(meta)
                yield Task(identity, question, tuple(answers), meta), where, record
            case _:
                raise UserError(
                    f"{where} holds no question with id, golden_answers and metadata; give a file"
                    " that fieldcraft wrote."
                )
