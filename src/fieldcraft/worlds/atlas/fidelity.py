"""Verdicts on whether simulated observations are true in the world."""

from __future__ import annotations

from fieldcraft.tools.search.passages import read_results
from fieldcraft.types import Outcome, Task, Trajectory, UserError
from fieldcraft.worlds.atlas.articles import is_article, stated_facts
from fieldcraft.worlds.atlas.facts import Atlas
from fieldcraft.worlds.base import Verdict, Verdicts, simulated_calls


def judge_by_world(world: Atlas, trajectory: Trajectory) -> Verdicts:
    """Judge each simulated call, without calling any tool.

    A step needs the facts of the question's path that are in the article of the searched entity and
    that no earlier observation has stated. If there are none, it needs the whole article.
    """
    path = _path_facts(world, trajectory.task)
    told: set[tuple[str, str]] = set()
    found: Verdicts = []
    for call in simulated_calls(trajectory):
        stated = stated_facts(call.observation)
        true = {(s, r) for s, r, v in stated if world.facts.get((s, r)) == v}
        wrong = any(world.facts.get((s, r), v) != v for s, r, v in stated)
        name = call.arguments.get("query")
        if isinstance(name, str) and name in world.entities:
            article = world.reveals(name)
            needed = (path & article) - told or article
            taught = world.entities[name].region == "taught"
            form = call.outcome is Outcome.OK and _reads_as_articles(call.observation)
            found.append(Verdict(form, needed <= true, wrong, taught=taught))
        else:
            found.append(None)
        told |= true
    return found


def _path_facts(world: Atlas, task: Task) -> set[tuple[str, str]]:
    """Return (subject, relation) along a question's path; empty if the question has no path."""
    path = task.meta.get("path")
    try:
        return {(s, r) for s, r, _ in world.hops(tuple(path))} if path else set()
    except KeyError:
        raise UserError(
            f"task '{task.id}' is not of this run's world: give the questions of its world folder."
        ) from None


def _reads_as_articles(text: str) -> bool:
    results = read_results(text)
    return results is not None and all(is_article(title, body) for title, body in results)
