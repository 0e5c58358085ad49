"""Results of programs as tables of a notebook."""

import json
import re

from fieldcraft.evaluation.results import EvaluationResult, RunComparison, RunReport
from report_parts import ATTACK, SAMPLES, run, trajectory


def cells(page: str) -> list[str]:
    """Return the texts of all cells, without their elements."""
    return re.findall(r"<t[dh][^>]*>([^<]*)</t[dh]>", page)


def test_a_report_has_a_sentence_and_a_row_per_stage(tmp_path):
    report, _ = run(tmp_path / "r.html", SAMPLES)
    page = RunReport(report)._repr_html_()
    assert "rl1 answers 60 % of the questions correctly" in page
    assert "0.600 [" in page
    row = cells(page)[cells(page).index("rl1") :]
    assert row[1].startswith("0.600 [")
    assert json.loads(json.dumps(RunReport(report))) == report  # still the content of report.json


def test_a_stopped_run_says_why(tmp_path):
    report, _ = run(tmp_path / "r.html", SAMPLES)
    page = RunReport(report | {"stopped": "an event handler <b>ended</b> it"})._repr_html_()
    assert page.startswith("<div><p>Stopped: an event handler &lt;b&gt;ended&lt;/b&gt; it</p>")


def test_an_evaluation_and_a_comparison_are_tables(tmp_path):
    report, _ = run(tmp_path / "r.html", SAMPLES)
    entry = report["evals"]["rl1"]
    assert "0.600 [" in EvaluationResult(entry)._repr_html_()
    pairs = RunComparison(evals=report["evals"], pairwise=report["pairwise"])._repr_html_()
    alone = RunComparison(evals=report["evals"], pairwise=[])._repr_html_()
    assert pairs.count("<table") == alone.count("<table") + bool(report["pairwise"])
    assert "sft1" in cells(alone)


def test_untrusted_names_are_escaped(tmp_path):
    hostile = trajectory("a", correct=True)
    hostile.task.meta["split"] = ATTACK
    report, _ = run(tmp_path / "r.html", {ATTACK: [hostile]}, curves={ATTACK: [{"em": 1.0}]})
    for shown in (RunReport(report), RunComparison(report)):
        assert "<script" not in shown._repr_html_()
        assert "&lt;script&gt;" in shown._repr_html_()
