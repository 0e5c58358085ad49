"""Examples of a run's data: prompts that the model reads, trained tokens, and scores of answers."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from checkpoints import write_tiny_checkpoint
from cli_parts import lines, status
from fieldcraft.recipes.loading import load_recipe
from fieldcraft.rewards.answers import StatelessReward
from fieldcraft.runs.build import make_verdict_reward
from fieldcraft.runs.check import check_recipe
from fieldcraft.runs.examples import ExampleSource
from fieldcraft.runs.setup import PlaceholderReward
from fieldcraft.terminal.console import CleanConsole
from fieldcraft.terminal.examples import (
    DataExamples,
    QuestionExample,
    print_examples,
    write_examples,
)
from fieldcraft.types import Task
from tiny_runs import run_tiny

RECIPE = """
name: mine
device: cpu
tools: []
ungraded: trust
budget: {max_turn_tokens: 8, max_context_tokens: 900}
stages:
  one: {type: sft, dataset: demonstrations, steps: 1, batch_size: 1, optim: {lr: 1.0e-3}}
evaluation: {splits: {heldout: 1}, workflows: []}
"""


def record(number: int, answer: str, text: str | None = None, **more: Any) -> dict[str, Any]:
    question = f"Who is {number}?"
    content = f"<think>\nIt is known.\n</think>\n\\boxed{{{text or answer}}}"
    messages = [
        {"role": "user", "content": question},
        {"role": "assistant", "content": content},
    ]
    return {"question": question, "golden_answers": [answer], "messages": messages, **more}


def write(folder: Path, *records: dict[str, Any]) -> list[str]:
    """Write these questions and return the arguments of a recipe about them."""
    write_tiny_checkpoint(folder / "model", "qwen2")
    (folder / "mine.yaml").write_text(RECIPE)
    text = "".join(json.dumps(each) + "\n" for each in records)
    (folder / "questions.jsonl").write_text(text)
    files = [f"{key}={folder / 'questions.jsonl'}" for key in ("tasks", "demonstrations")]
    return [str(folder / "mine.yaml"), f"model={folder / 'model'}", *files]


def examined(arguments: list[str], count: int = 2) -> DataExamples:
    """Return the examples that a check finds."""
    taken: list[DataExamples] = []
    recipe = load_recipe(arguments[0], arguments[1:])
    check_recipe(recipe, Path.cwd(), lambda *_: None, lambda data: taken.append(data.take(count)))
    [examples] = taken
    return examples


def test_a_question_as_it_is_asked_and_graded(tmp_path: Path) -> None:
    arguments = write(tmp_path, *(record(i, answer) for i, answer in enumerate(("Ada", "Bea"))))
    examples = examined(arguments)
    assert {example.task.meta.get("split") for example in examples.questions} == {None, "heldout"}
    for example in examples.questions:
        [gold] = example.task.answers
        other = {"Ada": "Bea", "Bea": "Ada"}[gold]
        assert example.prompt is not None
        assert example.prompt.startswith("<|im_start|>")  # special tokens are visible
        assert example.task.question in example.prompt
        assert example.grader == "em"
        assert example.scores == {gold: True, other: False}


def test_an_answer_that_the_dialect_cannot_carry_is_seen_to_be_wrong(tmp_path: Path) -> None:
    """The verdict is about the answer that is read back, not about the text of the file."""
    arguments = write(tmp_path, record(0, "\\boxed{"), record(1, "Bea"))
    scores = [example.scores for example in examined(arguments).questions]
    assert {"\\boxed{": False, "Bea": False} in scores


def test_a_demonstration_with_the_tokens_that_are_trained(tmp_path: Path) -> None:
    arguments = write(tmp_path, record(0, "Ada"), record(1, "Bea"), record(2, "Cleo", "nobody"))
    tasks_file = tmp_path / "asked.jsonl"
    tasks_file.write_text('{"question": "Who was first?", "answer": "Dora"}\n')
    examples = examined([*arguments, f"evaluation.tasks={tasks_file}"], count=3)
    first, second, third = examples.demonstrations
    for example in (first, second):
        assert example.name == "demonstrations (stage one)"
        assert example.trajectory is not None
        assert example.trained_authors == {"policy"}
    assert third.trajectory is None
    assert "1 with a wrong answer" in third.rejection_reason


def test_data_that_several_stages_train_alike_is_shown_once(tmp_path: Path) -> None:
    arguments = write(tmp_path, record(0, "Ada"), record(1, "Bea"))
    again = "stages.two={type: sft, dataset: demonstrations, steps: 1, optim: {lr: 1}}"
    assert len(examined([*arguments, again], count=1).demonstrations) == 1


def test_programs_are_run_where_a_user_looks(tmp_path: Path) -> None:
    tests = {"inputs": ["1"], "outputs": ["1"]}
    records = [record(i, f"x{i}", stdin_tests=tests) for i in range(2)]
    for each in records:
        del each["golden_answers"]
    arguments = write(tmp_path, *records)
    examples = examined(arguments, count=1)
    assert examples.questions[0].grader == "stdin_tests"
    assert list(examples.questions[0].scores.values()) == [False]


def test_what_is_not_asked_has_no_verdict(tmp_path: Path) -> None:
    arguments = write(tmp_path, record(0, "Ada", graded_by="judge"), record(1, "Bea"))
    taken: list[DataExamples] = []

    def without_judge(data: ExampleSource) -> None:
        correct = make_verdict_reward(data.recipe, PlaceholderReward("judge", None))
        again = ExampleSource(data.recipe, data.data_source, correct, data.encoder)
        taken.append(again.take(2))

    recipe = load_recipe(arguments[0], arguments[1:])
    check_recipe(recipe, Path.cwd(), lambda *_: None, without_judge)
    verdicts = {e.grader: set(e.scores.values()) for e in taken[0].questions}
    assert verdicts == {"judge": {None}, "em": {True, False}}
    assert issubclass(PlaceholderReward, StatelessReward)


def test_the_command_prints_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = write(tmp_path, record(0, "Ada"), record(1, "Bea"))
    assert status("check", *arguments, "--show", "1") == 0
    out = capsys.readouterr().out
    assert "question 1 of 1" in out
    assert re.search(r"right +(Ada|Bea)", out)
    assert re.search(r"\d+ of \d+ tokens are trained \(policy\)", out)
    assert status("check", *arguments) == 0
    assert "tokens are trained" not in capsys.readouterr().out


def test_without_a_dialect_questions_have_no_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    """A teacher that is collected from has its own prompts."""
    status("check", "autocoa-data", "--show", "1")
    out = capsys.readouterr().out
    assert "question 1 of 1" in out
    assert re.search(r"question +\w", out)
    assert "prompt" not in out.partition("ok    teacher")[0]
    assert "correct answers  em of" in out  # gold answers are checked there as well


def test_a_run_keeps_a_page_that_its_report_links(tmp_path: Path) -> None:
    run = run_tiny(tmp_path)
    page = (run / "examples.html").read_text()
    assert "Who is" in page
    assert "tokens are trained" in page
    assert 'href="examples.html"' in (run / "report.html").read_text()


def test_the_page_shows_any_text_and_runs_none(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script> \x1b[31m {stylesheet} & {code}"
    arguments = write(tmp_path, record(0, "Ada", note=evil), record(1, evil))
    write_examples(examined(arguments), tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "<script>" not in page
    assert "\x1b" not in page
    assert "&lt;script&gt;" in page
    assert "{stylesheet} &amp; {code}" in page


@pytest.mark.parametrize(
    ("tests", "shown"),
    [
        ({"stdin_tests": [{"input": "1\n", "output": "2"}] * 3}, "reads '1\\n', prints '2'"),
        ({"unit_tests": ["assert f(1) == 2"] * 3}, "assert f(1) == 2"),
        ({"unit_tests": ["assert f(1)" + " " * 400] * 3}, "..."),
    ],
)
def test_the_first_test_of_a_program_is_shown_as_it_is_understood(
    tests: dict[str, Any], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    example = QuestionExample(Task("1", "Add.", (), tests), None, "tests", {})
    print_examples(DataExamples([example], [], None), CleanConsole())
    output = capsys.readouterr().out
    assert "3, of which the first is" in output
    assert shown in output


def test_a_selection_without_a_model_shows_its_questions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = [{"question": f"Who made film {i}?", "answer": f"Ada {i}"} for i in range(9)]
    lines(tmp_path / "q.jsonl", records)
    (tmp_path / "select.yaml").write_text(
        "{name: chosen, teacher: {model: m, url: 'http://127.0.0.1:9/v1'}, tools: [], stages: {},"
        " select: {questions: 1, closed_book_model: teacher},"
        " evaluation: {splits: {heldout: 1}, workflows: []}}"
    )
    given = [str(tmp_path / "select.yaml"), f"tasks={tmp_path / 'q.jsonl'}"]
    status("check", *given, "--show", "1")
    assert "Who made film" in capsys.readouterr().out
