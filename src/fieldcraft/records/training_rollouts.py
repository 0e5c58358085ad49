"""Training rollouts that a run keeps for its reader: one group of a few steps of every stage."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from math import nan
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, TypeAdapter
from pydantic.dataclasses import dataclass

from fieldcraft.records.files import replace_nonfinite, write_text
from fieldcraft.records.reading import raise_read_errors
from fieldcraft.records.remedies import advise_renaming
from fieldcraft.records.trajectories import to_json, validate_trajectory
from fieldcraft.types import Trajectory

ROLLOUTS_FOLDER = "rollouts"  # the folder in that of a stage
RECORDED_STEPS = 12  # of a stage: all of a long run's rollouts would fill a disk
_DECIMALS = 4


def _or_nan(value: Any) -> Any:
    return nan if value is None else value


FloatOrNan = Annotated[float, BeforeValidator(_or_nan)]


@dataclass(frozen=True)
class TrainingRollout:
    """A rollout that a step has trained on.

    `advantages` has a number for each of its tokens up to the last one that was trained, 0 for
    those of others; it is None where the rollout could not be graded. `entropies` (nats) and
    `ratios` are those of the last optimiser step that used a token: the entropy of the policy's
    distribution there, and pi / pi_old of the token. They are None where the rollout had no part
    in a step, as in a group of equal rewards, and in files of earlier versions. A number of them
    that is not finite is null in the file, and NaN when it is read.
    """

    step: int
    advantages: list[FloatOrNan] | None
    trajectory: Trajectory
    entropies: list[FloatOrNan] | None = None
    ratios: list[FloatOrNan] | None = None


def is_recorded_step(step: int, steps: int) -> bool:
    """Return whether a group of `step` of `steps` is kept: RECORDED_STEPS of them, evenly
    spread, the first and the last among them."""
    intervals = max(1, min(steps, RECORDED_STEPS) - 1)
    return step in {round(index * (steps - 1) / intervals) for index in range(intervals + 1)}


def write_training_rollouts(folder: Path, rollouts: Sequence[TrainingRollout]) -> None:
    """Write the group of a step into the folder of a stage's rollouts, whole or not at all. A step
    that is repeated replaces it."""
    write_text(folder / f"{rollouts[0].step:06d}.jsonl", map(_render_line, rollouts))


def read_training_rollouts(folder: Path) -> Iterator[TrainingRollout]:
    """Yield the rollouts that `write_training_rollouts` wrote, in the order of the steps. Raises
    UserError naming the file and the line."""
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
