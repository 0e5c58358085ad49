"""Recorded training rollouts of a run: one group from each of a few steps of every stage."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from math import nan
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, TypeAdapter
from pydantic.dataclasses import dataclass

from fieldcraft.records.files import replace_nonfinite, write_text
from fieldcraft.records.reading import advise_renaming, raise_read_errors
from fieldcraft.records.trajectories import to_json, validate_trajectory
from fieldcraft.types import Trajectory

ROLLOUTS_FOLDER = "rollouts"  # subfolder of a stage's folder
RECORDED_STEPS = 12  # per stage: recording all rollouts of a long run would fill the disk
_DECIMALS = 4


def _or_nan(value: Any) -> Any:
    return nan if value is None else value


FloatOrNan = Annotated[float, BeforeValidator(_or_nan)]


@dataclass(frozen=True)
class TrainingRollout:
    """A rollout that was used in a training step.

    `advantages` has one number per token up to the last trained one, 0 for tokens of other authors;
    it is None if the rollout could not be graded. `entropies` (nats) and `ratios` refer to the last
    optimiser step that used a token: the entropy of the policy's distribution at that position, and
    pi / pi_old of the token. They are None if the rollout took no part in a step, as in a group of
    equal rewards, and in files of earlier versions. Non-finite values are stored as null, and read
    as NaN.
    """

    step: int
    advantages: list[FloatOrNan] | None
    trajectory: Trajectory
    entropies: list[FloatOrNan] | None = None
    ratios: list[FloatOrNan] | None = None


def is_recorded_step(step: int, steps: int) -> bool:
    """Return whether a group of `step` of `steps` is recorded: RECORDED_STEPS evenly spaced steps,
    including the first and the last."""
    intervals = max(1, min(steps, RECORDED_STEPS) - 1)
    return step in {round(index * (steps - 1) / intervals) for index in range(intervals + 1)}


def write_training_rollouts(folder: Path, rollouts: Sequence[TrainingRollout]) -> None:
    """Write the group of a step to the rollouts folder of a stage, atomically. A repeated step
    replaces its file."""
    write_text(folder / f"{rollouts[0].step:06d}.jsonl", map(_render_line, rollouts))


def read_training_rollouts(folder: Path) -> Iterator[TrainingRollout]:
    """Yield the rollouts that `write_training_rollouts` wrote, in step order. Raises UserError
    naming the file and the line."""
    for path in sorted(folder.glob("*.jsonl")):
        advice = f"{advise_renaming(path)}, and the report leaves it out"
        with raise_read_errors(path, advice):
            lines = path.read_bytes().splitlines()
        for number, line in enumerate(lines, start=1):
            with raise_read_errors(f"{path}, line {number}", advice):
                rollout = _ADAPTER.validate_json(line)
                validate_trajectory(rollout.trajectory)
            yield rollout


def _render_line(rollout: TrainingRollout) -> str:
    head = json.dumps(
        {
            "step": rollout.step,
            "advantages": _round_values(rollout.advantages),
            "entropies": _round_values(rollout.entropies),
            "ratios": _round_values(rollout.ratios),
        },
        allow_nan=False,
    )
    return f'{head[:-1]}, "trajectory": {to_json(rollout.trajectory)}}}\n'


def _round_values(values: list[float] | None) -> list[float] | None:
    return values and replace_nonfinite([round(value, _DECIMALS) for value in values])


_ADAPTER = TypeAdapter(TrainingRollout)
