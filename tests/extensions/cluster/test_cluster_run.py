"""Equality of a run with trainers and engines in Ray processes and a run in a single process."""

from pathlib import Path
from typing import Any

import pytest

from cluster_runs import RECIPE, alike, rows
from fieldcraft.recipes.loading import load_recipe
from fieldcraft.records.events import EventBus, LogMessage, write_metrics
from fieldcraft.runs.run import run_recipe


@pytest.mark.slow
@pytest.mark.parametrize("more", ["", ", colocate: true"])
def test_it_comes_to_the_numbers_of_one_process(ray: Any, tmp_path: Path, more: str) -> None:
    recipe = tmp_path / "tiny.yaml"
    recipe.write_text(RECIPE)
    messages: list[str] = []

    def listen(event: object) -> None:
        if isinstance(event, LogMessage):
            messages.append(event.text)

    run_recipe(load_recipe(str(recipe), []), tmp_path / "one", EventBus([write_metrics]))
    many = load_recipe(str(recipe), [f"cluster={{trainers: 2, engines: 2{more}}}"])
    run_recipe(many, tmp_path / "many", EventBus([write_metrics, listen]))
    alike(tmp_path / "many", tmp_path / "one")
    assert [line for line in messages if "2 trainers on" in line and "2 engines on" in line]
    assert not [line for line in messages if "died" in line]
    for row in rows(tmp_path / "many", "rl"):
        assert row["publish_bytes"] > 0
        assert row["engine_restarts"] == 0
