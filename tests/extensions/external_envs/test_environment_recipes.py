"""Keys allowed and not allowed in a recipe with an external environment."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from learning import STAGE, write_player

from fieldcraft.config.recipe import Recipe
from fieldcraft.config.rules import RULES, Rule, list_violations
from fieldcraft.recipes.exported import write_agent_settings
from fieldcraft.recipes.loading import parse_recipe
from fieldcraft.rewards.rollouts import EnvironmentReward
from fieldcraft.rewards.rubric import Rubric
from fieldcraft.runs.agent import find_agent
from fieldcraft.runs.check import check_recipe
from fieldcraft.runs.file_inputs import FileData
from fieldcraft.runs.inputs import EnvironmentData, make_data_source
from fieldcraft.types import Task, Trajectory, UserError

GAME = {"name": "text", "env": "games_parts:Guess", "num_seeds": 6}


def recipe(
    folder: Path, environment: Any = GAME, rules: Sequence[Rule] = RULES, **keys: Any
) -> Recipe:
    if not (folder / "player").exists():
        write_player(folder / "player", 0)
    return parse_recipe(
        {
            "name": "play",
            "device": "cpu",
            "model": str(folder / "player"),
            "environment": environment,
            "budget": {"max_context_tokens": 40},
            "stages": {"rl": STAGE},
            "evaluation": {"splits": {"heldout": 2}},
        }
        | keys,
        rules=rules,
    )


def problems(folder: Path, environment: Any) -> list[str]:
    return check_recipe(recipe(folder, environment), folder, lambda *_: None)


def test_it_has_no_tools_and_its_own_verdict(tmp_path: Path) -> None:
    game = recipe(tmp_path)
    assert (game.tools, game.evaluation.workflows, game.verdict_reward) == ((), (), "environment")
    assert recipe(tmp_path, verdict_reward="em").verdict_reward == "em"
    dumped = game.model_dump(mode="json")
    assert dumped["environment"] == GAME | {"tool_costs": {}}
    assert parse_recipe(dumped) == game


def test_a_recipe_with_tools_is_as_it_was(tmp_path: Path) -> None:
    game = recipe(tmp_path, "tools", tasks=str(questions(tmp_path)), search={"url": "http://x"})
    assert [tool.name for tool in game.tools] == ["search"]
    assert (game.verdict_reward, game.evaluation.workflows) == ("auto", ("workflow",))


def questions(folder: Path) -> Path:
    file = folder / "questions.jsonl"
    lines = [f'{{"question": "Who is {i}?", "golden_answers": ["{i}"]}}\n' for i in range(4)]
    file.write_text("".join(lines))
    return file


def test_seeds_are_its_tasks_unless_the_recipe_has_questions(tmp_path: Path) -> None:
    own = make_data_source(recipe(tmp_path))
    assert isinstance(own, EnvironmentData)
    assert [task.meta["seed"] for task in own.train_tasks()] == [0, 1, 2, 3, 4, 5]
    evaluated = own.evaluation_tasks()
    assert [(task.meta["seed"], task.meta["split"]) for task in evaluated] == [
        (6, "heldout"),
        (7, "heldout"),
    ]
    assert isinstance(make_data_source(recipe(tmp_path, tasks=str(questions(tmp_path)))), FileData)


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"tools": ["search"]}, "'tools' is wrong: an external environment has its own actions"),
        ({"environment": "texts"}, "unknown environment 'texts'"),
        ({"evaluation": {"workflows": ["rag"]}}, "evaluation.workflows does not work in"),
        (
            {"budget": {"fold": {"trigger_tokens": 9}}},
            "budget.fold does not work in environment 'text'",
        ),
        ({"stages": {"rl": STAGE | {"observations": "simulated"}}}, "set observations: real"),
        ({"evaluation": {"splits": {"easy": 3}}}, "unknown key 'evaluation.splits.easy'"),
    ],
)
def test_what_does_not_fit_is_a_sentence(
    tmp_path: Path, keys: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError) as refused:
        recipe(tmp_path, **keys)
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ("text", "the environment 'text' needs the setting 'env'"),
        (
            GAME | {"num_seed": 3},
            "the environment 'text' has no setting 'num_seed'; did you mean 'num_seeds'?",
        ),
        (GAME | {"env": "Guess"}, "write env as module:Name"),
        (GAME | {"env": "games_parts:CannotBeMade"}, "the environment cannot be opened"),
        ({"name": "games_parts:Guess"}, "has no tasks and no start"),
        ({"name": "games_parts:WORDS"}, "'games_parts:WORDS' is not an environment"),
    ],
)
def test_check_finds_a_bad_environment(tmp_path: Path, environment: Any, sentence: str) -> None:
    found = problems(tmp_path, environment)
    assert found
    assert sentence in found[0]


def test_check_finds_nothing_wrong_with_a_good_one(tmp_path: Path) -> None:
    assert problems(tmp_path, GAME) == []


def test_an_exported_agent_with_tools_can_play(tmp_path: Path) -> None:
    player = write_player(tmp_path / "player", 0)
    write_agent_settings(player, Recipe(name="r", stages={}), None, trained_with_tools=True)
    assert recipe(tmp_path).tools == ()


def test_an_environment_does_not_inherit_what_it_never_reads(tmp_path: Path) -> None:
    player = write_player(tmp_path / "player", 0)
    budget = {"at_limit": "answer", "answer_tokens": 5, "call_timeout_seconds": 5.0, "max_calls": 3}
    prompt = {"instruction": "Search.", "system_prompt": "You search."}
    agent = Recipe(name="r", stages={}, budget=budget, **prompt)
    write_agent_settings(player, agent, None, trained_with_tools=True)
    agent_function = {"name": "blackbox", "agent": "blackbox_agents:answers"}
    asked = recipe(tmp_path, agent_function, tasks=str(questions(tmp_path)))
    assert (asked.instruction, asked.system_prompt) == (None, "You search.")
    assert (asked.budget.max_calls, asked.budget.call_timeout_seconds) == (3, 60)


def test_an_exported_player_plays_on(tmp_path: Path) -> None:
    """An agent with this model, and a recipe that sets nothing else, use its environment."""
    acts = recipe(tmp_path)
    write_agent_settings(tmp_path / "player", acts, None, trained_with_tools=True)
    agent = find_agent(tmp_path / "player")
    assert agent.recipe.environment == acts.environment
    assert agent.recipe.verdict_reward == "environment"
    done = agent.ask("whatever it asks")
    assert "environment" in done.rewards
    keys = {"name": "on", "model": str(tmp_path / "player"), "stages": {"rl": STAGE}}
    assert parse_recipe(keys).environment == acts.environment
    tools = {"tools": ["search"], "search": {"url": "http://x"}, "tasks": str(questions(tmp_path))}
    assert not parse_recipe(
        keys | tools | {"tasks": str(questions(tmp_path))}
    ).environment.is_external


def test_a_model_is_needed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="needs a model"):
        make_data_source(recipe(tmp_path).model_copy(update={"model": None}))


def test_a_verdict_outside_0_to_1_is_refused() -> None:
    done = Trajectory(Task("q", "?", ()), rewards={"environment": 3.0})
    rubric = Rubric([(EnvironmentReward(), 1.0)], "environment")
    with pytest.raises(
        UserError, match="must give scores from 0 to 1, not 3: set verdict_reward= to another"
    ):
        asyncio.run(rubric.score([done]))


@pytest.mark.parametrize(
    ("environment", "unread"),
    [
        (
            {"name": "verifiers", "taskset": "t"},
            "instruction system_prompt chat_template_kwargs date budget.max_observation_tokens"
            " budget.call_timeout_seconds budget.max_concurrent_calls",
        ),
        (
            {"name": "command", "run": "true"},
            "instruction budget.max_observation_tokens budget.call_timeout_seconds"
            " budget.max_concurrent_calls",
        ),
        (
            {"name": "bfcl"},
            "budget.max_calls budget.call_timeout_seconds budget.max_concurrent_calls",
        ),
        ({"name": "harbor", "tasks": "t"}, ""),
        (GAME, ""),
        ({"name": "no_module:Own"}, ""),
    ],
)
def test_keys_that_an_environment_never_reads_are_refused(
    tmp_path: Path, environment: dict[str, Any], unread: str
) -> None:
    keys: dict[str, Any] = {
        "instruction": "Act.",
        "system_prompt": "You act.",
        "chat_template_kwargs": {"enable_thinking": False},
        "date": "2020-01-01",
        "budget": {
            **{"max_calls": 3, "max_context_tokens": 40, "max_observation_tokens": 99},
            **{"call_timeout_seconds": 5.0, "max_concurrent_calls": 4},
        },
    }
    found = list_violations(recipe(tmp_path, environment, rules=(), **keys))
    told = f" does not work in environment '{environment['name']}', so remove it."
    refused = [sentence.removesuffix(told) for sentence in found if sentence.endswith(told)]
    assert sorted(refused) == sorted(unread.split())
