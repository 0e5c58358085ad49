"""Trajectories as JSON lines: one complete record per line."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from fieldcraft.records.files import write_text
from fieldcraft.types import Trajectory, UserError

_ADAPTER = TypeAdapter(Trajectory)

# Log-probabilities are float32 of magnitude 0.01 to 20, so six decimals lose nothing real.
_DECIMALS = 6


def to_json(trajectory: Trajectory) -> str:
    """One line of JSON without the line break. Log-probabilities keep six decimals.

    A number that is not finite (a model may write one as an argument) stays `NaN` or `Infinity`,
    as Python's `json` writes it: `null` would turn a broken number into "not gradable".
    """
    record = _ADAPTER.dump_python(trajectory)
    for segment in record["segments"]:
        segment["logprobs"] = [round(logprob, _DECIMALS) for logprob in segment["logprobs"]]
    return json.dumps(record, ensure_ascii=False, separators=(",", ":"))


def from_json(line: str | bytes) -> Trajectory:
    """The inverse of `to_json`. Raises pydantic.ValidationError for anything else."""
    return _ADAPTER.validate_json(line)


def write_trajectories(path: Path, trajectories: Iterable[Trajectory]) -> None:
    """Write a JSON-lines file, whole or not at all."""
    write_text(path, (to_json(trajectory) + "\n" for trajectory in trajectories))


def read_trajectories(path: Path) -> list[Trajectory]:
    """Read what `write_trajectories` wrote. Raises UserError naming the file and the line."""
    if not path.is_file():
        raise UserError(f"{path} does not exist; give a file of trajectories (JSON lines).")
    trajectories = []
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                trajectories.append(from_json(line))
            except ValidationError as error:
                reason = error.errors()[0]["msg"]
                raise UserError(
                    f"{path}, line {number} is not a trajectory ({reason}); "
                    "give a file that fieldcraft wrote."
                ) from error
    return trajectories
