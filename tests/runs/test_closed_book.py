"""A model's accuracy without tools: measured once, and recorded on every question."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from collecting_parts import status
from fieldcraft.data.tasks import read_tasks
from fieldcraft.recipes.loading import load_recipe
from fieldcraft.records.trajectories import read_trajectories
from fieldcraft.runs import closed_book
from fieldcraft.runs.closed_book import (
    check_closed_book,
    measure_closed_book,
    summarise_closed_book,
)
from fieldcraft.runs.setup import CheckReport
from fieldcraft.types import Task, UserError

TINY = [
    *(
        "device=cpu",
        "world.people=40",
        "world.variants=2",
        "tiny_model.layers=2",
        "tiny_model.width=32",
    ),
    *("tiny_model.heads=2", "budget.max_turn_tokens=8", "evaluation.workflows=[]"),
    "evaluation.splits={heldout: 2}",
    *("stages.base.steps=1", "stages.base.max_examples=4", "stages.base.batch_size=2"),
    *("stages.sft2.steps=1", "stages.sft2.max_examples=4", "stages.sft2.batch_size=2"),
    *("stages.rl2.steps=1", "stages.rl2.questions_per_step=2", "stages.rl2.group_size=2"),
]
ASKED = [
    Task("a", "?", ("x",), {"known": True}),
    Task("b", "?", ("x",), {"known": True}),
    Task("c", "?", ("x",), {"known": False}),
    Task("d", "?", ("x",)),
]
TRAINED = [Task(str(i), "?", ("x",)) for i in range(5)]
RIGHT = {"a": 4, "b": 2, "c": 0, "d": 3, "0": 1, "1": 4}  # of four samples


def context(folder: Path, *overrides: str) -> SimpleNamespace:
    recipe = load_recipe("smoke", ["closed_book={samples: 4, questions: 2}", *overrides])
    inputs = SimpleNamespace(evaluation_tasks=lambda: ASKED, train_tasks=lambda: TRAINED)
    place = SimpleNamespace(closed_book_file=folder / "closed_book.jsonl")
    return SimpleNamespace(
        recipe=recipe,
        data_source=inputs,
        folder=place,
        closed_book_tallies={},
        report_figures={},
        emit=lambda event: None,
    )


def measure(made: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the keys of the sampled rollouts."""
    taken: list[str] = []

    def rolled_out(*_: object) -> object:
        async def is_right(task: Task, key: str) -> bool:
            taken.append(key)
            return int(key.rpartition("/")[2]) < RIGHT[task.id]

        return is_right

    monkeypatch.setattr(closed_book, "make_rollout_check", rolled_out)
    asyncio.run(measure_closed_book(made, Path("model")))
    return taken


def test_every_question_is_sampled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = context(tmp_path)
    assert len(measure(made, monkeypatch)) == 4 * (4 + 2)
    rates = {
        who: {k: t.rate for k, t in found.items()}
        for who, found in made.closed_book_tallies.items()
    }
    assert rates == {
        "evaluation": {"a": 1.0, "b": 0.5, "c": 0.0, "d": 0.75},
        "training": {"0": 0.25, "1": 1.0},
    }
    assert measure(made, monkeypatch) == []


def test_a_run_that_is_resumed_samples_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = context(tmp_path)
    measure(first, monkeypatch)
    lines = first.folder.closed_book_file.read_text().splitlines(keepends=True)
    first.folder.closed_book_file.write_text("".join(lines[:3]))
    again = context(tmp_path)
    assert len(measure(again, monkeypatch)) == 4 * 3
    assert again.closed_book_tallies == first.closed_book_tallies
    assert measure(context(tmp_path), monkeypatch) == []


def test_the_report_says_how_far_it_agrees_with_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = context(tmp_path, "closed_book.questions=0")
    measure(made, monkeypatch)
    counts = {"known": {"n": 2, "known": 1}, "unknown": {"n": 1, "known": 0}}
    found = {"n": 4, "rate": 2.25 / 4, "known": 2, "agreement": counts}
    assert summarise_closed_book(made) == {"evaluation": found}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            ["closed_book.model=sft9"],
            "of 'sft9', which does not exist: use one of start, base, sft",
        ),
        (
            ["closed_book.questions=4", "closed_book.model=rl2"],
            "after 'rl2', but the recipe has none",
        ),
        (
            ["closed_book.questions=4", "select.closed_book_model=base"],
            "remove closed_book.questions",
        ),
        (["closed_book.temperature=0"], "'closed_book.temperature' is wrong"),
        (["closed_book={}", "stages={}"], "has no such questions: remove it"),
    ],
)
def test_a_mistake_is_told_in_a_sentence(given: list[str], message: str) -> None:
    with pytest.raises(UserError) as error:
        load_recipe("smoke", given)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("given", "tasks", "message"),
    [
        ([], ASKED, "1 of 4 questions have no label whether the model knows them"),
        ([], ASKED[:3], "all 3 questions have a label whether the model knows them"),
        (["closed_book={samples: 3, questions: 5}"], ASKED, "27 samples without tools from the"),
    ],
)
def test_check_says_what_evaluations_know(
    given: list[str], tasks: list[Task], message: str
) -> None:
    recipe, report = load_recipe("smoke", given), CheckReport()
    setup = SimpleNamespace(
        recipe=recipe, data_source=SimpleNamespace(evaluation_tasks=lambda: tasks)
    )
    check_closed_book(setup, report)
    assert report.errors == []
    assert message in report.notes[0]


@pytest.mark.slow
def test_a_run_notes_the_rate_on_every_question(tmp_path: Path) -> None:
    measured = [*TINY, "closed_book={samples: 2, questions: 4000}"]
    assert status("run", "smoke", *measured, "--out", str(tmp_path / "run")) == 0
    for evaluation in (tmp_path / "run" / "evaluations").glob("*.jsonl"):
        answered = read_trajectories(evaluation)
        assert all(0 <= t.task.meta["closed_book"] <= 1 for t in answered)
    [rollouts] = (tmp_path / "run" / "rl2" / "rollouts").glob("*")
    assert '"closed_book":' in rollouts.read_text()
    question_count = len(read_tasks(tmp_path / "run" / "world" / "evaluation.jsonl"))
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["closed_book"]["evaluation"]["n"] == question_count
