"""Evaluation of agents as simulators of their own search: accuracy of simulated observations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fieldcraft.config.recipe import Recipe
from fieldcraft.data.world import SimulationVerdicts
from fieldcraft.environments.simulators import PolicySimulator
from fieldcraft.environments.tool_environment import ToolEnvironment
from fieldcraft.environments.turns import Policy
from fieldcraft.evaluation.evaluate import evaluate_tasks, make_verdict_rubric
from fieldcraft.evaluation.fidelity import judge_against_tool, summarise_fidelity
from fieldcraft.evaluation.summary import compute_accuracy
from fieldcraft.records.events import EventHandler
from fieldcraft.runs.agent import Agent
from fieldcraft.runs.build import open_verdict_reward
from fieldcraft.runs.search import SEARCH_TOOL
from fieldcraft.types import Task, Tool, Trajectory, UserError


async def measure_simulator(
    agent: Agent, tasks: Sequence[Task], name: str, emit: EventHandler
) -> dict[str, Any]:
    """Return how faithfully an agent simulates its search, and the effect on its answers.

    Every question is rolled out with simulated and with real observations, sampled alike: at the
    temperatures of the run's first simulated stage (1 without one), with the run's seed. Raises
    UserError for an agent without a search.
    """
    env = await agent.open_tool_environment("simulators of their search")
    search = next((tool for tool in env.tools if tool.name == SEARCH_TOOL), None)
    if not isinstance(search, Tool):
        raise UserError("a simulator is compared with a real search: give --index or --search-url.")
    temperature, simulator_temperature = _find_temperatures(agent.recipe)
    policy = Policy(engine=agent.engine, temperature=temperature, seed=agent.recipe.seed)
    simulator_policy = replace(policy, temperature=simulator_temperature)

    verdict_reward = await open_verdict_reward(agent.recipe)

    async def run_rollouts(kind: str, env: ToolEnvironment) -> list[Trajectory]:
        return await evaluate_tasks(
            tasks,
            env,
            policy,
            make_verdict_rubric(verdict_reward=verdict_reward),
            agent.recipe.evaluation.concurrency,
            f"{name}: {kind}",
            emit,
            max_broken=agent.recipe.evaluation.max_broken,
        )

    simulator = PolicySimulator(simulator_policy)
    simulated = await run_rollouts("simulated", env.with_changes(simulator=simulator))
    real = await run_rollouts("real", env)
    return {
        "n": len(tasks),
        "temperature": temperature,
        "simulator_temperature": simulator_temperature,
        "seed": agent.recipe.seed,
        "em_simulated": compute_accuracy(simulated),
        "em_real": compute_accuracy(real),
        "fidelity": summarise_fidelity(await _judge_simulations(agent, simulated, search)),
    }


async def _judge_simulations(
    agent: Agent, simulated: Sequence[Trajectory], tool: Tool
) -> SimulationVerdicts:
    """Judge by the run's world if possible, else by the results of its search."""
    verdicts: SimulationVerdicts = []
    world = None if agent.data_source is None else agent.data_source.world
    for trajectory in simulated:
        world_verdicts = None if world is None else world.judge_simulations(trajectory)
        verdicts += (
            await judge_against_tool(tool, trajectory) if world_verdicts is None else world_verdicts
        )
    return verdicts


def _find_temperatures(recipe: Recipe) -> tuple[float, float]:
    found = (stage.simulation_temperatures for stage in recipe.stages.values())
    return next((temperatures for temperatures in found if temperatures is not None), (1.0, 1.0))
