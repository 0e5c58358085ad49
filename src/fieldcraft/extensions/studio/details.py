"""Details of one trajectory: its transcript, calls and tokens."""

from __future__ import annotations

import shlex
from typing import Any

from fieldcraft.extensions.studio.rows import parse_line
from fieldcraft.extensions.studio.run_view import RunView, TrajectoryFile
from fieldcraft.extensions.studio.tokens import describe_segments, load_tokenizer
from fieldcraft.records.reading import raise_read_errors
from fieldcraft.records.tool_metrics import has_void_turn
from fieldcraft.records.training_rollouts import TrainingRollout
from fieldcraft.records.transcript import build_transcript, strip_control_characters
from fieldcraft.types import Status, Trajectory


def make_trajectory_details(
    run: RunView, file: TrajectoryFile, number: int, line: bytes
) -> dict[str, Any]:
    """Return the data of a trajectory for the page. Raises UserError for a line without a
    trajectory."""
    trajectory, rollout = read_trajectory(file, number, line)
    path = run.find_tokenizer()
    tokenizer = None if path is None else load_tokenizer(path)
    trained_authors = _get_trained_authors(run, file, trajectory)
    return summarise_trajectory(file, number, trajectory, rollout) | {
        "rewards": trajectory.rewards,
        "correct": trajectory.correct,
        "well_formed": trajectory.well_formed,
        "forced": trajectory.forced,
        "meta": trajectory.task.meta,
        "calls": [
            {
                "tool": strip_control_characters(call.tool),
                "arguments": call.arguments,
                "outcome": call.outcome.value,
                "seconds": call.seconds,
                "simulated": call.simulated,
                "cut": call.cut,
            }
            for call in trajectory.calls
        ],
        "tokenizer": tokenizer is not None,
        "segments": describe_segments(trajectory, rollout, trained_authors, tokenizer),
        "command": _make_show_command(run, file, number),
    }


def read_trajectory(
    file: TrajectoryFile, number: int, line: bytes
) -> tuple[Trajectory, TrainingRollout | None]:
    """Read a trajectory. Raises UserError for a line without a trajectory."""
    with raise_read_errors(f"{file.path}, line {number + 1}", "reload the page"):
        return parse_line(line, file.kind)


def summarise_trajectory(
    file: TrajectoryFile, number: int, trajectory: Trajectory, rollout: TrainingRollout | None
) -> dict[str, Any]:
    """Return a trajectory without its tokens, for the comparison of rollouts."""
    return {
        "run": file.run,
        "part": file.part,
        "kind": file.kind,
        "number": number,
        "step": None if rollout is None else rollout.step,
        "task": trajectory.task.id,
        "question": strip_control_characters(trajectory.task.question),
        "accepted": [strip_control_characters(answer) for answer in trajectory.task.answers],
        "answer": None
        if trajectory.answer is None
        else strip_control_characters(trajectory.answer),
        "status": trajectory.status.value,
        "error": strip_control_characters(trajectory.error),
        "right": trajectory.is_correct,
        "reward": trajectory.reward,
        "seconds": trajectory.seconds,
        "transcript": [
            {"kind": entry.kind.value, "text": entry.text, "label": entry.label}
            for entry in build_transcript(trajectory)
        ],
    }


def _get_trained_authors(
    run: RunView, file: TrajectoryFile, trajectory: Trajectory
) -> tuple[str, ...]:
    """Return the authors whose tokens the stage trains. A step of reinforcement learning may
    exclude truncated rollouts, and rollouts with a void turn."""
    stage = None if run.recipe is None else run.recipe.stages.get(file.part)
    if stage is None:
        return ("policy",)
    if file.kind == "training":
        cut_short = trajectory.status is Status.TRUNCATED
        if cut_short and not getattr(stage, "train_truncated", True):
            return ()
        if has_void_turn(trajectory) and not getattr(stage, "train_void", True):
            return ()
    return stage.trained_authors


def _make_show_command(run: RunView, file: TrajectoryFile, number: int) -> str | None:
    """Return the command that shows the trajectory in a terminal."""
    if file.kind != "evaluation":
        return None
    return shlex.join(
        ["fieldcraft", "show", str(run.path), "--stage", file.part, "--index", str(number)]
    )
