import json
import re
from html import unescape

import pytest
from rich.console import Console

from fieldcraft.evaluation.report import StageSummary, build_report
from fieldcraft.evaluation.summary import summarise_evaluation
from fieldcraft.evaluation.tables import build_detail_tables
from fieldcraft.extensions.studio.report_page import write_report_page
from fieldcraft.records.costs import CostModel
from fieldcraft.records.files import write_json
from fieldcraft.types import CallOutcome, CallRecord, Status, Trajectory
from report_parts import ATTACK, SAMPLES, charts_of, run, trajectory, unpacked


def test_the_report_has_the_keys_of_schema_1(tmp_path):
    report, _ = run(tmp_path / "report.html", SAMPLES)
    write_json(tmp_path / "report.json", report)
    back = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert back == report
    assert (back["schema"], back["recipe"], back["seed"], back["device"]) == (1, "mini", 7, "cpu")
    assert back["seconds"] == 147.0
    assert back["stages"][0] == {"name": "world", "seconds": 1.5, "metrics": {}}
    assert back["evals"]["rl1"]["em"] == 0.6
    assert back["versions"] == {"torch": "2"}
    assert {p.name for p in tmp_path.iterdir()} == {"report.json", "report.html"}


def test_extra_keys_may_not_replace_the_interface():
    with pytest.raises(ValueError, match="evals, seed"):
        build_report(
            recipe="r",
            seed=0,
            device="cpu",
            stages=[],
            evals={},
            comparisons=[],
            extra={"seed": 1, "evals": {}},
        )


def test_untrusted_text_is_escaped_everywhere(tmp_path):
    hostile = trajectory("a", correct=True, observation=ATTACK, question=ATTACK)
    hostile.answer = hostile.error = ATTACK
    hostile.task.meta["split"] = ATTACK
    hostile.rewards[ATTACK] = 1.0
    hostile.calls[0].tool = ATTACK
    _, page = run(tmp_path / "r.html", {ATTACK: [hostile]}, curves={ATTACK: [{"em": 1.0}]})
    assert page.count("<script") == 2  # the data and the program
    assert "<img" not in page
    assert "&lt;script&gt;alert(&#39;owned&#39;)" in page
    assert "\\u003cscript\\u003e" in page  # as the name of a line in a chart
    [entry] = unpacked(page)
    assert entry["question"] == entry["answer"] == ATTACK


def test_the_page_asks_for_nothing_from_the_network(tmp_path):
    _, page = run(tmp_path / "r.html", SAMPLES)
    assert "default-src 'none'" in page
    assert not re.search(r"\ssrc=", page)
    addresses = re.findall(r"""href=["']([^"']*)""", page)
    assert [a for a in addresses if not a.startswith(("#", "data:text/csv;base64,"))] == []
    assert not re.search(r"@import|url\((?!#)", page)


def test_the_headline_is_the_last_evaluated_stage(tmp_path):
    _, page = run(tmp_path / "r.html", SAMPLES)
    lead = page[page.index("Exact match after") : page.index("Calls per question")]
    assert "after rl1" in lead
    assert "60.0 %" in lead
    assert "23.1 % to 88.2 %, 5 questions" in lead  # Wilson interval of 3 of 5
    assert "3 stages in 2 min 27 s" in page


def table_rows(page, title):
    """Return the cells of the table under a heading, as text."""
    table = page[page.index(f"<h2>{title}</h2>") :].split("</table>")[0]
    rows = re.findall(r"<tr.*?</tr>", table, re.DOTALL)
    cells = [re.findall(r"<t[hd].*?</t[hd]>", row, re.DOTALL) for row in rows]
    return [
        [" ".join(unescape(re.sub(r"<[^>]*>", " ", cell)).split()) for cell in row] for row in cells
    ]


def test_training_and_evaluation_are_timed_apart(tmp_path):
    _, page = run(tmp_path / "r.html", SAMPLES)
    head, *rows = table_rows(page, "Stages")
    assert head[-2:] == ["Training time", "Evaluation time"]
    assert [[row[0].split()[0], *row[-2:]] for row in rows] == [
        ["world", "1.5 s", "–"],
        ["sft1", "1 min 00 s", "12.5 s"],
        ["rl1", "1 min 00 s", "12.5 s"],
        ["all", "2 min 02 s", "25.0 s"],
    ]
    assert page.count("not evaluated") == 1  # the world; the row `evaluation` is the sum


def test_the_use_of_tools_is_shown(tmp_path):
    part = [trajectory("a", correct=True), trajectory("b", correct=False)]
    [call] = part[0].calls
    part[0].calls = [call, call, CallRecord("", {}, "no", CallOutcome.MALFORMED, 0.0)]
    part[0].task.meta["known"] = True
    _, page = run(tmp_path / "r.html", {"rl1": part})
    head, row = table_rows(page, "Tool use")
    assert dict(zip(head, row, strict=True)) == {
        "Stage": "rl1 4 calls written",
        "Calls / optimal": "1.50 / 1.00",
        "Productivity": "0.33",
        "Needless": "0.50",
        "Missing": "0.00",
        "Regret": "0.50",
        "Offloading": "100.0 %",
        "Tokens written / read": "3 / 1",
        "Repeated": "25.0 %",
        "Failed": "0.0 %",
        "Malformed": "25.0 %",
        "Refused": "0.0 %",
    }


def test_what_acting_costs_is_shown_where_something_has_a_price(tmp_path, capsys):
    """Two calls at 4, one of them in a wrong answer; three tokens each, at 100 per thousand."""
    part = [
        trajectory("a", correct=True, ways=[{"search": 1}]),
        trajectory("b", correct=False, ways=[{"search": 0}]),
    ]
    _, page = run(tmp_path / "r.html", {"rl1": part})
    assert "Acting costs" not in page
    for each in part:
        CostModel({"search": 4.0}, cost_per_1k_tokens=100.0).price(each)
    report, page = run(tmp_path / "r.html", {"rl1": part})
    head, row = table_rows(page, "Acting costs")
    assert dict(zip(head, row, strict=True)) == {
        "Stage": "rl1",
        "Calls / optimal": "1.00 / 1.00",
        "Cost of calls / least": "4.00 / 2.00",
        "Cost: distance": "2.00",
        "Cost of tokens": "0.30",
        "Cost per success": "8.60",
    }
    Console(width=100).print(*build_detail_tables(report["evals"]))
    assert re.search(r"rl1 +1\.00 +4\.00 +2\.00 +2\.00 +0\.30 +8\.60", capsys.readouterr().out)


def test_a_stage_is_compared_with_the_one_before(tmp_path):
    before = [trajectory(str(i), correct=False) for i in range(12)]
    after = [trajectory(str(i), correct=i < 11) for i in range(12)]
    ungraded = [trajectory(str(i), correct=True) for i in range(12)]
    for t in ungraded:
        t.rewards = {"em": None, "f1": None}
    for t in after[:3]:
        t.calls = []
    samples = {"sft1": before, "rl1": after, "rl2": ungraded}
    report, page = run(tmp_path / "r.html", samples)
    assert [(c["baseline"], c["model"]) for c in report["pairwise"]] == [
        ("sft1", "rl1"),
        ("rl1", "rl2"),
    ]
    _, row, nothing = table_rows(page, "Comparison of stages")
    assert row[0] == "sft1 rl1 n = 12"
    assert row[1] == "MA 91.7 % (AE 25.0 %) · ME 0.0 % · LE 0.0 % · LA 0.0 %"
    # 11 / 14 is 0.7857; half = 1.959964 / 14 * sqrt(12 - 14 * 0.7857^2) = 0.2564; p = 2 / 2 ** 11
    assert row[2] == "+91.7 +52.9 to +100.0"
    assert row[3:] == ["+11 −0 p < 0.001", "+0.25", "+0.0", "+0.00"]
    assert nothing == ["rl1 rl2 n = 0, 12 ungradable", "nothing gradable on both sides"]
    widths = re.findall(r'<i class="(\w+)" style="width: ([\d.]+)%', page)
    assert [name for name, width in widths if float(width)] == ["more_accurate", "same_behaviour"]
    assert sum(float(width) for _, width in widths) == pytest.approx(100)


def test_curves_have_the_stages_that_logged_them(tmp_path):
    curves = {
        "sft1": [{"step": step, "loss": 1 / step} for step in range(1, 2001)],
        "rl1": [
            {"step": 1, "loss": -0.1, "reward_mean": 0.2, "entropy": None},
            {"step": 2, "loss": 0.1, "reward_mean": 0.4, "grad_norm": float("nan")},
        ],
    }
    _, page = run(tmp_path / "r.html", SAMPLES, curves=curves)
    charts = charts_of(page)
    assert set(charts) >= {"Reward", "Supervised loss"}
    # nothing finite was logged
    assert not set(charts) & {"Entropy", "Gradient norm", "Length in policy tokens"}
    stages = {title: [span["name"] for span in chart["spans"]] for title, chart in charts.items()}
    assert stages["Reward"] == ["rl1"]
    assert stages["Supervised loss"] == ["sft1"]  # a policy loss is not plotted
    assert charts["Supervised loss"]["spans"][0]["scale"] == 2_001
    titles = re.findall(r"data-chart>\s*<figcaption><b>([^<]*)</b>", page)
    assert titles == list(charts)  # each has its figure, in this order


def test_a_page_without_evaluations_or_curves_still_shows_its_stages(tmp_path):
    _, page = run(tmp_path / "r.html", {})
    assert "not evaluated" in page
    titles = ("Outcome", "Tool use", "Comparison of stages")
    assert not [title for title in titles if f"<h2>{title}</h2>" in page]


def test_ungradable_evaluations_are_shown_as_such(tmp_path):
    part = [trajectory("a", correct=True)]
    part[0].rewards = {"em": None}
    _, page = run(tmp_path / "r.html", {"rl1": part})
    assert "1 ungradable" in page
    assert unpacked(page)[0]["right"] is None


def test_a_score_of_nothing_is_not_in_the_colour_of_success(tmp_path):
    _, page = run(tmp_path / "r.html", {"rl1": [trajectory("a", correct=False)]})
    lead = page[page.index('<div class="card lead">') :].split("</div>")[0]
    assert "<strong>0.0 %</strong>" in lead
    rules = re.findall(r"[^{}]*lead[^{}]*{[^}]*}", page)
    assert rules
    assert not [rule for rule in rules if "--good" in rule]


def test_every_column_has_its_meaning_beside_it_and_in_the_list(tmp_path):
    _, page = run(tmp_path / "r.html", SAMPLES)
    linked = re.findall(r'<a class="term" href="#([^"]*)" title="([^"]+)"', page)
    assert len(linked) >= 18  # the columns that have values
    for place, meaning in linked:
        entry = page[page.index(f'<div id="{place}">') :].split("</div>")[0]
        assert "<dfn>" in entry
        assert f"<dd>{meaning}</dd>" in entry


def rows_of(page: str, title: str) -> list[list[str]]:
    """Return the cells of a table's rows, the head of each first, without their markup."""
    table = page[page.index(f"<h2>{title}</h2>") :].split("</table>")[0]
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", table, re.DOTALL)
    return [re.findall(r"<t[hd][ >].*?</t[hd]>", row, re.DOTALL) for row in rows]


def test_columns_that_no_evaluation_has_are_left_out(tmp_path):
    bare = trajectory("a", correct=True)
    bare.task.meta.pop("calls_optimal")
    bare.calls.clear()
    _, page = run(tmp_path / "r.html", {"rl1": [bare]})
    for title in ("Stages", "Tool use"):
        head, *rows = rows_of(page, title)
        assert not [cell for cell in head if re.search("Known|Needless|Missing|Repeated", cell)]
        assert {len(row) for row in rows if "colspan" not in "".join(row)} == {len(head)}
    _, page = run(tmp_path / "r.html", SAMPLES)
    assert {"Needless", "Repeated"} <= set(re.findall(r">(\w+)</a></th>", page))


def test_stages_stand_in_one_order(tmp_path):
    """The order: the first model, its workflows, then the stages, including one not evaluated."""
    evals = {
        name: summarise_evaluation(SAMPLES["rl1"]) | {"seconds": 1}
        for name in ("base", "flow", "rl1")
    }
    stages = [StageSummary(name, 1.0) for name in ("sft1", "rl1")]
    keys = {"recipe": "mini", "seed": 7, "device": "cpu", "comparisons": [], "extra": {}}
    report = build_report(stages=stages, evals=evals, **keys)
    write_report_page(report, {}, {}, tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    orders = [
        [re.sub("<[^>]*>", "", row[0].split("<small>")[0]) for row in rows_of(page, title)[1:]]
        for title in ("Stages", "Tool use")
    ]
    assert orders == [["base", "flow", "sft1", "rl1"], ["base", "flow", "rl1"]]


def test_why_a_run_has_stopped_is_said_first(tmp_path):
    report = build_report(
        recipe="mini",
        seed=7,
        device="cpu",
        stages=[StageSummary("rl1", 1.0)],
        evals={},
        comparisons=[],
        extra={"stopped": "stage 'rl1' has collapsed: <b>lower</b> lr."},
    )
    write_report_page(report, {}, {}, tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    sentence = "stage &#39;rl1&#39; has collapsed: &lt;b&gt;lower&lt;/b&gt; lr."
    assert f"<strong>Stopped:</strong> {sentence}" in page
    assert "<summary>stopped</summary>" not in page


def test_what_failed_in_an_evaluation_is_said(tmp_path):
    cause = "KeyError: 'city' (weather.py:12)"
    fine = trajectory("a", correct=True)
    call = CallRecord("search", {}, cause, CallOutcome.BROKEN, 0.0)
    broken = Trajectory(fine.task, calls=[call], status=Status.ERROR, error=cause)
    _, page = run(tmp_path / "r.html", {"rl1": [fine, broken]})
    message = "50.0% of the rollouts of 'rl1' had a tool or engine failure, the last one:"
    assert f"{message} '{cause}'." in unescape(page)
