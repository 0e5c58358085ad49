"""Tokens sampled for an external agent are the tokens trained, and a policy learns through one."""

import asyncio
import json
import sys
from collections.abc import Mapping
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from learning import STAGE, rises, write_player

from fieldcraft.config.sections import BudgetConfig
from fieldcraft.dialects import make_dialect
from fieldcraft.environments.base import isolate_failures
from fieldcraft.environments.turns import Policy
from fieldcraft.extensions.external_envs.blackbox import BlackBoxEnvironment
from fieldcraft.extensions.sandbox import landlock
from fieldcraft.recipes.loading import parse_recipe
from fieldcraft.records.chains import split_chains
from fieldcraft.records.events import EventBus, write_metrics
from fieldcraft.records.trajectories import read_trajectories
from fieldcraft.runs.check import check_recipe
from fieldcraft.runs.run import run_recipe
from fieldcraft.types import Author, Status, Task, Trajectory
from source_files import lines
from training_parts import assert_agree, chatty_engine, make_trainer

ROLLOUTS = 12
PYDANTIC_AI = {"name": "blackbox", "agent": "blackbox_agents:partners"}
PROGRAM = {
    "name": "command",
    "run": f"{sys.executable} {Path(__file__).with_name('partners_program.py')}",
    "writable": [] if landlock.explain_missing(landlock.FILES) is None else ["/"],
}
FEW = {"steps": 24, "group_size": 8, "optim": {"lr": 0.02}}  # frameworks are slow


def sample_conversations(agent: str, engine, seed: int = 0) -> list[Trajectory]:
    tokenizer = engine._stop_matcher.tokenizer
    policy = Policy(engine=engine, temperature=0.8, seed=seed)
    limits = BudgetConfig(max_turn_tokens=12, max_context_tokens=400)
    tasks = [Task(str(i), f"Who was born in Northport {i}?", ()) for i in range(ROLLOUTS)]

    async def all_of_them() -> list[Trajectory]:
        environment = BlackBoxEnvironment(f"blackbox_agents:{agent}")
        async with isolate_failures(
            environment, make_dialect("hermes", tokenizer), limits
        ) as runner:
            return await asyncio.gather(*(runner.run(task, policy, task.id) for task in tasks))

    return asyncio.run(all_of_them())


def test_engine_and_trainer_agree_about_conversations(tmp_path: Path) -> None:
    """A random model writes tokens that no tokenizer would choose for its text, and bytes that
    are not text. They stay unchanged, so a conversation is still one chain."""
    trainer = make_trainer(tmp_path)
    engine = chatty_engine(trainer)
    done = sample_conversations("converses", engine)
    tokenizer = engine._stop_matcher.tokenizer
    turns = [s for t in done for s in t.segments if s.author is Author.POLICY]
    assert [len(split_chains(t)) for t in done] == [1] * ROLLOUTS
    assert len(turns) == 3 * ROLLOUTS
    assert any(tokenizer.encode(s.text) != s.ids for s in turns)
    assert_agree(trainer, done, 0.8)
    assert engine.num_sessions == 0


def test_rollouts_follow_from_their_keys_and_the_seed(tmp_path: Path) -> None:
    engine = chatty_engine(make_trainer(tmp_path))
    first, again, other = (sample_conversations("converses", engine, seed) for seed in (0, 0, 1))
    assert [t.ids for t in first] == [t.ids for t in again]
    assert [t.ids for t in first] != [t.ids for t in other]


def learn(
    folder: Path,
    seed: int = 0,
    environment: Mapping[str, Any] = PYDANTIC_AI,
    turn_tokens: int = 4,
    **stage: object,
) -> list[dict[str, float]]:
    """Return the metrics of a recipe whose agent is one of Pydantic AI by default."""
    rows_of_tasks = [{"question": a + b, "answer": "-"} for a, b in permutations("abcd", 2)]
    recipe = parse_recipe(
        {
            "name": "blackbox",
            "seed": seed,
            "device": "cpu",
            "model": str(write_player(folder / "player", seed)),
            "tasks": str(lines(folder / "tasks.jsonl", *rows_of_tasks)),
            "environment": environment,
            "budget": {"max_turn_tokens": turn_tokens, "max_context_tokens": 40, "max_calls": 6},
            "stages": {"rl": STAGE | FEW | stage},
            "evaluation": {"splits": {"heldout": 4}},
        }
    )
    assert check_recipe(recipe, folder, lambda *_: None) == []
    run_recipe(recipe, folder / "run", EventBus([write_metrics]))
    rows = (folder / "run" / "rl" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(row) for row in rows]


@pytest.mark.slow
def test_a_policy_learns_through_an_agent_of_a_framework(tmp_path: Path) -> None:
    rewards = [row["reward_mean"] for row in learn(tmp_path, steps=12)]
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.2, rewards
    done = list(read_trajectories(tmp_path / "run" / "evaluations" / "rl.jsonl"))
    assert {t.status for t in done} <= {Status.ANSWERED, Status.TRUNCATED}
    assert max(len(t.policy_turns) for t in done) >= 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "agent", "turn_tokens", "by"),
    [
        ("anthropic", "anthropic_agents:partners", 4, 0.3),
        ("pydantic_ai", "framework_agents:answers_by_responses", 4, 0.3),
        # the package openai-agents, which rejects turns that the budget cut, and so learns later
        ("agents", "openai_agents:partners", 16, 0.15),
    ],
)
def test_a_policy_learns_through_the_other_interfaces(
    tmp_path: Path, package: str, agent: str, turn_tokens: int, by: float
) -> None:
    pytest.importorskip(package)
    for seed in range(3):
        environment = {"name": "blackbox", "agent": agent}
        rises(learn(tmp_path / str(seed), seed, environment, turn_tokens), by)


@pytest.mark.slow
def test_a_policy_learns_through_a_program(tmp_path: Path) -> None:
    for seed in range(3):
        rises(learn(tmp_path / str(seed), seed, PROGRAM))


@pytest.mark.slow
def test_with_any_seed(tmp_path: Path) -> None:
    for seed in range(3):
        rises(learn(tmp_path / str(seed), seed))
