"""Trajectories as JSON lines: one complete record per line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from math import isfinite
from pathlib import Path

from pydantic import TypeAdapter

from fieldcraft.config.sections import DEFAULT_CALL_COST
from fieldcraft.records.chains import validate_folds
from fieldcraft.records.files import write_text
from fieldcraft.records.meta import validate_meta
from fieldcraft.records.reading import raise_read_errors, require_file
from fieldcraft.types import Trajectory

_ADAPTER = TypeAdapter(Trajectory)

# Log-probabilities are float32 of magnitude 0.01 to 20, so six decimals are sufficient.
_DECIMALS = 6
MAX_TOKEN_ID = 2**31  # exclusive; no tokenizer accepts larger ids


def to_json(trajectory: Trajectory) -> str:
    """Return one line of JSON without the line break. Log-probabilities have six decimals.

    Default values are omitted: `folds` for a single chain, `tool_free` if tools were available,
    `forced` if the answer was not forced, `token_cost` without a price on tokens, the `fault` of
    calls that are not malformed, and the default `cost` of calls.

    Non-finite numbers (a model may write one as an argument) stay `NaN` or `Infinity`, as in
    Python's `json`: `null` would turn a broken number into "not gradable".
    """
    record = _ADAPTER.dump_python(trajectory)
    for segment in record["segments"]:
        segment["logprobs"] = [round(logprob, _DECIMALS) for logprob in segment["logprobs"]]
    for call in record["calls"]:
        if call["fault"] is None:
            del call["fault"]
        if call["cost"] == DEFAULT_CALL_COST:
            del call["cost"]
    if not trajectory.folds:
        del record["folds"]
    if not trajectory.tool_free:
        del record["tool_free"]
    if not trajectory.forced:
        del record["forced"]
    if not trajectory.token_cost:
        del record["token_cost"]
    return json.dumps(record, ensure_ascii=False, separators=(",", ":"))


def from_json(line: str | bytes) -> Trajectory:
    """Return the trajectory of a line written by `to_json`. Raises ValueError, or a subclass such
    as pydantic's, for anything else."""
    return validate_trajectory(_ADAPTER.validate_json(line))


def validate_trajectory(trajectory: Trajectory) -> Trajectory:
    """Return a parsed trajectory unchanged. Raises ValueError for invalid numbers or `meta`."""
    validate_meta(trajectory.task.meta)
    scores = (trajectory.reward, *trajectory.rewards.values())
    seconds = (trajectory.seconds, *(call.seconds for call in trajectory.calls))
    if not all(isfinite(number) for number in (*scores, *seconds) if number is not None):
        raise ValueError("it has rewards or seconds that are not finite")
    costs = (trajectory.token_cost, *(call.cost for call in trajectory.calls))
    if not all(isfinite(cost) and cost >= 0 for cost in costs):
        raise ValueError("it has costs that are not finite, or below 0")
    for segment in trajectory.segments:
        if segment.ids and not 0 <= min(segment.ids) <= max(segment.ids) < MAX_TOKEN_ID:
            raise ValueError("it has invalid token ids")
    validate_folds(trajectory)
    return trajectory


def write_trajectories(path: Path, trajectories: Iterable[Trajectory]) -> None:
    """Write a JSON-lines file atomically."""
    write_text(path, (to_json(trajectory) + "\n" for trajectory in trajectories))


def read_trajectories(
    path: Path, advice: str = "give a file that fieldcraft wrote"
) -> Iterator[Trajectory]:
    """Read the trajectories that `write_trajectories` wrote, lazily.

    Raises UserError naming the file and the line.
    """
    require_file(path, advice)
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            with raise_read_errors(f"{path}, line {number}", advice):
                trajectory = from_json(line)
            yield trajectory
