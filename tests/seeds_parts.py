"""Reports of runs with several seeds, for the tests of their table."""

from typing import Any

from fieldcraft.config.recipe import Recipe
from fieldcraft.recipes.loading import parse_recipe

STAGES = {
    "base": {"type": "sft", "dataset": "base", "steps": 5, "optim": {"lr": 0.1}},
    "sft": {"type": "sft", "dataset": "demonstrations", "steps": 5, "optim": {"lr": 0.1}},
    "rl1": {"type": "rl", "observations": "simulated", "steps": 5, "optim": {"lr": 0.1}},
    "rl2": {"type": "rl", "steps": 2, "optim": {"lr": 0.1}},
    "other": {"type": "rl", "start_from": "base", "steps": 3, "optim": {"lr": 0.1}},
}


def recipe(**changes: Any) -> Recipe:
    return parse_recipe(
        {"name": "small", "world": {"name": "atlas"}, "seeds": [0, 1], "stages": STAGES} | changes
    )


def entry(em: float, by_calls: dict[str, dict[str, Any]], **changes: Any) -> dict[str, Any]:
    return {
        "n": 10,
        "n_effective": 10,
        "tokens_mean": 20.0,
        "em": em,
        "f1": em / 2,
        "calls_mean": 1.5,
        "calls_optimal_mean": 1.0,
        "tool_productivity": 0.5,
        "offloading_rate": 1 - em,
        "needless_calls_mean": 0.75,
        "missing_calls_mean": 0.25,
        "calls_regret_mean": 1.0,
        "known": {"no_call_rate": em},
        "by_calls": by_calls,
    } | changes


def report(em: float, **changes: Any) -> dict[str, Any]:
    """Return a report in which seven of ten trajectories made one call."""
    parts = {"1": {"n": 7, "em": em}, "10": {"n": 3, "em": em}}
    names = ["base", "workflow", *STAGES]
    return {
        "device": "cpu",
        "seconds": 100.0,
        "stages": [{"name": name, "seconds": 2.0**i} for i, name in enumerate(STAGES)],
        "evals": {name: entry(em, parts, **changes) for name in names},
        "versions": {"torch": "2"},
    }


def rows(table: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["title"]: row for row in table["rows"]}
