"""Evaluations that are deleted or changed while their run continues."""

import json
from pathlib import Path

import pytest

from fieldcraft.records.events import EvaluationCompleted, Event
from fieldcraft.types import UserError
from tiny_runs import run_tiny


@pytest.mark.long
def test_a_lost_evaluation_is_named_and_the_same_command_makes_it_anew(tmp_path: Path) -> None:
    lost = tmp_path / "out/evaluations/base.json"

    def delete(event: Event) -> None:
        if isinstance(event, EvaluationCompleted) and event.phase == "one":
            lost.unlink()

    with pytest.raises(UserError, match=r"base\.json was deleted while the run continued: run the"):
        run_tiny(tmp_path, hear=delete)
    run = run_tiny(tmp_path)
    assert json.loads((run / "report.json").read_text())["evals"].keys() == {"base", "one"}


def test_an_evaluation_of_other_questions_is_named(tmp_path: Path) -> None:
    file = tmp_path / "out/evaluations/base.jsonl"

    def change(event: Event) -> None:
        if isinstance(event, EvaluationCompleted) and event.phase == "one":
            [line] = file.read_text().splitlines()
            record = json.loads(line)
            record["task"]["id"] += "x"
            file.write_text(json.dumps(record) + "\n")

    with pytest.raises(
        UserError, match="the evaluations 'base' and 'one' have different questions"
    ):
        run_tiny(tmp_path, hear=change)
