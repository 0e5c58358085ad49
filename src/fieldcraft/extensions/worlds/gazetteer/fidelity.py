"""Verdicts on simulated observations, judged by the facts of the gazetteer."""

from __future__ import annotations

from fieldcraft.data.passages import parse_results
from fieldcraft.data.world import (
    SimulationVerdict,
    SimulationVerdicts,
    get_simulated_calls,
)
from fieldcraft.extensions.worlds.gazetteer.articles import (
    FactKey,
    is_article,
    is_true,
    parse_article,
)
from fieldcraft.extensions.worlds.gazetteer.facts import Gazetteer
from fieldcraft.extensions.worlds.gazetteer.oracle import get_question
from fieldcraft.types import CallOutcome, Trajectory, UserError


def judge_gazetteer_simulations(world: Gazetteer, trajectory: Trajectory) -> SimulationVerdicts:
    """Judge each simulated call, without calling any tool. A step needs the facts of its question
    about the place in the query; `taught` states whether the model knows them, `recall` how well.

    Raises UserError for a question of another world.
    """
    question_facts = _get_question_facts(world, trajectory)
    found: SimulationVerdicts = []
    for call in get_simulated_calls(trajectory):
        name = str(call.arguments.get("query", "")).rpartition(" ")[0]
        if name not in world.places:
            found.append(None)
            continue
        results = parse_results(call.observation) or []
        stated = {
            fact: v for title, text in results for fact, v in parse_article(title, text).items()
        }
        true_facts = {fact for fact, value in stated.items() if is_true(world.places, fact, value)}
        needed_facts = {
            fact for fact in question_facts if fact[0] == name
        } or world.get_article_facts(name)
        is_well_formed = call.outcome is CallOutcome.OK and bool(results)
        is_well_formed = is_well_formed and all(
            is_article(title, text, world.places) for title, text in results
        )
        is_known = all(map(world.is_known, needed_facts))
        found.append(
            SimulationVerdict(
                is_well_formed,
                needed_facts <= true_facts,
                bool(stated.keys() - true_facts),
                taught=is_known,
                recall=world.estimate_recall(needed_facts),
            )
        )
    return found


def _get_question_facts(world: Gazetteer, trajectory: Trajectory) -> set[FactKey]:
    try:
        return set(get_question(world, trajectory.task).facts())
    except (KeyError, ValueError):
        raise UserError(
            f"task '{trajectory.task.id}' is not of this run's world: give the questions of its"
            " world folder."
        ) from None
