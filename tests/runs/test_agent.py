"""The folder in which an agent is found, and the settings that it uses."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from checkpoints import write_tiny_checkpoint
from fieldcraft.config.recipe import Recipe, dump_recipe
from fieldcraft.extensions.search.index import MANIFEST_FILE, SearchIndex, build_index
from fieldcraft.recipes.exported import AGENT_FILE, get_agent_settings, write_agent_settings
from fieldcraft.recipes.loading import load_recipe
from fieldcraft.runs.agent import Agent, find_agent
from fieldcraft.types import UserError


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Create a run of three stages: two are finished and the third is in progress."""
    for stage in ("base", "sft2", "rl2"):
        (tmp_path / stage / "model").mkdir(parents=True)
        (tmp_path / stage / "model" / "config.json").touch()
    for stage in ("base", "sft2"):
        (tmp_path / stage / "stage.json").touch()
    recipe = load_recipe("smoke", ["instruction=Think"])
    (tmp_path / "recipe.json").write_text(json.dumps(dump_recipe(recipe)))
    return tmp_path


@pytest.mark.parametrize(
    ("place", "model"),
    [
        (".", "sft2/model"),
        ("sft2", "sft2/model"),
        ("base", "base/model"),
        ("base/model", "base/model"),
    ],
)
def test_agents_of_a_run(run: Path, place: str, model: str) -> None:
    agent = find_agent(run / place)
    assert (agent.model, agent.index) == (run / model, run / "index")
    assert agent.recipe.instruction == "Think"
    assert agent.recipe.budget.max_context_tokens == 600


def test_an_agent_acts_within_the_budget_of_its_evaluations(run: Path) -> None:
    recipe = load_recipe("smoke", ["evaluation.budget.max_calls=9"])
    (run / "recipe.json").write_text(json.dumps(dump_recipe(recipe)))
    agent = find_agent(run)
    assert (recipe.budget.max_calls, agent.recipe.budget.max_calls) == (4, 9)
    limited = agent.with_settings(budget={"max_calls": 2})
    assert limited.recipe.evaluation_recipe.budget.max_calls == 2
    assert get_agent_settings(agent.recipe)["budget"]["max_calls"] == 9


def test_a_run_is_found_from_within_it(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run / "base")
    assert find_agent(Path("model")).recipe.name == "smoke"


def test_a_bare_checkpoint_has_no_tools(tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    assert find_agent(tmp_path) == Agent(tmp_path, Recipe(name="none", stages={}), None)


def test_a_search_that_is_none_is_refused_at_once(tmp_path: Path) -> None:
    agent = Agent(tmp_path, Recipe(name="none", stages={}), None)
    with pytest.raises(UserError, match="holds no search index: rebuild it with"):
        agent.with_options(None, tmp_path / "none", None)
    with pytest.raises(UserError, match="only one search is supported"):
        agent.with_options(None, tmp_path, "http://h")


def test_an_index_is_opened_once_for_an_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "corpus.jsonl").write_text('{"title": "A", "text": "B"}\n')
    build_index(tmp_path / "corpus.jsonl", tmp_path / "index")
    agent = Agent(tmp_path, Recipe(name="none", stages={}), tmp_path / "index")
    first = asyncio.run(agent._open_tools())
    monkeypatch.setattr(SearchIndex, "load", None)
    second = asyncio.run(agent._open_tools())
    assert [tool.name for tool in second] == ["search"]
    assert second[0] is first[0]


def test_options_replace_what_the_run_had(run: Path) -> None:
    agent = find_agent(run).with_options("hermes", None, "http://there")
    assert agent.recipe.dialect == "hermes"
    assert agent.recipe.search.url == "http://there"
    assert agent.recipe.search.top_k == 1
    (run / "other").mkdir()
    (run / "other" / MANIFEST_FILE).write_text('{"format": 4}')
    again = agent.with_options(None, run / "other", None)
    assert again.recipe.dialect == "hermes"
    assert (again.index, again.recipe.search.url) == (run / "other", None)
    assert again.with_options(None, None, None) == again


def test_another_search_has_no_keys_of_the_first_index(run: Path) -> None:
    """They would be refused with the next change of a key."""
    agent = find_agent(run)
    search = {"top_k": 2, "encoder": "org/encoder", "ranking": "dense"}
    other = agent.with_settings(search=search).with_options(None, None, "http://there")
    changed = other.with_settings(instruction="Answer.").recipe.search
    assert (changed.url, changed.top_k, changed.encoder) == ("http://there", 2, None)


def test_where_no_agent_is(run: Path, tmp_path: Path) -> None:
    (run / "base" / "stage.json").unlink()
    (run / "sft2" / "stage.json").unlink()
    with pytest.raises(UserError, match="no finished stage yet"):
        find_agent(run)
    with pytest.raises(UserError, match="holds no model"):
        find_agent(tmp_path / "nowhere")
    (run / "recipe.json").write_text('{"recipe": "smoke", "stages": {}, "flavour": 1}')
    with pytest.raises(UserError, match="written by another version of fieldcraft"):
        find_agent(run)


@pytest.mark.parametrize(
    ("keys", "dtype"),
    [
        ({"dtype": "bfloat16"}, torch.bfloat16),
        ({"dtype": "float32"}, torch.float32),
        ({"dtype": "bfloat16", "lora": {"rank": 2}}, torch.float32),  # as written by an adapter
    ],
)
def test_an_agent_computes_in_the_type_in_which_it_was_trained(
    keys: dict[str, Any], dtype: torch.dtype, tmp_path: Path
) -> None:
    model = write_tiny_checkpoint(tmp_path / "model", "qwen2")
    agent = Agent(model, Recipe.model_validate({"name": "mine", "stages": {}, **keys}), None)
    assert agent.engine.model.dtype == dtype
    write_agent_settings(model, agent.recipe, None, trained_with_tools=True)
    exported = find_agent(model)
    assert exported.recipe.dtype == str(dtype).removeprefix("torch.")
    assert exported.engine.model.dtype == dtype


def test_an_agent_that_says_no_type_computes_in_float32(tmp_path: Path) -> None:
    """Agents exported before the type was recorded have no such key."""
    model = write_tiny_checkpoint(tmp_path / "model", "qwen2")
    write_agent_settings(model, Recipe(name="mine", stages={}), None, trained_with_tools=True)
    settings = json.loads((model / AGENT_FILE).read_text())
    settings.pop("dtype")
    (model / AGENT_FILE).write_text(json.dumps(settings))
    assert find_agent(model).engine.model.dtype == torch.float32
