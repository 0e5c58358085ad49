"""Order of checks: what follows an error, and the table of checks."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from fieldcraft.recipes.loading import load_recipe
from fieldcraft.runs.check import check_recipe, list_checks

SMALL = ["world.people=60", "world.variants=2", "tiny_model.layers=2", "tiny_model.width=16"]


def test_an_error_ends_only_the_checks_that_need_what_it_concerns() -> None:
    keys = ["judge={url: 'http://127.0.0.1:9/v1', model: m}", "search.encoder=/no/encoder"]
    names: list[str] = []

    def report(name: str, notes: Sequence[str], errors: Sequence[str]) -> None:
        names.append(name)

    errors = check_recipe(load_recipe("smoke", [*SMALL, *keys]), Path.cwd(), report)
    assert len(errors) == 2
    assert names == [
        *("device", "questions", "tools", "model", "judge", "engine", "weights"),
        *("correct answers", "closed book", "workflows", "memory", "disk"),
    ]


@pytest.mark.parametrize("name", ["smoke", "autocoa-data", "afm-mini"])
def test_a_check_needs_only_earlier_ones(name: str) -> None:
    checks = list_checks(load_recipe(name, []))
    for number, check in enumerate(checks):
        assert {*check.needs} <= {earlier.name for earlier in checks[:number]}
