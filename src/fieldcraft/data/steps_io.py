"""Demonstrations and contrastive pairs as text steps, in JSON lines independent of a tokenizer.

A record starts like one of FlashRAG's question files, so that the file is a question file, too:

{"id": ..., "question": ..., "golden_answers": [...], "metadata": {...},
 "steps": [{"thought": ...}, {"action": "search", "arguments": {"query": ...}},
           {"observation": ...}, {"thought": ...}, {"answer": ...}]}

A thought may have a role other than "think", such as {"thought": ..., "role": "plan"}.
A pair has "before", "chosen" and "rejected" instead of "steps".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from fieldcraft.data.records import get_suffix
from fieldcraft.dialects.encoding import build_call_records
from fieldcraft.records.jsonl import iter_json_lines, read_json_lines, write_json_lines
from fieldcraft.records.meta import validate_meta
from fieldcraft.records.reading import raise_read_errors
from fieldcraft.types import (
    Answer,
    Author,
    DemoStep,
    Observation,
    Segment,
    Status,
    Task,
    Thought,
    ThoughtRole,
    ToolCall,
    Trajectory,
    UserError,
)

DemonstrationRecord = dict[str, Any]
CORRECT_KEY = "right"  # metadata key of the verdict on the answer, if it was graded


@dataclass(frozen=True, slots=True)
class ContrastivePair:
    """Two continuations of `before`: `chosen` is correct and `rejected` is not."""

    task: Task
    before: tuple[DemoStep, ...]
    chosen: tuple[DemoStep, ...]
    rejected: tuple[DemoStep, ...]

    @property
    def chooses_tool(self) -> bool:
        """Return whether the chosen side uses a tool."""
        return any(isinstance(step, ToolCall) for step in self.chosen)


def serialise_steps(steps: Sequence[DemoStep]) -> list[DemonstrationRecord]:
    """Return the steps as JSON values; `parse_steps` restores them."""
    return [_serialise_step(step) for step in steps]


def _serialise_step(step: DemoStep) -> DemonstrationRecord:
    match step:
        case Thought(text, role):
            return {"thought": text} | ({} if role is ThoughtRole.THINK else {"role": role.value})
        case ToolCall(tool, arguments):
            return {"action": tool, "arguments": arguments}
        case Observation(text):
            return {"observation": text}
        case Answer(text):
            return {"answer": text}


def parse_steps(records: Any, location: str) -> tuple[DemoStep, ...]:
    """Parse the steps that `serialise_steps` wrote. Raises UserError, which names `location`, for
    anything else."""
    if not isinstance(records, list):
        raise UserError(f"{location}: 'steps' is not a list; give a file that fieldcraft wrote.")
    return tuple(_parse_step(record, location) for record in records)


def _parse_step(record: Any, location: str) -> DemoStep:
    match record:
        case {"thought": str(text)} if (role := record.get("role", ThoughtRole.THINK)) in list(
            ThoughtRole
        ):
            return Thought(text, ThoughtRole(role))
        case {"action": str(tool), "arguments": dict(arguments)}:
            return ToolCall(tool, arguments)
        case {"observation": str(text)}:
            return Observation(text)
        case {"answer": str(text)}:
            return Answer(text)
    raise UserError(
        f"{location}: {json.dumps(record)[:80]} is not a step; write a thought, an action with"
        " arguments, an observation or an answer."
    )


# -- files -------------------------------------------------------------------------------------


def write_demonstrations(
    path: Path, demonstrations: Iterable[tuple[Task, Sequence[DemoStep]]]
) -> None:
    """Write demonstrations atomically."""
    write_json_lines(path, (serialise_demonstration(task, steps) for task, steps in demonstrations))


def serialise_demonstration(task: Task, steps: Sequence[DemoStep]) -> DemonstrationRecord:
    """Return the record of a demonstration."""
    return {**_question_fields(task), "steps": serialise_steps(steps)}


def write_pairs(path: Path, pairs: Iterable[ContrastivePair]) -> None:
    """Write pairs atomically."""
    write_json_lines(
        path,
        (
            {
                **_question_fields(pair.task),
                "before": serialise_steps(pair.before),
                "chosen": serialise_steps(pair.chosen),
                "rejected": serialise_steps(pair.rejected),
            }
            for pair in pairs
        ),
    )


def is_demonstration_file(path: Path) -> bool:
    """Return whether `write_demonstrations` wrote a file, judging by its first record."""
    if get_suffix(path) != ".jsonl":
        return False
    found = (record for _, record in iter_json_lines(path) if isinstance(record, dict))
    return "steps" in next(found, {})


def read_demonstrations(path: Path) -> list[tuple[Task, list[DemoStep]]]:
    """Read what `write_demonstrations` wrote. Raises UserError naming the file and the line."""
    return [
        (task, list(parse_steps(record.get("steps"), location)))
        for task, location, record in _read_lines(path)
    ]


def read_pairs(path: Path) -> list[ContrastivePair]:
    """Read what `write_pairs` wrote. Raises UserError naming the file and the line."""
    pairs = []
    for task, location, record in _read_lines(path):
        before, chosen, rejected = (
            parse_steps(record.get(part), location) for part in ("before", "chosen", "rejected")
        )
        if not chosen or not rejected:
            raise UserError(f"{location}: one side of the pair is empty; remove the line.")
        pairs.append(ContrastivePair(task, before, chosen, rejected))
    return pairs


# -- conversion to trajectories ----------------------------------------------------------------


def make_untokenised_trajectory(task: Task, steps: Sequence[DemoStep]) -> Trajectory:
    """Return the steps as a trajectory for grading or display: texts without tokens, and the calls.
    Its verdict is the one stored in the metadata when the answer was graded."""
    trajectory = Trajectory(task, error=str(task.meta.get("rejected", "")))
    trajectory.calls += build_call_records(steps)
    for before, step in pairwise((None, *steps)):
        author, text = Author.POLICY, ""
        match step:
            case Thought(text, role):
                text = text if role is ThoughtRole.THINK else f"<{role}>{text}</{role}>"
                text = f"\n{text}" if isinstance(before, Thought) else text
            case ToolCall(tool, arguments):
                values = list(arguments.values())
                is_single_text = len(values) == 1 and isinstance(values[0], str)
                argument_text = (
                    values[0] if is_single_text else json.dumps(arguments, ensure_ascii=False)
                )
                text = f"\n<{tool}>{argument_text}</{tool}>"
            case Observation(text):
                author = Author.TOOL
            case Answer(text):
                trajectory.status, trajectory.answer = Status.ANSWERED, text
                trajectory.well_formed = True
                text = f"\n<answer>{text}</answer>"
        trajectory.segments.append(Segment(author, [], text))
    is_correct = task.meta.get(CORRECT_KEY)
    if isinstance(is_correct, bool):
        trajectory.correct, trajectory.rewards = CORRECT_KEY, {CORRECT_KEY: float(is_correct)}
    return trajectory


def _question_fields(task: Task) -> DemonstrationRecord:
    return {
        "id": task.id,
        "question": task.question,
        "golden_answers": list(task.answers),
        "metadata": task.meta,
    }


def _read_lines(path: Path) -> Iterator[tuple[Task, str, DemonstrationRecord]]:
    """Yield (question, location, record) for each line."""
    for number, record in read_json_lines(path):
        location = f"{path}, line {number}"
        match record:
            case {
                "id": str(task_id),
                "question": str(question),
                "golden_answers": list(answers),
                "metadata": dict(meta),
            } if all(isinstance(answer, str) for answer in answers):
                with raise_read_errors(f"{location}: the metadata", "correct it"):
                    validate_meta(meta)
                yield Task(task_id, question, tuple(answers), meta), location, record
            case _:
                raise UserError(
                    f"{location} holds no question with id, golden_answers and metadata; give a"
                    " file that fieldcraft wrote."
                )
