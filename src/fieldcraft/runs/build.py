"""Factories: what a recipe names becomes an object here, and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from fieldcraft.config.choices import ToolChoice
from fieldcraft.config.making import make_part
from fieldcraft.config.names import AUTO, BUILT_IN, CORRECT, MCP, Kind, find
from fieldcraft.config.recipe import Recipe
from fieldcraft.config.rl import Rl
from fieldcraft.config.sections import DEFAULT_COST, Endpoint, JudgeModel, Limits, World
from fieldcraft.endpoints.opening import open_endpoint
from fieldcraft.envs.environment import ToolEnvironment
from fieldcraft.evals.verifiers import AskedModel, Verifier
from fieldcraft.records.costs import acting_cost
from fieldcraft.rewards.answers import F1, CoverEM, ExactMatch, Format
from fieldcraft.rewards.grading import JUDGE
from fieldcraft.rewards.judge import Judge
from fieldcraft.rewards.length import SoftOverlong
from fieldcraft.rewards.limited import limited
from fieldcraft.rewards.named import make_reward
from fieldcraft.rewards.rubric import Rubric
from fieldcraft.rewards.tool_cost import CALLS, WeightedSum
from fieldcraft.rewards.verdict import Auto
from fieldcraft.rollout.environments import Environment
from fieldcraft.runs.loop import run_async
from fieldcraft.tools.http import NO_SITES, Sites
from fieldcraft.tools.named import as_chosen, make_tool, server_tools_as_chosen
from fieldcraft.tools.python.tool import Programs
from fieldcraft.tools.search.client import RemoteSearchTool
from fieldcraft.tools.search.failing import FailingSearch
from fieldcraft.tools.search.index import SearchIndex
from fieldcraft.tools.search.passages import Passage
from fieldcraft.tools.search.tool import SearchTool, search_function
from fieldcraft.types import AnyTool, Dialect, Reward, Tool, UserError
from fieldcraft.worlds.base import make_world
from fieldcraft.worlds.site import open_site

SEARCH = "search"  # the tool that a run indexes its corpus for
PYTHON = "python"  # the tool whose programs find the files of a world
RECORDED = (ExactMatch, F1, CoverEM, Format)  # of every rollout, with or without a weight


async def open_search(recipe: Recipe, index: Path) -> Tool:
    """Return the search tool of a recipe: its server, which must answer now, or the index in a
    folder."""
    settings = recipe.search
    if settings.url is None:
        return SearchTool(SearchIndex.load(index), settings.topk)
    remote = RemoteSearchTool(
        settings.url,
        topk=settings.topk,
        timeout_seconds=settings.timeout_seconds,
        # before the limit of a call, which does not know whose fault it is
        total_seconds=0.9 * recipe.budget.call_seconds,
        api_key_env=settings.api_key_env,
    )
    await remote.check()
    return remote


def with_files(recipe: Recipe, folder: Path) -> Recipe:
    """Return a recipe whose programs find the files of a world beside them. It stays as it is if
    the world has none, or the recipe names others."""
    if not folder.exists():
        return recipe
    tools = tuple(
        tool.model_copy(update={"files": str(folder.absolute())})
        if tool.name == PYTHON and "files" not in tool.settings
        else tool
        for tool in recipe.tools
    )
    return recipe.model_copy(update={"tools": tools})


def make_verifier(name: str, judge: Judge | None) -> Verifier:
    """Return the verifier of a name; `judge` asks the model of the recipe's judge."""
    found = find(Kind.VERIFIER, name)
    if found is not AskedModel:
        return cast(Verifier, found)
    assert judge is not None, "parse_recipe sees to that"
    return AskedModel(judge.endpoint)


async def open_judge(settings: JudgeModel, cache: Path | None) -> Judge | None:
    """Return the judge of a recipe, whose endpoint must answer now; None where it names none."""
    if settings.url is None or settings.model is None:
        return None
    endpoint = Endpoint(url=settings.url, model=settings.model, api_key_env=settings.api_key_env)
    return Judge(await open_endpoint(endpoint, cache), settings.votes)


async def open_tools(
    recipe: Recipe,
    index: Path,
    search: Tool | None = None,
    others: Mapping[str, Tool] = MappingProxyType({}),
) -> list[AnyTool]:
    """Return every tool of a recipe, in its order; `search` and `others` are open already. Raises
    UserError for one that cannot be made."""
    if search is None and recipe.offers_search:
        search = await open_search(recipe, index)
    return await _make_tools(recipe, search, _sites(recipe.world, recipe.seed), others)


def closed_tools(recipe: Recipe) -> list[AnyTool]:
    """Return the same for prompts: the search finds nothing, and needs neither an index nor a
    server."""
    return run_async(_make_tools(recipe, search_function(_nothing), NO_SITES))


async def _make_tools(
    recipe: Recipe,
    search: Tool | None,
    sites: Sites,
    others: Mapping[str, Tool] = MappingProxyType({}),
) -> list[AnyTool]:
    """Return the tools of a recipe, with `search` where it names that and `others` by their names,
    and web sites in this process."""
    made: list[AnyTool] = []
    for choice in recipe.tools:
        if choice.name == MCP:
            made += await server_tools(recipe, choice)
            continue
        if choice.name == SEARCH and search is not None:
            share = recipe.search.failures
            tool: AnyTool = FailingSearch(search, share) if share else search
        elif choice.name in others:
            tool = others[choice.name]
        else:
            tool = make_tool(choice.name, choice.settings, sites)
        made.append(as_chosen(tool, choice))
    return made


async def server_tools(recipe: Recipe, choice: ToolChoice) -> list[AnyTool]:
    """Return the tools of an MCP server. Raises UserError if it cannot be used."""
    server = make_part(Kind.TOOL, MCP, find(Kind.TOOL, MCP), choice.settings, {})
    return server_tools_as_chosen(await server.tools(recipe.budget.call_seconds), choice)


@lru_cache(maxsize=1)  # a program that asks an agent opens its tools each time
def _sites(world: World | None, seed: int) -> Sites:
    """Return the web site of a recipe's world, if that has an address."""
    return NO_SITES if world is None else open_site(make_world(world.name, world.settings, seed))


async def _nothing(query: str) -> list[Passage]:
    return []


def make_environment(recipe: Recipe, dialect: Dialect, tools: Sequence[AnyTool]) -> ToolEnvironment:
    """Return the environment of a recipe with the given tools."""
    return ToolEnvironment(dialect, tools, recipe.budget)


def make_environment_of_others(recipe: Recipe) -> Environment | None:
    """Return the environment of others that a recipe names, None where that acts with tools. Raises
    UserError for wrong settings, and for something that is no environment."""
    choice = recipe.environment
    if not choice.of_others:
        return None
    factory = find(Kind.ENVIRONMENT, choice.name)
    if not callable(factory):
        raise UserError(f"'{choice.name}' is no environment: write a class with tasks and open.")
    made = make_part(Kind.ENVIRONMENT, choice.name, factory, choice.settings, {}, ["name"])
    if lacks := [part for part in ("tasks", "open") if part not in dir(made)]:
        raise UserError(
            f"the environment '{choice.name}' has no {' and no '.join(lacks)}: write them as"
            " docs/your-environment.md shows."
        )
    environment: Environment = made
    return environment


def make_correct(recipe: Recipe, *there: Reward | None) -> Reward:
    """Return the reward that tells which answers are right: one of those that are there already,
    such as an open judge, or one made here. Raises UserError as `make_reward`, and for a judge that
    is not there."""
    made = {reward.name: reward for reward in there if reward is not None}
    offered, seconds = {"runner": make_runner(recipe)}, recipe.budget.reward_seconds
    if recipe.correct == AUTO:
        return Auto(partial(_grader, made, offered, seconds))
    if (grader := _grader(made, offered, seconds, recipe.correct)) is None:
        raise UserError(
            "a judge says which answers are right, and there is none: give its url and its model,"
            " or set correct= to another reward."
        )
    return grader


async def open_correct(recipe: Recipe) -> Reward:
    """Open the same for an agent outside of a run. Where its recipe has a judge that may grade,
    this one must answer now."""
    grades = recipe.correct in (AUTO, JUDGE)
    return make_correct(recipe, await open_judge(recipe.judge, None) if grades else None)


def _grader(
    made: Mapping[str, Reward], offered: Mapping[str, Any], seconds: float, name: str
) -> Reward | None:
    """Return one of `made`, or a reward that is made here; None for a judge that is not there."""
    if name in made or name == JUDGE:
        return made.get(name)
    return _within(seconds, name, make_reward(name, {}, offered))


def _within(seconds: float, name: str, reward: Reward) -> Reward:
    """Return a reward of the user's within a limit of time; built-in ones have their own where
    needed."""
    return reward if name in BUILT_IN[Kind.REWARD] else limited(reward, seconds)


def make_runner(recipe: Recipe) -> Programs:
    """Return a runner of programs that are graded, with the isolation of the recipe's own tool."""
    tools = [tool.settings for tool in recipe.tools if tool.name == PYTHON]
    return Programs(tools[0].get("waive", ()) if tools else ())


def _named(weights: Mapping[str, float], correct: str) -> dict[str, float]:
    """Return the weights with `correct` by the name of the reward that it stands for. Raises
    UserError where they have that one, too."""
    named = {correct if name == CORRECT else name: weight for name, weight in weights.items()}
    if len(named) < len(weights):
        raise UserError(f"rewards has '{CORRECT}' and '{correct}', which are the same: remove one.")
    return named


def most_cost(budget: Limits, call_cost: float) -> float:
    """Return the cost of a rollout that spends its whole budget: OTC's usual c."""
    return budget.max_calls * call_cost + budget.token_cost * budget.total_tokens / 1000


def make_rubric(
    stage: Rl,
    budget: Limits,
    judge: Judge | None = None,
    correct: str = AUTO,
    runner: Programs | None = None,
    call_cost: float = DEFAULT_COST,
) -> Rubric:
    """Return the rewards of a stage. Those without a weight are recorded where they cost nothing.
    So are `correct`, which tells which answers are right, and what OTC prices. `call_cost` is the
    most that one call costs. Raises UserError for a stage that rewards or prices `correct` twice or
    prices what costs nothing, and as `make_reward`."""
    made: dict[str, Reward] = {reward.name: reward() for reward in RECORDED}
    if judge is not None:
        made[judge.name] = judge
    limits = [period.limits for period in stage.periods(budget)]
    rewarded, priced = _named(stage.weights, correct), _named(stage.priced_rewards, correct)
    by_cost = stage.otc_counts == "costs"
    most = max(most_cost(one, call_cost) if by_cost else float(one.max_calls) for one in limits)
    if stage.prices_calls and not most:
        raise UserError(
            "a stage rewards low costs, and nothing costs anything: give a tool a cost above 0."
        )
    offered: dict[str, Any] = {
        "smoothing": stage.call_smoothing or most,
        "measure": acting_cost if by_cost else CALLS,
        "runner": runner or Programs(),
    }

    def make(name: str) -> Reward:
        own = stage.rewards.get(name)
        settings = {} if own is None or isinstance(own, float) else own.settings
        if name == AUTO:
            made[AUTO] = Auto(partial(_grader, made, offered, budget.reward_seconds))
        elif name not in made or settings:
            reward = make_reward(name, settings, offered)
            made[name] = _within(budget.reward_seconds, name, reward)
        return made[name]

    parts = {name: make(name) for name in dict.fromkeys((correct, *priced))}
    offered["correct"] = parts[correct]
    sum_of = [(parts[name], weight) for name, weight in priced.items()]
    offered["priced"] = WeightedSum(sum_of) if sum_of else parts[correct]
    for name in rewarded:
        if name not in parts:
            make(name)
    recorded = (*(reward.name for reward in RECORDED), *parts)
    weights = dict.fromkeys(recorded, 0.0) | rewarded
    rewards = [(made[name], weight) for name, weight in weights.items()]
    if stage.overlong_penalty:
        rewards.append((SoftOverlong(*stage.overlong_span(limits[0])), stage.overlong_penalty))
    return Rubric(rewards, parts[correct].name)
