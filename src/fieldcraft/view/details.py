"""One trajectory in full: its transcript, its calls and its tokens."""

from __future__ import annotations

import shlex
from typing import Any

from fieldcraft.records.reading import reading
from fieldcraft.records.rollouts import Kept
from fieldcraft.records.tool_use import is_void
from fieldcraft.records.transcript import clean, transcript
from fieldcraft.types import Status, Trajectory
from fieldcraft.view.lines import read_line
from fieldcraft.view.tokens import load_tokenizer, segments
from fieldcraft.view.viewed import TrajectoryFile, Viewed


def details(run: Viewed, file: TrajectoryFile, number: int, line: bytes) -> dict[str, Any]:
    """Return all that the page shows of a trajectory. Raises UserError for a line that holds
    none."""
    trajectory, kept = read(file, number, line)
    path = run.tokenizer()
    tokenizer = None if path is None else load_tokenizer(path)
    trained = _trained_authors(run, file, trajectory)
    return brief(file, number, trajectory, kept) | {
        "rewards": trajectory.rewards,
        "correct": trajectory.correct,
        "well_formed": trajectory.well_formed,
        "forced": trajectory.forced,
        "meta": trajectory.task.meta,
        "calls": [
            {
                "tool": clean(call.tool),
                "arguments": call.arguments,
                "outcome": call.outcome.value,
                "seconds": call.seconds,
                "simulated": call.simulated,
                "cut": call.cut,
            }
            for call in trajectory.calls
        ],
        "tokenizer": tokenizer is not None,
        "segments": segments(trajectory, kept, trained, tokenizer),
        "command": _command(run, file, number),
    }


def read(file: TrajectoryFile, number: int, line: bytes) -> tuple[Trajectory, Kept | None]:
    """Read a trajectory. Raises UserError for a line that holds no trajectory."""
    with reading(f"{file.path}, line {number + 1}", "reload the page"):
        return read_line(line, file.kind)


def brief(
    file: TrajectoryFile, number: int, trajectory: Trajectory, kept: Kept | None
) -> dict[str, Any]:
    """Return a trajectory without its tokens, as it stands beside others."""
    return {
        "run": file.run,
        "part": file.part,
        "kind": file.kind,
        "number": number,
        "step": None if kept is None else kept.step,
        "task": trajectory.task.id,
        "question": clean(trajectory.task.question),
        "accepted": [clean(answer) for answer in trajectory.task.answers],
        "answer": None if trajectory.answer is None else clean(trajectory.answer),
        "status": trajectory.status.value,
        "error": clean(trajectory.error),
        "right": trajectory.right,
        "reward": trajectory.reward,
        "seconds": trajectory.seconds,
        "transcript": [
            {"kind": entry.kind.value, "text": entry.text, "label": entry.label}
            for entry in transcript(trajectory)
        ],
    }


def _trained_authors(run: Viewed, file: TrajectoryFile, trajectory: Trajectory) -> tuple[str, ...]:
    """Return the authors whose tokens the stage trains. A step of reinforcement learning may leave
    out rollouts that were cut short, and those with a void turn."""
    stage = None if run.recipe is None else run.recipe.stages.get(file.part)
    if stage is None:
        return ("policy",)
    if file.kind == "training":
        cut_short = trajectory.status is Status.TRUNCATED
        if cut_short and not getattr(stage, "train_truncated", True):
            return ()
        if is_void(trajectory) and not getattr(stage, "train_void", True):
            return ()
    return stage.trained_authors


def _command(run: Viewed, file: TrajectoryFile, number: int) -> str | None:
    """Return the command that shows the trajectory in a terminal."""
    if file.kind != "evaluation":
        return None
    return shlex.join(
        ["fieldcraft", "show", str(run.path), "--stage", file.part, "--number", str(number)]
    )
