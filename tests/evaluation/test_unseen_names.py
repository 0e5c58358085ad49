"""The same questions with tool names that training shows, and with other names."""

from dataclasses import replace
from pathlib import Path

import pytest

from fieldcraft.evaluation.summary import summarise_evaluation
from fieldcraft.evaluation.tables import (
    build_detail_tables,
    build_unseen_names_table,
    find_unseen_name_results,
)
from fieldcraft.types import CallOutcome, Trajectory
from report_parts import run, trajectory


def make_trajectories() -> list[Trajectory]:
    """Return four questions; with unseen names one is still right, one has a malformed call, two
    have none."""
    trained = [trajectory(f"q{i}", correct=i < 3, split="heldout") for i in range(4)]
    again = [trajectory(f"q{i}:unseen", correct=i < 1, split="unseen") for i in range(4)]
    again[1].calls = [replace(again[1].calls[0], outcome=CallOutcome.MALFORMED)]
    again[2].calls, again[3].calls = [], []
    return trained + again


def test_the_table_has_both() -> None:
    evals = {
        "sft": summarise_evaluation(make_trajectories(), "heldout"),
        "base": summarise_evaluation(make_trajectories()[:4], "heldout"),
    }
    table = build_unseen_names_table(find_unseen_name_results(evals))
    # exact match, answers with an executed call, malformed calls among the written ones
    assert table.rows == [("sft", ("0.750", "0.250", "1.00", "0.25", "0.00", "0.50"))]
    assert len(build_detail_tables(evals)) == len(build_detail_tables({"base": evals["base"]})) + 1


@pytest.mark.long
def test_the_page_has_both(tmp_path: Path) -> None:
    _, page = run(tmp_path / "report.html", {"sft1": make_trajectories()}, split="heldout")
    section = page.split("<h2>Tool names</h2>")[1].split("</section>")[0]
    assert 'data-label="Used, unseen">25.0 %' in section
    assert 'data-label="Malformed, unseen">50.0 %' in section
    _, other = run(tmp_path / "report.html", {"sft1": make_trajectories()[:4]})
    assert "Tool names" not in other
