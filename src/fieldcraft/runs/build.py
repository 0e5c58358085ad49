"""Factories: the only place where components named in a recipe are instantiated."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, cast

from fieldcraft.config.choices import EnvironmentConfig, ToolConfig
from fieldcraft.config.components import (
    AUTO_VERDICT,
    BUILTIN_COMPONENTS,
    MCP_TOOL,
    PROGRAM_RUNNER,
    RUBRIC,
    VERDICT_REWARD_KEY,
    WORLD_SITE,
    ComponentKind,
)
from fieldcraft.config.instantiation import instantiate
from fieldcraft.config.names import import_object, resolve
from fieldcraft.config.recipe import Recipe
from fieldcraft.config.rl import Rl
from fieldcraft.config.sections import (
    DEFAULT_CALL_COST,
    BudgetConfig,
    EndpointConfig,
    JudgeConfig,
    WorldConfig,
)
from fieldcraft.data.world import make_world
from fieldcraft.environments.base import Environment, OpenEnvironment, isolate_failures
from fieldcraft.environments.tool_environment import ToolEnvironment
from fieldcraft.environments.turns import Policy
from fieldcraft.evaluation.evaluate import make_verdict_rubric
from fieldcraft.evaluation.verifiers import JudgeVerifier, Verifier
from fieldcraft.records.costs import compute_acting_cost
from fieldcraft.rewards.answers import CoverExactMatch, ExactMatch, F1Reward, FormatReward
from fieldcraft.rewards.criteria import CriteriaReward, make_criteria_reward
from fieldcraft.rewards.factory import make_reward, with_time_limit
from fieldcraft.rewards.grading import JUDGE, UNREFERENCED_GRADERS
from fieldcraft.rewards.judge import JudgeReward
from fieldcraft.rewards.programs import ProgramOutcome, ProgramRunner
from fieldcraft.rewards.rollouts import SoftOverlongPenalty
from fieldcraft.rewards.rubric import Rubric
from fieldcraft.rewards.tool_cost import CALL_COUNT, WeightedSumReward
from fieldcraft.rewards.verdict import AutoReward
from fieldcraft.runs.event_loop import run_async
from fieldcraft.runs.search import SEARCH_TOOL, find_search
from fieldcraft.tools.chat_client import open_chat_client
from fieldcraft.tools.factory import apply_server_config, apply_tool_config, make_tool
from fieldcraft.tools.http import NO_SITES, InProcessSites
from fieldcraft.types import AnyTool, Reward, Tool, UserError

PYTHON_TOOL = "python"  # tool whose programs can read the files of a world
RECORDED_REWARDS = (
    ExactMatch,
    F1Reward,
    CoverExactMatch,
    FormatReward,
)  # recorded for every rollout, with or without a weight


def attach_world_files(recipe: Recipe, folder: Path) -> Recipe:
    """Return a recipe whose programs can access the files of a world. It is unchanged if the world
    has no files or the recipe names others."""
    if not folder.exists():
        return recipe
    tools = tuple(
        tool.model_copy(update={"files": str(folder.absolute())})
        if tool.name == PYTHON_TOOL and "files" not in tool.settings
        else tool
        for tool in recipe.tools
    )
    return recipe.model_copy(update={"tools": tools})


def make_verifier(name: str, judge: JudgeReward | None) -> Verifier:
    """Return the verifier with the given name; `judge` is a client of the recipe's judge model."""
    found = resolve(ComponentKind.VERIFIER, name)
    if found is not JudgeVerifier:
        return cast(Verifier, found)
    assert judge is not None, "parse_recipe sees to that"
    return JudgeVerifier(judge.endpoint)


async def open_judge(settings: JudgeConfig, cache: Path | None) -> JudgeReward | None:
    """Return the judge of a recipe, whose endpoint must respond now; None if it has no judge."""
    if settings.url is None or settings.model is None:
        return None
    endpoint = EndpointConfig(
        url=settings.url, model=settings.model, api_key_env=settings.api_key_env
    )
    return JudgeReward(await open_chat_client(endpoint, cache), settings.votes)


async def open_tools(recipe: Recipe, index: Path, search: Tool | None = None) -> list[AnyTool]:
    """Return all tools of a recipe, in order; `search` is already open. Raises UserError for a tool
    that cannot be created."""
    if search is None and recipe.has_search_tool:
        search = await find_search().open_tool(recipe, index)
    return await _make_tools(recipe, search, _open_world_sites(recipe.world, recipe.seed))


def make_prompt_only_tools(recipe: Recipe) -> list[AnyTool]:
    """Return the tools for prompts only: the search has no results, and requires neither an index
    nor a server."""
    search = find_search().make_prompt_tool() if recipe.has_search_tool else None
    return run_async(_make_tools(recipe, search, NO_SITES))


async def _make_tools(recipe: Recipe, search: Tool | None, sites: InProcessSites) -> list[AnyTool]:
    """Return the tools of a recipe, using `search` under its name, and web sites in this
    process."""
    tools: list[AnyTool] = []
    for tool_config in recipe.tools:
        if tool_config.name == MCP_TOOL:
            tools += await open_mcp_tools(recipe, tool_config)
            continue
        if tool_config.name == SEARCH_TOOL and search is not None:
            failure_rate = recipe.search.failures
            tool: AnyTool = search
            if failure_rate:
                tool = find_search().add_failures(search, failure_rate)
        else:
            tool = make_tool(tool_config.name, tool_config.settings, sites)
        tools.append(apply_tool_config(tool, tool_config))
    return tools


async def open_mcp_tools(recipe: Recipe, tool_config: ToolConfig) -> list[AnyTool]:
    """Return the tools of an MCP server. Raises UserError if it cannot be used."""
    server = instantiate(
        ComponentKind.TOOL,
        MCP_TOOL,
        resolve(ComponentKind.TOOL, MCP_TOOL),
        tool_config.settings,
        {},
    )
    return apply_server_config(
        await server.list_tools(recipe.budget.call_timeout_seconds), tool_config
    )


@lru_cache(maxsize=1)  # a program that queries an agent opens its tools each time
def _open_world_sites(world: WorldConfig | None, seed: int) -> InProcessSites:
    """Return the web site of a recipe's world, if it has one."""
    if world is None:
        return NO_SITES
    sites: InProcessSites = import_object(WORLD_SITE)(make_world(world.name, world.settings, seed))
    return sites


def make_external_environment(recipe: Recipe) -> Environment | None:
    """Return the external environment of a recipe, None if the recipe uses tools. Raises UserError
    like `make_environment`."""
    return make_environment(recipe.environment) if recipe.environment.is_external else None


def make_environment(config: EnvironmentConfig) -> Environment:
    """Return an external environment. Raises UserError for invalid settings, and for an object that
    is not an environment."""
    factory = resolve(ComponentKind.ENVIRONMENT, config.name)
    if not callable(factory):
        raise UserError(
            f"'{config.name}' is not an environment: write a class with the methods tasks and "
            "start."
        )
    made = instantiate(
        ComponentKind.ENVIRONMENT, config.name, factory, config.settings, {}, ["name"]
    )
    if missing := [method for method in ("tasks", "start") if method not in dir(made)]:
        raise UserError(
            f"the environment '{config.name}' has no {' and no '.join(missing)}: write them as"
            " docs/your-environment.md shows."
        )
    environment: Environment = made
    return environment


@asynccontextmanager
async def open_environment(
    recipe: Recipe, external: Environment | None, tools: ToolEnvironment
) -> AsyncIterator[OpenEnvironment[Policy]]:
    """Open the environment of a recipe: the external one, in the dialect and the budget of `tools`,
    or `tools`."""
    if external is None:
        yield tools
        return
    costs = recipe.environment.tool_costs
    async with isolate_failures(external, tools.dialect, tools.budget, costs) as environment:
        yield environment


def make_verdict_reward(recipe: Recipe, *given_rewards: Reward | None) -> Reward:
    """Return the verdict reward: an existing one, such as an open judge, or a new one. Raises
    UserError like `make_reward`, and for a missing judge."""
    available = {reward.name: reward for reward in given_rewards if reward is not None}
    offered, seconds = {"runner": make_program_runner(recipe)}, recipe.budget.reward_seconds

    def find_grader(name: str) -> Reward | None:
        if name == RUBRIC and recipe.rubric and RUBRIC not in available:
            available[RUBRIC] = make_criteria(recipe, _find_judge(given_rewards))
        return _find_grader(available, offered, seconds, name)

    if recipe.verdict_reward == AUTO_VERDICT:
        return AutoReward(find_grader)
    if (grader := find_grader(recipe.verdict_reward)) is None:
        raise UserError(
            "the verdict reward is a judge, and no judge is configured: set judge.url and"
            " judge.model, or set verdict_reward= to another reward."
        )
    return grader


def make_criteria(recipe: Recipe, judge: JudgeReward | None) -> CriteriaReward:
    """Return the reward of the recipe's criteria. Raises UserError like `make_criteria_reward`."""
    return make_criteria_reward(recipe.rubric, judge, recipe.budget.reward_seconds)


def _find_judge(rewards: Iterable[Reward | None]) -> JudgeReward | None:
    return next((reward for reward in rewards if isinstance(reward, JudgeReward)), None)


async def open_verdict_reward(recipe: Recipe) -> Reward:
    """Open the verdict reward of an agent outside of a run. If its recipe has a judge that may be
    needed, the judge must respond now."""
    needs_judge = recipe.verdict_reward in (AUTO_VERDICT, JUDGE, RUBRIC)
    return make_verdict_reward(
        recipe, await open_judge(recipe.judge, None) if needs_judge else None
    )


async def open_verdict_rubric(recipe: Recipe, judge: JudgeReward | None) -> Rubric:
    """Open the rubric of an evaluation outside of a run, with a given judge or that of the recipe,
    and with the criteria of the recipe."""
    if recipe.rubric and judge is None:
        judge = await open_judge(recipe.judge, None)
    criteria = make_criteria(recipe, judge) if recipe.rubric else None
    verdict_reward = (
        make_verdict_reward(recipe, judge, criteria) if judge else await open_verdict_reward(recipe)
    )
    return make_verdict_rubric(judge, verdict_reward, criteria)


def _find_grader(
    available: Mapping[str, Reward], offered: Mapping[str, Any], seconds: float, name: str
) -> Reward | None:
    """Return one of `available`, or a new reward; None for a missing judge or rubric."""
    if name in available or name in UNREFERENCED_GRADERS:
        return available.get(name)
    return _with_time_limit(seconds, name, make_reward(name, {}, offered))


def _with_time_limit(seconds: float, name: str, reward: Reward) -> Reward:
    """Wrap a user-defined reward with a time limit; built-in ones have their own if necessary."""
    return (
        reward
        if name in BUILTIN_COMPONENTS[ComponentKind.REWARD]
        else with_time_limit(reward, seconds)
    )


class SandboxRunner:
    """Runner of programs in the sandbox, which is imported with the first program. `waive` lists
    layers of isolation that may be missing."""

    def __init__(self, waive: Sequence[str] = ()) -> None:
        self._waive = waive

    @cached_property
    def _sandbox(self) -> ProgramRunner:
        sandbox: ProgramRunner = import_object(PROGRAM_RUNNER)(self._waive)
        return sandbox

    async def run(self, code: str, stdin: str = "") -> ProgramOutcome:
        return await self._sandbox.run(code, stdin)

    async def test(self, code: str, tests: str, imports: str) -> ProgramOutcome:
        return await self._sandbox.test(code, tests, imports)


def make_program_runner(recipe: Recipe) -> SandboxRunner:
    """Return a runner for programs to grade, with the isolation of the recipe's own tool."""
    tools = [tool.settings for tool in recipe.tools if tool.name == PYTHON_TOOL]
    return SandboxRunner(tools[0].get("allow_missing_layers", ()) if tools else ())


def _resolve_verdict_name(weights: Mapping[str, float], verdict_name: str) -> dict[str, float]:
    """Return the weights with `correct` replaced by `verdict_name`, the verdict reward. Raises
    UserError if both are present."""
    named = {
        verdict_name if name == VERDICT_REWARD_KEY else name: weight
        for name, weight in weights.items()
    }
    if len(named) < len(weights):
        raise UserError(
            f"rewards has '{VERDICT_REWARD_KEY}' and '{verdict_name}', which are the same: remove "
            "one of them."
        )
    return named


def compute_max_cost(budget: BudgetConfig, call_cost: float) -> float:
    """Return the cost of a rollout that spends its whole budget: OTC's usual c."""
    return budget.max_calls * call_cost + budget.token_cost * budget.max_context_tokens / 1000


def make_rubric(
    stage: Rl,
    budget: BudgetConfig,
    judge: JudgeReward | None = None,
    verdict_name: str = AUTO_VERDICT,
    runner: ProgramRunner | None = None,
    call_cost: float = DEFAULT_CALL_COST,
    criteria: CriteriaReward | None = None,
) -> Rubric:
    """Return the rewards of a stage. Rewards without a weight are also recorded if they cost
    nothing, as are `verdict_name`, the verdict reward, and the rewards priced by OTC. `call_cost`
    is the maximum cost of a call. Raises UserError for a stage that rewards or prices `correct`
    twice or prices zero costs, and like `make_reward`."""
    available: dict[str, Reward] = {reward.name: reward() for reward in RECORDED_REWARDS}
    available |= {reward.name: reward for reward in (judge, criteria) if reward is not None}
    limits = [period.budget for period in stage.budget_periods(budget)]
    rewarded, priced = (
        _resolve_verdict_name(stage.reward_weights, verdict_name),
        _resolve_verdict_name(stage.priced_rewards, verdict_name),
    )
    prices_costs = stage.otc_counts == "costs"
    max_cost = max(
        compute_max_cost(limit, call_cost) if prices_costs else float(limit.max_calls)
        for limit in limits
    )
    if stage.has_otc_reward and not max_cost:
        raise UserError(
            "a stage rewards low costs, and nothing costs anything: give a tool a cost above 0."
        )
    offered: dict[str, Any] = {
        "smoothing": stage.otc_smoothing or max_cost,
        "measure": compute_acting_cost if prices_costs else CALL_COUNT,
        "runner": runner or SandboxRunner(),
        "judge": judge,
    }

    def make(name: str) -> Reward:
        reward_config = stage.rewards.get(name)
        settings = (
            {}
            if reward_config is None or isinstance(reward_config, float)
            else reward_config.settings
        )
        if name == AUTO_VERDICT:
            available[AUTO_VERDICT] = AutoReward(
                partial(_find_grader, available, offered, budget.reward_seconds)
            )
        elif name not in available or settings:
            reward = make_reward(name, settings, offered)
            available[name] = _with_time_limit(budget.reward_seconds, name, reward)
        return available[name]

    offered["correct"] = make(verdict_name)  # first, because other rewards may need it
    price_rewards = {verdict_name: offered["correct"]}
    price_rewards |= {name: make(name) for name in priced if name != verdict_name}
    weighted = [(price_rewards[name], weight) for name, weight in priced.items()]
    offered["priced"] = WeightedSumReward(weighted) if weighted else price_rewards[verdict_name]
    for name in rewarded:
        if name not in price_rewards:
            make(name)
    recorded = [*(reward.name for reward in RECORDED_REWARDS), *price_rewards]
    recorded += [RUBRIC] if criteria is not None else []
    weights = dict.fromkeys(recorded, 0.0) | rewarded
    rewards = [(available[name], weight) for name, weight in weights.items()]
    if stage.overlong_penalty:
        rewards.append(
            (SoftOverlongPenalty(*stage.resolve_overlong_buffer(limits[0])), stage.overlong_penalty)
        )
    return Rubric(rewards, price_rewards[verdict_name].name)
