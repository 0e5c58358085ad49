"""Tests of bench/growth.py: stored points are not measured again, and the figure has all curves."""

import json

import pytest

from script_modules import load_script


@pytest.fixture(scope="module")
def growth():
    return load_script("bench/growth.py")


@pytest.fixture
def points(growth):
    return [point for iterate, _ in growth.PANELS.values() for point in iterate()]


@pytest.fixture
def stored(points, tmp_path):
    """Return a folder with a measurement of every point; the peer takes 1.5 times as long."""
    with (tmp_path / "points.jsonl").open("w") as file:
        for point in points:
            seconds = {"fieldcraft": 2.0, "TRL" if point.script == "train" else "generate": 3.0}
            name = {"script": point.script, "options": point.format_options(1)}
            row = name | {"seconds": seconds}
            file.write(json.dumps(row) + "\n")
    return tmp_path


def test_stored_points_are_not_measured_again(growth, points, stored, capsys) -> None:
    before = (stored / "points.jsonl").read_text()
    growth.main(stored, figure=stored / "growth.png")
    assert (stored / "points.jsonl").read_text() == before
    assert (stored / "growth.png").read_bytes().startswith(b"\x89PNG")
    rows = capsys.readouterr().out.splitlines()
    assert rows[0] == "| GRPO step | group of 2 | 64 | 1.50 |"
    assert len(rows) == len(points)


def test_points_differ(points) -> None:
    assert len({(p.panel, p.curve, p.x) for p in points}) == len(points)


def test_no_point_has_more_tokens_than_one_step_holds(growth, points) -> None:
    for point in points:
        o = point.options
        rollouts = o.get("group", o.get("rows"))
        assert rollouts * o.get("answer", o.get("context", 0)) <= growth.MOST_TOKENS
