"""JSON for other programs: no writer writes NaN or Infinity."""

import json
from collections.abc import Callable
from math import inf, isnan, nan
from pathlib import Path
from typing import Any

import pytest

from fieldcraft.data.record_files import write_records
from fieldcraft.data.sample_tallies import SampleTally, TallyJournal
from fieldcraft.records.events import Event, StepCompleted
from fieldcraft.records.files import write_json
from fieldcraft.records.jsonl import write_json_lines
from fieldcraft.records.metrics import MetricsLog
from fieldcraft.records.training_rollouts import (
    TrainingRollout,
    read_training_rollouts,
    write_training_rollouts,
)
from fieldcraft.types import Task, Trajectory, UserError
from tiny_runs import run_tiny

BAD = [{"question": "Who?"}, {"meta": {"share": [1.0, nan]}}]
WRITERS: dict[str, Callable[[Path, Any], object]] = {
    "a.jsonl": write_json_lines,
    "b.json": write_json,
    "c.json": lambda path, records: write_records(records, path),
}


def strict(text: str) -> Any:
    """Parse strictly, like a browser."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize("name", WRITERS)
def test_what_is_not_finite_is_refused_with_its_place(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    with pytest.raises(UserError, match=r"meta\.share\.1 = nan, which is not finite"):
        WRITERS[name](path, BAD)
    assert not path.exists()


def test_a_metric_that_is_not_finite_is_null(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.append({"step": 0, "loss": nan, "shares": [1.0, inf], "of": {"stop": -inf}})
    expected = {"step": 0, "loss": None, "shares": [1.0, None], "of": {"stop": None}}
    assert strict(log.path.read_text()) == expected
    log.truncate_after(1)
    assert log.read_rows() == [expected]


def test_a_last_metric_that_is_not_finite_does_not_stop_a_finished_stage(tmp_path: Path) -> None:
    def spoil(event: Event) -> None:
        if isinstance(event, StepCompleted):
            event.row["my_ratio"] = inf

    run = run_tiny(tmp_path, hear=spoil)
    assert strict((run / "one/stage.json").read_text())["metrics"]["my_ratio"] is None


def test_numbers_of_tokens_that_are_not_finite_are_null(tmp_path: Path) -> None:
    trajectory = Trajectory(Task("1", "Who?", ("Ada",)))
    write_training_rollouts(tmp_path, [TrainingRollout(0, [1.0, nan], trajectory, [inf], None)])
    [file] = tmp_path.iterdir()
    record = strict(file.read_text())
    assert (record["advantages"], record["entropies"]) == ([1.0, None], [None])
    [rollout] = read_training_rollouts(tmp_path)
    assert rollout.advantages is not None
    assert rollout.advantages[0] == 1
    assert isnan(rollout.advantages[1])


def test_a_journal_refuses_what_is_not_finite(tmp_path: Path) -> None:
    tallies = TallyJournal(tmp_path / "tallies.jsonl")
    with pytest.raises(UserError, match="right = nan, which is not finite"):
        tallies.append("base", Task("1", "Who?", ("Ada",)), SampleTally(nan, 4))
