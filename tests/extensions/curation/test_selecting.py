"""Runs that select the questions of reinforcement learning."""

import json
from pathlib import Path

import pytest

from checkpoints import write_tiny_checkpoint
from collecting_parts import FakeTeacher, settings, status
from fieldcraft.data.tasks import read_tasks
from fieldcraft.tools.serving import serve_in_thread

pytest.importorskip("openai", reason="remote models need the extra openai")
TINY = [
    *("smoke", "device=cpu", "world.people=40", "world.variants=2", "tiny_model.layers=2"),
    *(
        "tiny_model.width=32",
        "tiny_model.heads=2",
        "budget.max_turn_tokens=8",
        "evaluation.workflows=[]",
    ),
    *("evaluation.splits.heldout=2", "stages.base.steps=1", "stages.base.max_examples=4"),
    *("stages.base.batch_size=2", "stages.sft2.steps=1", "stages.sft2.max_examples=4"),
    *(
        "stages.sft2.batch_size=2",
        "stages.rl2.steps=1",
        "stages.rl2.questions_per_step=2",
        "stages.rl2.group_size=2",
    ),
    *(
        "select.questions=12",
        "select.closed_book_samples=2",
        "select.solver_rollouts=2",
        "select.closed_book_model=base",
    ),
    *("select.solver=sft2",),
]


def test_a_model_behind_an_endpoint_samples_without_tools(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The fake model knows the easy questions, and guesses the hard ones wrong."""
    teacher, out = FakeTeacher(), tmp_path / "run"
    with serve_in_thread(teacher.app) as url:
        _, *given = settings(tmp_path, f"{url}/v1", {"easy": 6, "hard": 6})
        given = [g for g in given if not g.startswith("collect")]
        arguments = ["afm-select-web", *given, "required_paths=[]", "select.closed_book_samples=4"]
        arguments += ["select.closed_book_model=teacher", "--out", str(out)]
        assert status("run", *arguments) == 0
        questions = {q for q, _ in teacher.asked}
        assert len(teacher.asked) == 4 * len(questions) == 4 * 11  # one question is held out
        assert {way for _, way in teacher.asked} == {"cot"}
        assert status("run", *arguments) == 0
        assert len(teacher.asked) == 44
    selected = read_tasks(out / "select" / "tasks.jsonl")
    assert {task.question for task in selected} == {q for q in questions if "hard" in q}
    assert {task.meta["closed_book"] for task in selected} == {0.0}
    card = json.loads((out / "select" / "card.json").read_text())
    counts = [(cut["name"], cut["before"], cut["after"]) for cut in card["cuts"]]
    assert counts == [("overlap", 11, 11), ("toolless", 11, len(selected))]
    assert "Person" in (out / "select" / "card.html").read_text()
    assert "select/tasks.jsonl" in capsys.readouterr().out


def test_code_is_selected_by_what_the_model_solves(tmp_path: Path) -> None:
    """An untrained model solves nothing, so all questions remain, and none is asked without tools.
    One of three is held out."""
    model = write_tiny_checkpoint(tmp_path / "model", "qwen2")
    records = [{"question": f"How much is {n} + 1?", "answer": str(n + 1)} for n in range(3)]
    (tmp_path / "tasks.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in records))
    out = tmp_path / "run"
    given = [f"model={model}", f"tasks={tmp_path / 'tasks.jsonl'}", "select.solver_rollouts=2"]
    short = ["budget.max_turn_tokens=4", "budget.max_context_tokens=1024", "device=cpu"]
    assert status("run", "afm-select-code", *given, *short, "--out", out) == 0
    card = json.loads((out / "select" / "card.json").read_text())
    counts = [(cut["name"], cut["before"], cut["after"]) for cut in card["cuts"]]
    assert counts == [(rule, 2, 2) for rule in ("proofs", "tests", "overlap", "solver")]
    assert card["figures"] == {"0 of 2 right with tools": {"questions": 2.0}}
    assert all("closed_book" not in t.meta for t in read_tasks(out / "select" / "tasks.jsonl"))


def test_questions_are_filtered_before_any_is_sampled(tmp_path: Path) -> None:
    """One of four questions is held out, and one is a proof."""
    model = write_tiny_checkpoint(tmp_path / "model", "qwen2")
    sums = ["How much is 1 + 1?", "How much is 4 - 2?", "Prove that 1 + 1 is 2."]
    records = [{"problem": question, "answer": "2"} for question in [*sums, "What is 2?"]]
    (tmp_path / "tasks.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in records))
    out = tmp_path / "run"
    given = [
        f"model={model}",
        f"tasks={tmp_path / 'tasks.jsonl'}",
        "select.solver_rollouts=1",
        "seed=2",
    ]
    given += ["budget.max_turn_tokens=4", "budget.max_context_tokens=1024", "device=cpu"]
    given += ["select.filters={proofs: , tests: }"]
    assert status("run", "afm-select-code", *given, "--out", out) == 0
    selected = {task.question for task in read_tasks(out / "select" / "tasks.jsonl")}
    card = json.loads((out / "select" / "card.json").read_text())
    counts = [(cut["name"], cut["before"], cut["after"]) for cut in card["cuts"]]
    assert counts == [
        *(("proofs", 3, 2), ("tests", 2, 2), ("overlap", 2, 2), ("solver", 2, 2)),
    ]
    assert selected == set(sums[:2])


def test_filters_of_questions_look_at_no_steps(capsys: pytest.CaptureFixture[str]) -> None:
    assert status("check", "afm-mini", "select.filters={complexity: }") == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "the filter 'complexity' needs an answered question, but" in message


def test_the_recipe_of_both_names_its_successors(capsys: pytest.CaptureFixture[str]) -> None:
    assert status("run", "afm-select") == 2
    message = " ".join(capsys.readouterr().err.split())
    assert (
        "the recipe 'afm-select' no longer exists: use afm-select-web, which drops what a model"
        in message
    )
    assert message.endswith("or afm-select-code, which drops what a model always solves.")


@pytest.mark.slow
def test_selection_inside_a_run_is_resumed(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert status("run", *TINY, "--out", out) == 0
    selected = {task.id for task in read_tasks(out / "select" / "tasks.jsonl")}
    [rollouts] = (out / "rl2" / "rollouts").glob("*")
    assert any(task in rollouts.read_text() for task in selected)
    lines = (out / "select" / "samples.jsonl").read_text().splitlines()
    assert sum('"toolless"' in line for line in lines) <= 12
    (out / "select" / "card.json").unlink()  # as if it had been killed during the selection
    (out / "select" / "samples.jsonl").write_text("".join(f"{line}\n" for line in lines[:3]))
    (out / "report.html").unlink()
    assert status("run", *TINY, "--out", out) == 0
    again = (out / "select" / "samples.jsonl").read_text().splitlines()
    assert sorted(again) == sorted(lines)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("select.solver=sft9", "select samples the model of 'sft9', which does not exist before"),
        ("select.closed_book_model=rl2", "use one of start, base, sft2"),
        (
            "select.closed_book_model=teacher",
            "select.closed_book_model=teacher needs the name of a model",
        ),
        ("select.max_closed_book_accuracy=2", "'select.max_closed_book_accuracy' is wrong"),
        (
            "select={closed_book_model: null, overlap: keep, solver: null}",
            "it keeps every question",
        ),
    ],
)
def test_a_mistake_is_told_in_a_sentence(
    tmp_path: Path, change: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status("check", *TINY, change) == 2
    assert message in " ".join(capsys.readouterr().err.split())
