"""Agents as simulators of their own search: how true what they write is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fieldcraft.config.recipe import Recipe
from fieldcraft.evals.fidelity import judge_by_tool, summarise_fidelity
from fieldcraft.evals.metrics import share_right
from fieldcraft.evals.run import answer_rubric, evaluate
from fieldcraft.records.events import Sink
from fieldcraft.rollout.loop import Policy, Simulator, rollout
from fieldcraft.rollout.simulators import PolicySimulator
from fieldcraft.runs.agent import Agent
from fieldcraft.runs.build import SEARCH, open_correct
from fieldcraft.types import Task, Tool, Trajectory, UserError
from fieldcraft.worlds.base import Verdicts


async def measure_simulator(
    agent: Agent, tasks: Sequence[Task], name: str, emit: Sink
) -> dict[str, Any]:
    """Return how faithfully an agent simulates its search, and what that does to its answers.

    Every question is rolled out once with simulated and once with real observations, sampled alike:
    at the temperatures of the run's first simulated stage (1 without one), with the run's seed.
    Raises UserError for an agent without a search.
    """
    env = await agent.environment()
    search = next((tool for tool in env.tools if tool.name == SEARCH), None)
    if not isinstance(search, Tool):
        raise UserError("a simulator is held against a search: give --index or --search-url.")
    temperature, simulator_temperature = _temperatures(agent.recipe)
    policy = Policy(engine=agent.engine, temperature=temperature, seed=agent.recipe.seed)
    writer = replace(policy, temperature=simulator_temperature)

    correct = await open_correct(agent.recipe)

    async def sampled(kind: str, simulator: Simulator | None) -> list[Trajectory]:
        return await evaluate(
            tasks,
            lambda task, key: rollout(task, policy, env, key, simulator),
            answer_rubric(correct=correct),
            agent.recipe.evaluation.concurrency,
            f"{name}: {kind}",
            emit,
            most_broken=agent.recipe.evaluation.max_broken,
        )

    dreamt = await sampled("simulated", PolicySimulator(writer))
    real = await sampled("real", None)
    return {
        "n": len(tasks),
        "temperature": temperature,
        "simulator_temperature": simulator_temperature,
        "seed": agent.recipe.seed,
        "em_simulated": share_right(dreamt),
        "em_real": share_right(real),
        "fidelity": summarise_fidelity(await _verdicts(agent, dreamt, search)),
    }


async def _verdicts(agent: Agent, dreamt: Sequence[Trajectory], tool: Tool) -> Verdicts:
    """Judge by the run's own world where that can tell, else by what its search returns."""
    found: Verdicts = []
    for trajectory in dreamt:
        by_world = agent.inputs.judge(trajectory) if agent.inputs is not None else None
        found += await judge_by_tool(tool, trajectory) if by_world is None else by_world
    return found


def _temperatures(recipe: Recipe) -> tuple[float, float]:
    found = (stage.simulation_temperatures for stage in recipe.stages.values())
    return next((both for both in found if both is not None), (1.0, 1.0))
