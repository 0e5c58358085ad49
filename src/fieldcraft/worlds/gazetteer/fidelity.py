"""Verdicts on whether simulated observations state the facts as they are."""

from __future__ import annotations

from fieldcraft.tools.search.passages import read_results
from fieldcraft.types import Outcome, Trajectory, UserError
from fieldcraft.worlds.base import Verdict, Verdicts, simulated_calls
from fieldcraft.worlds.gazetteer.articles import Fact, is_article, is_true, read_article
from fieldcraft.worlds.gazetteer.facts import Gazetteer
from fieldcraft.worlds.gazetteer.oracle import question_of


def judge_by_gazetteer(world: Gazetteer, trajectory: Trajectory) -> Verdicts:
    """Judge each simulated call, without calling any tool. A step needs the facts of its question
    about the place that is searched for; `taught` tells whether the model knows them.

    Raises UserError for a question of another world.
    """
    needed = _needed(world, trajectory)
    found: Verdicts = []
    for call in simulated_calls(trajectory):
        name = str(call.arguments.get("query", "")).rpartition(" ")[0]
        if name not in world.places:
            found.append(None)
            continue
        results = read_results(call.observation) or []
        told = {fact: v for title, text in results for fact, v in read_article(title, text).items()}
        true = {fact for fact, value in told.items() if is_true(world.places, fact, value)}
        wanted = {fact for fact in needed if fact[0] == name} or world.reveals(name)
        form = call.outcome is Outcome.OK and bool(results)
        form = form and all(is_article(title, text, world.places) for title, text in results)
        known = all(map(world.knows, wanted))
        found.append(Verdict(form, wanted <= true, bool(told.keys() - true), taught=known))
    return found


def _needed(world: Gazetteer, trajectory: Trajectory) -> set[Fact]:
    try:
        return set(question_of(world, trajectory.task).facts())
    except (KeyError, ValueError):
        raise UserError(
            f"task '{trajectory.task.id}' is not of this run's world: give the questions of its"
            " world folder."
        ) from None
