"""The table over seeds as displayed: its page and its lines in the terminal."""

import re
from pathlib import Path

import pytest
from rich.console import Console

from fieldcraft.evaluation.seed_table import aggregate_seeds
from fieldcraft.evaluation.tables import build_comparisons_table, build_seeds_table
from fieldcraft.extensions.studio.seeds_page import write_seeds_page
from report_parts import charts_of
from seeds_parts import STAGES, entry, recipe, report

ATTACK = "<script>alert('owned')</script>"


def page(tmp_path: Path, titles: dict[str, str], *ems: float) -> str:
    reports = {seed: report(em) for seed, em in enumerate(ems)}
    table = aggregate_seeds(recipe(seeds=list(reports), table_rows=titles), reports)
    links = {seed: f"seed-{seed}/report.html" for seed in reports}
    write_seeds_page(table, links, {}, {}, tmp_path / "report.html")
    return (tmp_path / "report.html").read_text("utf-8")


def test_the_page_shows_the_rows_and_leads_to_the_seeds(tmp_path: Path) -> None:
    html = page(tmp_path, {"Model": "base", "ReAct": "workflow", "All": "rl2"}, 0.25, 0.5)
    assert re.findall(r'href="([^#"][^"]*)"', html) == ["seed-0/report.html", "seed-1/report.html"]
    assert "default-src 'none'" in html
    assert not re.search(r"\ssrc=|@import|url\((?!#)", html)
    assert "37.5 %" in html
    assert "25.0 % to 50.0 %" in html
    assert "base → sft → rl1 → rl2" in html
    assert "5 + 2" in html
    assert list(charts_of(html)) == [
        "Accuracy against calls",
        "Correct answers by number of calls",
        "Success rate by number of calls",
    ]


COMPARED = {
    "title": f"worth of {ATTACK}",
    "baseline": "Model",
    "model": "All",
    "n": 40,
    "gained": 12,
    "lost": 3,
    "em_difference": 0.225,
    "em_difference_ci95": [-0.0312, 0.4],
    "em_differences": [0.2, 0.25],
    "p_value": 0.035,
}


def test_comparisons_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = recipe(table_rows={"Model": "base", "All": "rl2"})
    few = COMPARED | {"em_difference_ci95": None}
    none = COMPARED | {"em_difference": None, "p_value": None, "em_difference_ci95": None}
    table = aggregate_seeds(settings, {0: report(0.2)}, [COMPARED, few, none])
    write_seeds_page(table, {}, {}, {}, tmp_path / "report.html")
    html = (tmp_path / "report.html").read_text("utf-8")
    assert ATTACK not in html
    text = " ".join(re.sub("<[^>]*>", " ", html[html.index("Comparison of rows") :]).split())
    assert "n = 40 Model All +22.5 -3.1 to +40.0 +12 −3 = 0.035" in text
    assert "n = 40 Model All +22.5 +12 −3 = 0.035" in text
    assert "n = 40 Model All nothing gradable on both sides in every seed" in text
    Console(width=80).print(build_comparisons_table(table["comparisons"]))
    lines = capsys.readouterr().out.splitlines()
    assert any(
        line.split()[-6:] == ["+0.225", "[-0.031,", "+0.400]", "+12,", "-3", "0.035"]
        for line in lines
    )
    assert any("Model → All" in line for line in lines)
    plain = page(tmp_path, {"Model": "base"}, 0.5)
    assert "Comparison of rows" not in plain


def test_rows_without_a_gradable_answer_are_shown_but_not_drawn(tmp_path: Path) -> None:
    ungraded = {"em": None, "n_effective": 0}
    reports = {0: report(0.5)}
    splits = {"splits": {"mixed": entry(0.5, {}) | ungraded}}
    reports[0]["evals"]["sft"] |= splits
    reports[0]["evals"]["rl2"] |= ungraded | {"by_calls": {}} | splits
    table = aggregate_seeds(recipe(table_rows={"All": "rl2", "Start": "sft"}), reports)
    write_seeds_page(table, {}, {}, {}, tmp_path / "report.html")
    html = (tmp_path / "report.html").read_text("utf-8")
    assert "–" in re.sub("<[^>]*>", " ", html[html.index("All") :])[:60]
    frontier = charts_of(html)["Accuracy against calls"]
    assert [part["label"] for part in frontier["series"]] == ["Start"]
    table = aggregate_seeds(recipe(table_rows={"All": "rl2"}), reports)
    write_seeds_page(table, {}, {}, {}, tmp_path / "report.html")
    assert "data-chart" not in (tmp_path / "report.html").read_text("utf-8")


def test_titles_are_text(tmp_path: Path) -> None:
    html = page(tmp_path, {ATTACK: "rl2", f"R{ATTACK}": "workflow"}, 0.5, 0.5)
    assert ATTACK not in html
    assert html.count("<script") == 2  # the page's own data and script


def test_the_page_shows_splits_and_learning_curves(tmp_path: Path) -> None:
    one = {"type": "rl", "start_from": "sft", "steps": 3, "optim": {"lr": 0.1}}
    settings = recipe(
        stages=STAGES | {"one": one, "two": one}, table_rows={"A & B": "one", "C": "two"}
    )
    splits = {"mixed": entry(0.5, {}), ATTACK: entry(0.25, {}, calls_mean=3.21)}
    reports = {}
    for seed in range(2):
        reports[seed] = report(0.5)
        reports[seed]["evals"] |= dict.fromkeys(("one", "two"), entry(0.5, {}, splits=splits))
    steps = [
        {"step": i, "em": 0.5, "calls_mean": 1.0 + i / 9, "calls_optimal_mean": 1.0}
        for i in range(9)
    ]
    curves = {"one": [steps, steps[:7]], "two": [steps, steps]}
    table = aggregate_seeds(settings, reports)
    write_seeds_page(table, {}, curves, {"mixed": "As in training"}, tmp_path / "report.html")
    html = (tmp_path / "report.html").read_text("utf-8")
    assert ATTACK not in html
    assert "As in training" in html
    assert "20 questions in total" in html
    assert html.count("3.21") == 2  # a row each
    assert html.count('1.00<span class="quiet"> = 0.75 + 0.25') == 4
    charts = charts_of(html)
    assert "Learning curves, exact match" in charts
    series = charts["Learning curves, calls per rollout"]["series"]
    means = [(part["label"], part["slot"]) for part in series if part["line"] != "thin"]
    # each has a separate colour, and the optimum that of text
    assert means == [("A & B", 2), ("C", 5), ("optimum", None)]
    assert [part["label"] for part in series if part["line"] == "thin"] == ["A & B"] * 2 + ["C"] * 2
    assert len(series[0]["points"]) == 7  # of the shorter seed
    plain = page(tmp_path, {"Model": "base", "All": "rl2"}, 0.5)
    assert "Learning curves" not in plain
    assert "By kind of question" not in plain


def test_simulated_searches_and_saved_calls_are_shown(tmp_path: Path) -> None:
    step = {"seconds": 1.0, "rollouts": 8, "calls_mean": 1.0, "policy_tokens_mean": 9.0}
    rates = {"fidelity/n": 8, "fidelity/supports_answer": 0.25}
    rates |= {"fidelity/never/n": 6, "fidelity/never/supports_answer": 0.0}
    curves = {"rl1": [[step | rates]], "rl2": [[step]]}
    titles = {f"S{ATTACK}": "sft", f"A{ATTACK}": "rl2", "M": "rl1"}
    saved = [
        {"title": "w", "model": f"A{ATTACK}", "rival": f"S{ATTACK}", "reached": 1, "em": 0.5}
        | {"calls": 1200.0, "rival_calls": 3500.0},
        {"title": "w", "model": "M", "rival": "M", "reached": 0, "em": None}
        | {"calls": None, "rival_calls": None},
    ]
    settings = recipe(seeds=[0], table_rows=titles)
    table = aggregate_seeds(settings, {0: report(0.5)}, (), curves, saved)
    write_seeds_page(table, {}, {}, {}, tmp_path / "report.html")
    html = (tmp_path / "report.html").read_text("utf-8")
    assert ATTACK not in html
    text = " ".join(re.sub("<[^>]*>", " ", html[html.index("Simulated searches") :]).split())
    assert "5 + 2 8 25.0 % +0.0 knows it never 6 0.0 %" in text
    assert "50.0 % 1,200 3,500 2,300 1 of 1" in text
    assert "the rival never had this exact match 0 of 1" in text
    assert "no search was judged" in page(tmp_path, {"Model": "base", "All": "rl2"}, 0.5)
    assert "Simulated searches" not in page(tmp_path, {"Model": "base"}, 0.5)


def test_one_seed_has_no_interval(tmp_path: Path) -> None:
    html = page(tmp_path, {"All": "rl2"}, 0.5)
    assert "<s style" not in html
    assert "50.0 %" in html


def test_the_terminal_shows_every_row(capsys: pytest.CaptureFixture[str]) -> None:
    titles = {"Everything at once": "rl2", "Model": "base"}
    table = aggregate_seeds(recipe(table_rows=titles), {0: report(0.2), 1: report(0.4)})
    Console(width=80).print(build_seeds_table(table["rows"]))
    output = capsys.readouterr().out
    assert "0.300 [0.000, 1.000]" in output
    assert "1.50/1.00" in output
    one = aggregate_seeds(recipe(table_rows={"Model": "base"}), {0: report(0.2)})
    Console(width=80).print(build_seeds_table(one["rows"]))
    assert "[" not in capsys.readouterr().out.replace("[95 %]", "")


def test_costs_are_shown_where_something_has_a_price(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    costs = {"call_cost_mean": 3.25, "call_cost_optimal_mean": 2.5, "acting_cost_per_success": 4.5}
    costs |= {"call_cost_regret_mean": 0.75, "token_cost_mean": 0.0}
    rows = {"All": "rl2"}
    table = aggregate_seeds(
        recipe(table_rows=rows), {0: report(0.2, **costs), 1: report(0.4, **costs)}
    )
    Console(width=110).print(build_seeds_table(table["rows"]))
    assert "3.25/2.50" in (output := capsys.readouterr().out)
    assert "4.50" in output
    write_seeds_page(table, {}, {}, {}, tmp_path / "r.html")
    assert "Acting costs" in (tmp_path / "r.html").read_text()
    plain = aggregate_seeds(recipe(table_rows=rows), {0: report(0.2), 1: report(0.4)})
    write_seeds_page(plain, {}, {}, {}, tmp_path / "p.html")
    assert "Acting costs" not in (tmp_path / "p.html").read_text()
