"""A model of 7,000 parameters and a recipe that trains it on games for a few seconds."""

import json
from pathlib import Path
from typing import Any

from bandit import letters, small_model
from fieldcraft.recipes.loading import parse_recipe
from fieldcraft.records.events import EventBus, write_metrics
from fieldcraft.runs.check import check_recipe
from fieldcraft.runs.run import run_recipe
from fieldcraft.train.saving import save_model

STEPS = 40
TEMPLATE = (  # each message ends with the marker of the policy's turn
    "{% for m in messages %}{{ m.content or '' }}"
    "{{ '<end>' if m.role == 'assistant' else '>' }}{% endfor %}"
)
STAGE: dict[str, Any] = {
    "type": "rl",
    "steps": STEPS,
    "questions_per_step": 4,
    "group_size": 12,
    "rewards": {"environment": 1.0},
    "optim": {"lr": 0.01},
    "collapse_threshold": None,
}


def write_player(folder: Path, seed: int) -> Path:
    """Write a model that knows digits and a few letters."""
    tokenizer = letters()
    tokenizer.chat_template = TEMPLATE
    save_model(folder, small_model(seed), tokenizer)
    return folder


def learn(folder: Path, environment: Any, seed: int = 0, **stage: Any) -> list[dict[str, Any]]:
    """Run a recipe with this environment, which must pass `check`, and return its metrics."""
    recipe = parse_recipe(
        {
            "name": "play",
            "seed": seed,
            "device": "cpu",
            "model": str(write_player(folder / "player", seed)),
            "environment": environment,
            "budget": {"max_turn_tokens": 4, "max_context_tokens": 40, "max_calls": 2},
            "stages": {"rl": STAGE | stage},
            "evaluation": {"splits": {"heldout": 4}},
        }
    )
    assert check_recipe(recipe, folder, lambda *_: None) == []
    run_recipe(recipe, folder / "run", EventBus([write_metrics]))
    lines = (folder / "run" / "rl" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def trained_as_sampled(rows: list[dict[str, Any]]) -> None:
    """Check that the trainer's log-probability of every token equals the engine's."""
    gaps = [row["sampler_logp_diff"] for row in rows if "loss" in row]
    assert len(gaps) > len(rows) / 2
    assert max(gaps) < 1e-4, gaps


def rises(rows: list[dict[str, Any]], by: float = 0.3) -> None:
    """Check that the mean reward clearly rises from the first to the last three steps."""
    rewards = [row["reward_mean"] for row in rows]
    begin, end = sum(rewards[:3]) / 3, sum(rewards[-3:]) / 3
    print(f"mean reward from {begin:.2f} to {end:.2f}")
    assert begin < 0.2, rewards
    assert end > begin + by, rewards
