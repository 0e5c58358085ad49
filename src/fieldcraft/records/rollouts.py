"""Training rollouts that a run keeps for its reader: one group of a few steps of every stage."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from math import nan
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, TypeAdapter
from pydantic.dataclasses import dataclass

from fieldcraft.records.files import finite_or_null, write_text
from fieldcraft.records.reading import reading
from fieldcraft.records.remedies import put_aside
from fieldcraft.records.trajectories import checked, to_json
from fieldcraft.types import Trajectory

ROLLOUTS = "rollouts"  # the folder in that of a stage
KEPT_STEPS = 12  # of a stage: all of a long run's rollouts would fill a disk
_DECIMALS = 4


def _or_nan(value: Any) -> Any:
    return nan if value is None else value


Number = Annotated[float, BeforeValidator(_or_nan)]


@dataclass(frozen=True)
class Kept:
    """A rollout that a step has trained on.

    `advantages` has a number for each of its tokens up to the last one that was trained, 0 for
    those of others; it is None where the rollout could not be graded. `entropies` (nats) and
    `ratios` are those of the last optimiser step that used a token: the entropy of the policy's
    distribution there, and pi / pi_old of the token. They are None where the rollout had no part
    in a step, as in a group of equal rewards, and in files of earlier versions. A number of them
    that is not finite is null in the file, and NaN when it is read.
    """

    step: int
    advantages: list[Number] | None
    trajectory: Trajectory
    entropies: list[Number] | None = None
    ratios: list[Number] | None = None


def is_kept(number: int, steps: int) -> bool:
    """Return whether a group of step `number` of `steps` is kept: KEPT_STEPS of them, evenly
    spread, the first and the last among them."""
    most = max(1, min(steps, KEPT_STEPS) - 1)
    return number in {round(place * (steps - 1) / most) for place in range(most + 1)}


def write_rollouts(folder: Path, kept: Sequence[Kept]) -> None:
    """Write the group of a step into the folder of a stage's rollouts, whole or not at all. A step
    that is repeated replaces it."""
    write_text(folder / f"{kept[0].step:06d}.jsonl", map(_line, kept))


def read_rollouts(folder: Path) -> Iterator[Kept]:
    """Yield the rollouts that `write_rollouts` wrote, in the order of the steps. Raises UserError
    naming the file and the line."""
    for path in sorted(folder.glob("*.jsonl")):
        advice = f"{put_aside(path)}, and the report leaves it out"
        with reading(path, advice):
            lines = path.read_bytes().splitlines()
        for number, line in enumerate(lines, start=1):
            with reading(f"{path}, line {number}", advice):
                kept = _ADAPTER.validate_json(line)
                checked(kept.trajectory)
            yield kept


def _line(kept: Kept) -> str:
    head = json.dumps(
        {
            "step": kept.step,
            "advantages": _rounded(kept.advantages),
            "entropies": _rounded(kept.entropies),
            "ratios": _rounded(kept.ratios),
        },
        allow_nan=False,
    )
    return f'{head[:-1]}, "trajectory": {to_json(kept.trajectory)}}}\n'


def _rounded(values: list[float] | None) -> list[float] | None:
    return values and finite_or_null([round(value, _DECIMALS) for value in values])


_ADAPTER = TypeAdapter(Kept)
