"""Folders of runs and agents that were written with former recipe keys."""

import json
from pathlib import Path

import pytest

from fieldcraft.cli.main import main
from fieldcraft.records.events import Event, StepCompleted
from fieldcraft.runs.agent import find_agent
from fieldcraft.runs.export import export
from fieldcraft.runs.folder import find_run
from former_keys import write_former_keys
from tiny_runs import run_tiny

pytestmark = pytest.mark.long

STEPS = ("stages.one.steps=3", "stages.one.checkpoint_every=1")


def test_a_run_with_former_keys_is_resumed(tmp_path: Path) -> None:
    done: list[int] = []

    def stop_after_two_steps(event: Event) -> None:
        if isinstance(event, StepCompleted):
            done.append(event.row["step"])
            if len(done) == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_tiny(tmp_path, *STEPS, hear=stop_after_two_steps)
    manifest = tmp_path / "out" / "recipe.json"
    current = json.loads(manifest.read_text())
    assert write_former_keys(manifest) != current
    run = run_tiny(tmp_path, *STEPS, hear=stop_after_two_steps)
    assert done == [0, 1, 1, 2]  # from the checkpoint of the first step
    assert json.loads(manifest.read_text()) == current
    assert find_run(run).is_done


def test_commands_read_a_run_and_an_agent_with_former_keys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, agent = run_tiny(tmp_path), tmp_path / "agent"
    export(run, agent, "float32")
    recipes = [find_run(run).recipe, find_agent(agent).recipe]
    for file in (run / "recipe.json", agent / "fieldcraft.json"):
        former = write_former_keys(file)
        assert "recipe" in former
        assert "name" not in former
    assert [find_run(run).recipe, find_agent(agent).recipe] == recipes
    with pytest.raises(SystemExit, match="0"):
        main(["show", str(run)])
    assert "Who is" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="0"):
        main(["ask", "--model", str(agent), "Who is 1?"])
