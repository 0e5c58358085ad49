"""Repeated questions with tools under names that do not occur in training."""

from pathlib import Path

from fieldcraft.data.tasks import write_tasks
from fieldcraft.recipes.loading import load_recipe
from fieldcraft.runs.inputs import make_data_source
from fieldcraft.types import Task

SMALL = ["world.people=40", "world.variants=2"]


def test_the_first_split_is_asked_again() -> None:
    inputs = make_data_source(load_recipe("unseen-search-mini", SMALL))
    tasks = inputs.evaluation_tasks()
    parts = {
        split: [t for t in tasks if t.meta["split"] == split]
        for split in ("heldout", "known", "unseen")
    }
    assert sum(map(len, parts.values())) == len(tasks) == len({t.id for t in tasks})
    assert parts["known"]
    assert [t.question for t in parts["unseen"]] == [t.question for t in parts["heldout"]]
    for task, again in zip(parts["heldout"], parts["unseen"], strict=True):
        assert again.meta == task.meta | {"split": "unseen", "called": "unseen"}
        assert "called" not in task.meta
    assert all("called" not in t.meta for t in inputs.train_tasks())


def test_a_recipe_without_such_names_asks_once() -> None:
    inputs = make_data_source(load_recipe("unseen-search-mini", [*SMALL, "tools=[search]"]))
    assert {t.meta["split"] for t in inputs.evaluation_tasks()} == {"heldout", "known"}


def test_questions_of_a_file_are_asked_again(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    write_tasks([Task(f"t{i}", f"Who is {i}?", ("x",)) for i in range(6)], file)
    given = [f"tasks={file}", f"model={tmp_path}", "evaluation.splits={heldout: 2}"]
    tools = "tools=[{name: python, eval_names: run}]"
    inputs = make_data_source(load_recipe("torl", [*given, tools]))
    tasks = [(t.meta["split"], t.meta.get("called")) for t in inputs.evaluation_tasks()]
    assert tasks == 2 * [("heldout", None)] + 2 * [("unseen", "unseen")]
    assert inputs.warnings() == []
