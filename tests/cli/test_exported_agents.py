"""An exported agent acts as in its run: same prompts, tools and budget, and therefore the same
ids."""

import json
from pathlib import Path
from typing import Any

import pytest

import fieldcraft
from checkpoints import write_tiny_checkpoint
from cli_parts import sentence, status
from fieldcraft.data.tasks import read_tasks
from fieldcraft.recipes.exported import AGENT_FILE, fill_from_model_folder
from fieldcraft.recipes.loading import parse_recipe
from fieldcraft.runs.agent import Agent, find_agent
from fieldcraft.runs.evaluating import is_agent


def ids_of(agent: Agent, tasks: Path) -> list[list[int]]:
    return [agent.ask(task.question).ids for task in read_tasks(tasks)[:4]]


@pytest.fixture
def exported(done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provide an agent that was exported by relative paths and is used from another folder."""
    monkeypatch.chdir(done.parent)
    out = tmp_path / "exported"
    assert status("export", done.name, "--out", out, "--dtype", "float32") == 0
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    return out


@pytest.mark.long
def test_it_answers_as_inside_its_run(done: Path, exported: Path) -> None:
    inside, outside = find_agent(done), find_agent(exported)
    assert outside.recipe.instruction == inside.recipe.instruction == ""
    assert outside.recipe.budget == inside.recipe.budget
    assert outside.index == done / "index"
    tasks = done / "world" / "evaluation.jsonl"
    assert ids_of(outside, tasks) == ids_of(inside, tasks)
    assert ids_of(fieldcraft.load(exported), tasks) == ids_of(inside, tasks)
    assert outside.evaluate(tasks)["em"] == inside.evaluate(tasks)["em"]
    bare = exported / AGENT_FILE
    bare.unlink()  # a former export: weights alone
    assert ids_of(find_agent(exported), tasks) != ids_of(inside, tasks)


def test_an_export_of_an_export_is_the_same(exported: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    assert status("export", exported, "--out", again) == 0
    assert json.loads((again / AGENT_FILE).read_text()) == json.loads(
        (exported / AGENT_FILE).read_text()
    )


def test_it_says_whether_it_was_trained_with_tools(
    done: Path, exported: Path, tmp_path: Path
) -> None:
    assert is_agent(exported)
    assert status("export", done / "base", "--out", tmp_path / "base") == 0
    assert not is_agent(tmp_path / "base")
    assert status("export", tmp_path / "base", "--out", tmp_path / "again") == 0
    assert not is_agent(tmp_path / "again")


def test_options_win_over_what_was_exported(exported: Path) -> None:
    agent = fieldcraft.load(exported, instruction="Think.", budget={"max_calls": 1})
    assert (agent.recipe.instruction, agent.recipe.budget.max_calls) == ("Think.", 1)
    assert agent.recipe.dialect == "autocoa"


def recipe_on(model: Path, tmp_path: Path, **keys: Any) -> dict[str, Any]:
    questions = tmp_path / "questions.jsonl"
    questions.write_text('{"question": "Who?", "answer": "Ada"}\n' * 2)
    stage = {"type": "sft", "dataset": "demonstrations", "steps": 1, "optim": {"lr": 0.1}}
    mine = {
        "name": "mine",
        "model": str(model),
        "tasks": str(questions),
        "corpus": str(questions),
    }
    return {**mine, "stages": {"sft": stage}, **keys}


def test_a_recipe_takes_from_its_model_what_it_does_not_say(exported: Path, tmp_path: Path) -> None:
    recipe = parse_recipe(recipe_on(exported, tmp_path, budget={"max_calls": 9}))
    assert (recipe.dialect, recipe.instruction, recipe.search.top_k) == ("autocoa", "", 1)
    assert (recipe.budget.max_calls, recipe.budget.max_context_tokens) == (9, 200)
    own = parse_recipe(recipe_on(exported, tmp_path, instruction="Think.", search={"top_k": 5}))
    assert (own.instruction, own.search.top_k) == ("Think.", 5)


def test_a_prompt_is_not_taken_into_another_dialect(exported: Path, tmp_path: Path) -> None:
    recipe = parse_recipe(recipe_on(exported, tmp_path, dialect="otc"))
    assert (recipe.dialect, recipe.instruction) == ("otc", None)


def test_a_model_without_the_file_changes_nothing(tmp_path: Path) -> None:
    data = recipe_on(write_tiny_checkpoint(tmp_path / "model", "qwen2"), tmp_path)
    assert fill_from_model_folder(data) == data


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"index": null}'])
def test_a_broken_file_is_one_sentence(
    content: str, exported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (exported / AGENT_FILE).write_text(content)
    capsys.readouterr()
    assert status("ask", "Who?", "--model", exported) == 2
    assert f"{exported / AGENT_FILE} was not written by 'fieldcraft export'" in sentence(capsys)
