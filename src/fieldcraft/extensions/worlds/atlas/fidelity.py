"""Verdicts on simulated observations, judged by the facts of the world."""

from __future__ import annotations

from fieldcraft.data.passages import parse_results
from fieldcraft.data.world import (
    SimulationVerdict,
    SimulationVerdicts,
    get_simulated_calls,
)
from fieldcraft.extensions.worlds.atlas.facts import Atlas, is_article, parse_facts
from fieldcraft.types import CallOutcome, Task, Trajectory, UserError


def judge_atlas_simulations(world: Atlas, trajectory: Trajectory) -> SimulationVerdicts:
    """Judge each simulated call, without calling any tool.

    A step needs the facts of the question's path that are in the article of the searched entity and
    that no earlier observation has stated. If there are none, it needs the whole article.
    """
    path = _get_path_facts(world, trajectory.task)
    seen_facts: set[tuple[str, str]] = set()
    found: SimulationVerdicts = []
    for call in get_simulated_calls(trajectory):
        stated = parse_facts(call.observation)
        true_facts = {(s, r) for s, r, v in stated if world.facts.get((s, r)) == v}
        is_contradicting = any(world.facts.get((s, r), v) != v for s, r, v in stated)
        name = call.arguments.get("query")
        if isinstance(name, str) and name in world.entities:
            article = world.get_article_facts(name)
            needed = (path & article) - seen_facts or article
            taught = world.entities[name].region == "taught"
            is_well_formed = call.outcome is CallOutcome.OK and _look_like_articles(
                call.observation
            )
            found.append(
                SimulationVerdict(
                    is_well_formed, needed <= true_facts, is_contradicting, taught=taught
                )
            )
        else:
            found.append(None)
        seen_facts |= true_facts
    return found


def _get_path_facts(world: Atlas, task: Task) -> set[tuple[str, str]]:
    """Return (subject, relation) along a question's path, or an empty set without a path."""
    path = task.meta.get("path")
    try:
        return {(s, r) for s, r, _ in world.trace_path(tuple(path))} if path else set()
    except KeyError:
        raise UserError(
            f"task '{task.id}' is not of this run's world: give the questions of its world folder."
        ) from None


def _look_like_articles(text: str) -> bool:
    results = parse_results(text)
    return results is not None and all(is_article(title, body) for title, body in results)
