"""Draws and evaluations of stages in one run: which they share, and which differ."""

import json
from pathlib import Path
from typing import Any

import pytest

from fieldcraft.recipes.loading import load_recipe
from fieldcraft.records.events import EventBus, TrajectoryCompleted, write_metrics
from fieldcraft.records.trajectories import read_trajectories
from fieldcraft.runs.run import run_recipe
from fieldcraft.types import Author

pytestmark = pytest.mark.long

RECIPE = """
name: tiny
device: cpu
instruction: ""
world: {name: atlas, people: 40, variants: 3}
tiny_model: {layers: 2, width: 32, heads: 2}
search: {top_k: 1}
budget: {max_calls: 2, max_turn_tokens: 16, max_context_tokens: 200}
stages:
  one: &rl
    type: rl
    steps: 4
    questions_per_step: 3
    group_size: 2
    entropy_coef: 0.01 # so that every step trains, whatever this model is rewarded for
    optim: {lr: 1.0e-3}
  two: *rl
evaluation:
  splits: {train: 6, heldout: 5}
  periodic: {every: 2, questions: 4}
  budget: {max_turn_tokens: 7}
"""


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    (folder / "tiny.yaml").write_text(RECIPE)
    done: list[TrajectoryCompleted] = []
    events = EventBus([write_metrics])
    events.subscribe(
        lambda event: done.append(event) if isinstance(event, TrajectoryCompleted) else None
    )
    run_recipe(load_recipe(str(folder / "tiny.yaml"), []), folder / "out", events)
    task_ids = {
        name: [e.trajectory.task.id for e in done if e.phase == name] for name in ("one", "two")
    }
    (folder / "asked.json").write_text(json.dumps(task_ids))
    turns = [s for e in done for s in e.trajectory.segments if s.author is Author.POLICY]
    assert max(len(s.ids) for s in turns if s.ids) == 16
    return folder / "out"


def rows(out: Path, stage: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / stage / "metrics.jsonl").read_text().splitlines()]


def test_two_stages_of_the_same_settings_ask_other_questions(out: Path) -> None:
    task_ids = json.loads((out.parent / "asked.json").read_text())
    one, two = (list(dict.fromkeys(task_ids[name])) for name in ("one", "two"))
    assert len(one) > 8
    assert len(set(one) & set(two)) < 4


def test_a_stage_is_evaluated_every_so_many_steps(out: Path) -> None:
    for stage in ("one", "two"):
        measured = [row["step"] for row in rows(out, stage) if "eval/em" in row]
        assert measured == [1, 3]  # after two steps, and after four
    assert all("eval/calls_mean" in row for row in rows(out, "one")[1::2])


def test_what_is_measured_after_the_last_step_is_what_the_evaluation_finds(out: Path) -> None:
    """The questions are the same: the first ones of the leading split."""
    done = list(read_trajectories(out / "evaluations" / "one.jsonl"))
    first = [t for t in done if t.task.meta["split"] == "train"][:4]
    last = rows(out, "one")[-1]
    assert last["eval/calls_mean"] == sum(len(t.calls) for t in first) / 4
    assert last["eval/em"] == sum(bool(t.is_correct) for t in first) / 4


def test_evaluations_have_their_own_budget(out: Path) -> None:
    """Turns of evaluations have 7 tokens; those of training have 16."""
    done = list(read_trajectories(out / "evaluations" / "one.jsonl"))
    turns = [s for t in done for s in t.segments if s.author is Author.POLICY]
    assert max(len(s.ids) for s in turns) == 7
