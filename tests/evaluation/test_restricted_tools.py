"""Questions that are asked with only some of the tools."""

from dataclasses import replace
from pathlib import Path

from fieldcraft.evaluation.summary import summarise_evaluation
from fieldcraft.evaluation.tables import build_restricted_table, find_restricted_results
from fieldcraft.types import CallFault, CallOutcome, Trajectory
from report_parts import run, trajectory


def make_trajectories(split: str, tool: str, faults: list[CallFault | None]) -> list[Trajectory]:
    """Return a question for each fault of its only call, and one without a call. Questions without
    a fault are right."""
    found = []
    for number, fault in enumerate([*faults, "form"]):
        made = trajectory(f"{split}{number}", correct=fault is None, split=split)
        outcome = CallOutcome.OK if fault is None else CallOutcome.MALFORMED
        made.calls = [replace(made.calls[0], outcome=outcome, fault=fault)]
        made.task = replace(made.task, meta=made.task.meta | {"offered": [tool]})
        found.append(made)
    found[-1].calls = []
    return found


def both() -> list[Trajectory]:
    code = make_trajectories("code", "python", [None, "arguments", "tool", "tool"])
    return code + make_trajectories("search", "search", [None, None, None])


def test_the_table_tells_choice_and_form_apart() -> None:
    table = build_restricted_table(
        find_restricted_results({"sft": summarise_evaluation(both(), "code")})
    )
    rows = [(name, *cells[:1], cells[1][:5], *cells[2:]) for name, cells in table.rows]
    assert rows == [
        ("sft: code", "python", "0.200", "0.80", "0.50", "0.50"),
        ("sft: search", "search", "0.750", "0.75", "1.00", "1.00"),
    ]


def test_questions_with_all_tools_or_different_ones_have_no_row() -> None:
    mixed = both()
    for one in mixed:
        one.task = replace(one.task, meta=one.task.meta | {"split": "all"})
    assert find_restricted_results({"sft": summarise_evaluation(mixed)}) == []
    assert (
        find_restricted_results({"sft": summarise_evaluation([trajectory("q", correct=True)])})
        == []
    )
    alone = find_restricted_results({"sft": summarise_evaluation(both()[:5])})
    assert [(name, split) for name, split, _ in alone] == [("sft", "")]


def test_the_page_has_the_table(tmp_path: Path) -> None:
    _, page = run(tmp_path / "report.html", {"sft1": both()}, split="code")
    section = page.split("<h2>Tools that only the prompt describes</h2>")[1].split("</section>")[0]
    assert section.count("<tr>") == 3
    assert 'data-label="Names the tool">50.0 %' in section
    _, other = run(tmp_path / "report.html", {"sft1": [trajectory("q", correct=True)]})
    assert "only the prompt describes" not in other
