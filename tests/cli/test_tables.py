"""Tables for the terminal."""

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fieldcraft.evaluation import tables
from fieldcraft.evaluation.fidelity import build_fidelity_table
from fieldcraft.terminal.figure_table import FigureTable


def test_a_row_of_results(capsys: pytest.CaptureFixture[str]) -> None:
    entry = {"em": 0.5, "em_ci95": [0.2, 0.8], "f1": 0.625, "calls_mean": 1.25, "seconds": 7.2}
    known = {"known": {"em": 1.0, "no_call_rate": 0.75}, "calls_optimal_mean": 1.0}
    bare = {"known": None, "calls_optimal_mean": None, "em": None, "em_ci95": None, "f1": None}
    rows = {"rl": entry | known, "bare": entry | bare}
    Console(width=80).print(tables.build_results_table(rows, {"rl": 61.7}))
    printed_rows = [line.split() for line in capsys.readouterr().out.splitlines()[3:5]]
    assert printed_rows == [
        ["rl", "0.500", "[0.200,", "0.800]", "0.625", "1.25/1.00", "1.00", "0.75", "62", "7"],
        ["bare", "not", "gradable", "1.25", "7"],
    ]
    rows["bare"] |= {"judge": 0.875}  # the column appears only if a judge was used
    Console(width=80).print(tables.build_results_table(rows, {}))
    printed_rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert printed_rows[1][3:5] == ["F1", "judge"]
    assert ["bare", "not", "gradable", "0.875", "1.25", "7"] in printed_rows


def all_tables(report: dict[str, Any], prefix: str) -> Iterator[tuple[FigureTable, list[str]]]:
    """Yield every table and all names in it, which get a prefix."""
    evals = {prefix + name: entry for name, entry in report["evals"].items()}
    yield tables.build_results_table(evals, dict.fromkeys(evals, 12345.6)), list(evals)
    judged = {name: entry | {"judge": 0.5} for name, entry in evals.items()}
    yield tables.build_results_table(judged, {}), list(evals)
    yield tables.build_tool_table(evals), list(evals)
    compared = [
        found | {key: prefix + found[key] for key in ("baseline", "model")}
        for found in report["pairwise"]
    ]
    names = [f"{found['baseline']} → {found['model']}" for found in compared]
    yield tables.build_pairwise_table(compared), names
    titled = [found | {"title": "Price"} for found in compared]
    yield tables.build_comparisons_table(titled), [f"Price: {name}" for name in names]
    rows = [
        {
            "title": name,
            "em": {"mean": 0.5, "ci95": [0.25, 0.75], "min": 0.25, "max": 0.75},
            **{key: entry[key] for key in ("f1", "calls_mean", "calls_optimal_mean")},
            "known_no_call_rate": 0.5,
            "seconds": 1234.5,
            "training": dict.fromkeys(tables.TRAINING_COST_KEYS, 1234567.0),
        }
        for name, entry in evals.items()
    ]
    yield tables.build_seeds_table(rows), list(evals)
    yield tables.build_training_table(rows), list(evals)
    rates = {
        "n": 1200,
        "supports_answer_n": 3,
        "supports_answer": 0.5,
        "contradicts": 0.5,
        "well_formed": 1,
        "f1": 0.3,
    }
    fidelity = rates | {"unknown": 1, "taught": rates, "untaught": rates}
    found = {"fidelity": fidelity, "em_simulated": 0.5, "em_real": 0.5}
    yield build_fidelity_table(dict.fromkeys(evals, found)), list(evals)


@pytest.mark.parametrize("prefix", ["", "/runs/tiny/", "/some/where/long/runs/tiny/"])
@pytest.mark.parametrize("width", [40, 80, 120])
def test_tables_fit_into_a_terminal(
    done: Path, width: int, prefix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lines fit, numbers are not cut, and every name that fits into a line is complete."""
    report = json.loads((done / "report.json").read_text())
    for table, names in all_tables(report, prefix):
        Console(width=width).print(table)
        output = capsys.readouterr().out
        lines = output.splitlines()
        assert max(map(len, lines)) <= width
        assert "…" not in output
        for name in names:
            whole = [line for line in lines if line.startswith(name)]
            assert whole or (len(name) > width and "".join(name.split()) in "".join(output.split()))
        whole_table = io.StringIO()
        Console(file=whole_table, width=500).print(table)
        figures = re.findall(r"[+-]?\d+\.\d+", whole_table.getvalue())
        assert sorted(re.findall(r"[+-]?\d+\.\d+", output)) == sorted(figures)


def test_every_abbreviation_is_explained(done: Path) -> None:
    report = json.loads((done / "report.json").read_text())
    for table, _ in all_tables(report, ""):
        file = io.StringIO()
        Console(file=file, width=500).print(table)
        notes = file.getvalue().rpartition("\n\n")[0].rpartition("\n\n")[2]
        for head in table.headers:
            for short in re.findall(r"\b(?:[A-Z]{2}|F1|p)\b", head):
                assert re.search(rf"\b{short}\b[^:.]*: ", notes), (short, notes)


def test_a_column_without_figures_is_left_out_and_its_legend_too() -> None:
    table = FigureTable(
        ["a", "b", "TP"], "About.", {"a": "one thing", "b": "another", "TP": "more"}
    )
    table.add_row("one", "1", "", "")
    table.add_row("two", "", "", "2")
    assert printed(table, 60) == [
        *("     a  TP", "─" * 10, "one  1", "two      2", ""),
        *("a: one thing. TP: more. About.", ""),
    ]


def test_a_head_in_two_lines_is_one_word_in_the_legend() -> None:
    heads = {"calls/\noptimal": "one", "off-\nloading": "two", "no\ncall": "three"}
    table = FigureTable([*heads], legend=heads)
    table.add_row("a", "1", "2", "3")
    assert "calls/optimal: one. offloading: two. no call: three." in printed(table, 80)


def test_without_rows_a_table_has_all_its_columns() -> None:
    assert printed(FigureTable(["a", "b"]), 60)[:2] == ["   a  b", "─" * 6]


def test_a_table_that_is_too_wide_becomes_several() -> None:
    table = FigureTable(["a", "b\nc", "d"], "About.")
    table.add_row("one", "111", "2", "3333")
    table.add_row("two", "1", "22", "")
    assert printed(table, 40) == [
        *("           b", "       a   c     d", "─" * 18),
        *("one  111   2  3333", "two    1  22", "", "About.", ""),
    ]
    assert printed(table, 12) == [
        *("         b", "      a  c", "─" * 10, "one 111  2", "two   1 22", ""),
        *("       d", "─" * 8, "one 3333", "two", "", "About.", ""),
    ]


def test_long_names_are_above_their_figures() -> None:
    table = FigureTable(["a", "b"])
    table.add_row("runs/autocoa-mini/rl2", "111", "2")
    assert printed(table, 22) == [
        "    a b", "───────", "runs/autocoa-mini/rl2", "  111 2", ""
    ]  # fmt: skip


def printed(table: FigureTable, width: int) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=width).print(table)
    return [line.rstrip() for line in file.getvalue().splitlines()]
