"""Teachers that answer questions: a prompted model, a team of models, or the oracle of a world."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from fieldcraft.config.collection import TeacherConfig as TeacherSettings
from fieldcraft.config.components import ComponentKind
from fieldcraft.config.names import resolve, suggest_name
from fieldcraft.config.recipe import Recipe
from fieldcraft.config.sampling import SamplingConfig, parse_sampling_keys
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.data.steps_io import ContrastivePair
from fieldcraft.data.world import World, WorldOracle
from fieldcraft.environments.guards import truncate_middle
from fieldcraft.extensions.curation.chat_models import ChatModel, EngineChatModel
from fieldcraft.extensions.curation.pairs import make_pair
from fieldcraft.extensions.curation.react_agent import AgentAttempt, AttemptStatus, PromptedAgent
from fieldcraft.extensions.curation.team import Team, TeamAgent, TeamMember
from fieldcraft.runs.context import RunContext
from fieldcraft.runs.engines import make_local_engine
from fieldcraft.runs.sampling import Decoding, resolve_decoding
from fieldcraft.runs.sources import DataSource
from fieldcraft.sampling import Truncation
from fieldcraft.tools.chat_client import ChatClient
from fieldcraft.train.model import load_tokenizer
from fieldcraft.types import AnyTool, DemoStep, Task, UserError

TEAM_HAS_NO_PAIRS = "a team shows no pairs"


class AnswerMode(StrEnum):
    """Manner in which a question is answered: AutoCoA's chain of thought or chain of action."""

    COT = "cot"  # without tools
    COA = "coa"  # with tools


class DemonstrationTeacher(Protocol):
    """Protocol of a teacher that answers questions."""

    async def attempt(self, task: Task, mode: AnswerMode, key: str) -> AgentAttempt:
        """Attempt a question once; the same key gives the same random choices."""
        ...

    def make_pairs(
        self, task: Task, thinking: Sequence[AgentAttempt], acting: Sequence[AgentAttempt]
    ) -> list[ContrastivePair] | str:
        """Return the contrastive pairs of a question that was attempted in both modes, or the
        reason why there are none."""
        ...


@dataclass(frozen=True)
class ChatTeacher:
    """Model that is prompted to think and to act."""

    chat: ChatModel
    agents_by_mode: dict[AnswerMode, PromptedAgent]

    async def attempt(self, task: Task, mode: AnswerMode, key: str) -> AgentAttempt:
        return await self.agents_by_mode[mode].attempt(task, key)

    def make_pairs(
        self, task: Task, thinking: Sequence[AgentAttempt], acting: Sequence[AgentAttempt]
    ) -> list[ContrastivePair] | str:
        found = make_pair(task, thinking, acting)
        return found if isinstance(found, str) else [found]


@dataclass(frozen=True)
class OracleTeacher:
    """Oracle of a world: with tools it answers optimally, without tools it guesses."""

    oracle: WorldOracle
    seed: int

    async def attempt(self, task: Task, mode: AnswerMode, key: str) -> AgentAttempt:
        if mode is AnswerMode.COT:
            steps = self.oracle.guess(task, random.Random(key))
        else:
            steps = self.oracle.demonstration(task)
        return AgentAttempt(tuple(steps), AttemptStatus.ANSWERED)

    def make_pairs(
        self, task: Task, thinking: Sequence[AgentAttempt], acting: Sequence[AgentAttempt]
    ) -> list[ContrastivePair]:
        """Return a pair for each decision of the path, which the world knows without attempts."""
        rng = random.Random(f"decisions:{self.seed}:{task.id}")
        return [
            ContrastivePair(task, decision.before, decision.chosen, decision.rejected)
            for decision in self.oracle.decisions(task, rng)
        ]


@dataclass(frozen=True)
class TeamTeacher:
    """Team of models. It always has its tools, so no question is attempted in both modes."""

    agent: TeamAgent

    async def attempt(self, task: Task, mode: AnswerMode, key: str) -> AgentAttempt:
        return await self.agent.attempt(task, key)

    def make_pairs(
        self, task: Task, thinking: Sequence[AgentAttempt], acting: Sequence[AgentAttempt]
    ) -> str:
        return TEAM_HAS_NO_PAIRS


@dataclass(frozen=True)
class ScriptedTeamTeacher:
    """Scripted team of a world, which makes errors and repairs them."""

    demonstrate: Callable[[Task, random.Random], list[DemoStep]]

    async def attempt(self, task: Task, mode: AnswerMode, key: str) -> AgentAttempt:
        return AgentAttempt(
            tuple(self.demonstrate(task, random.Random(key))), AttemptStatus.ANSWERED
        )

    def make_pairs(
        self, task: Task, thinking: Sequence[AgentAttempt], acting: Sequence[AgentAttempt]
    ) -> str:
        return TEAM_HAS_NO_PAIRS


def require_world(data_source: DataSource) -> World:
    """Return the world of the questions. Raises UserError if they have none."""
    if data_source.world is None:
        raise UserError("the questions have no scripted teacher: set teacher.model.")
    return data_source.world


def require_oracle(data_source: DataSource) -> WorldOracle:
    """Return the oracle of the questions. Raises UserError if they have none."""
    oracle = require_world(data_source).oracle
    if oracle is None:
        raise UserError("the world has no oracle: set teacher.model to use a model as the teacher.")
    return oracle


async def make_teacher(context: RunContext) -> DemonstrationTeacher:
    """Return the teacher of a recipe and, if models are queried, their tools."""
    recipe = context.recipe
    if recipe.teacher.model is None:
        if recipe.teacher.team is not None:
            return ScriptedTeamTeacher(require_world(context.data_source).team_demonstration)
        return OracleTeacher(require_oracle(context.data_source), recipe.seed)
    await context.open_tools()
    tokens_of = find_tokens(recipe.teacher)
    if recipe.teacher.team is not None:
        team = find_team(recipe.teacher.team)
        return TeamTeacher(await open_team_agent(context, team, recipe.budget, tokens_of))
    chat = await open_chat_model(context, recipe.teacher, context.folder.collect_folder)
    tools: dict[AnswerMode, list[AnyTool]] = {
        AnswerMode.COT: [],
        AnswerMode.COA: list(context.tools),
    }
    decoding = resolve_teacher_decoding(context, recipe.teacher)
    return ChatTeacher(
        chat,
        {
            mode: make_prompted_agent(recipe, chat, mode_tools, decoding, tokens_of)
            for mode, mode_tools in tools.items()
        },
    )


def resolve_teacher_decoding(context: RunContext, settings: TeacherSettings) -> Decoding:
    """Return the sampling settings of a teacher with a model. Raises UserError like
    `resolve_decoding`."""
    return resolve_decoding(settings, Path(settings.model or ""), context.emit)


def make_prompted_agent(
    recipe: Recipe,
    chat: ChatModel,
    tools: Sequence[AnyTool],
    decoding: Decoding,
    tokens_of: Path | None = None,
) -> PromptedAgent:
    """Return a teacher whose model answers with the given tools, within the budget of the recipe.
    `tokens_of` is a model folder, see `make_observation_cut`."""
    return PromptedAgent(
        model=chat,
        tools=tools,
        max_calls=recipe.budget.max_calls,
        turn_tokens=recipe.budget.max_turn_tokens,
        temperature=decoding.temperature,
        truncation=decoding.truncation,
        call_seconds=recipe.budget.call_timeout_seconds,
        cut_observation=make_observation_cut(recipe.budget, tokens_of),
    )


def find_tokens(settings: TeacherSettings) -> Path | None:
    """Return the model folder of a teacher, whose tokenizer counts its tokens; None if it has
    none."""
    is_local = settings.url is None and settings.model is not None
    return Path(settings.model or "") if is_local else None


def make_observation_cut(budget: BudgetConfig, tokens_of: Path | None) -> Callable[[str], str]:
    """Return the function that cuts an observation to a budget, as in rollouts. The tokenizer in a
    model folder counts the tokens; without one, an observation is returned whole."""
    if tokens_of is None:
        return str
    tokenizer = load_tokenizer(tokens_of)
    return lambda text: truncate_middle(text, budget.max_observation_tokens, tokenizer)[0]


def make_team_agent(
    context: RunContext,
    team: Team,
    members: Mapping[str, TeamMember],
    budget: BudgetConfig,
    tokens_of: Path | None,
) -> TeamAgent:
    """Return a teacher whose team answers with the tools of a run, within a budget. `tokens_of` is
    a model folder, see `make_observation_cut`."""
    return TeamAgent(
        team=team,
        members=members,
        tools=context.tools,
        max_calls=budget.max_calls,
        turn_tokens=budget.max_turn_tokens,
        call_seconds=budget.call_timeout_seconds,
        cut_observation=make_observation_cut(budget, tokens_of),
    )


def find_team(name: str) -> Team:
    """Return the team with the given name. Raises UserError for any other object."""
    found = resolve(ComponentKind.TEAM, name)
    if not isinstance(found, Team):
        raise UserError(
            f"'{name}' is not a team: make it a fieldcraft.extensions.curation.team.Team."
        )
    return found


def require_members(settings: TeacherSettings, members: Collection[str]) -> None:
    """Raise UserError for settings of a member that the team does not have."""
    for name in settings.members:
        if name not in members:
            raise UserError(
                f"the team '{settings.team}' has no member '{name}'; {suggest_name(name, members)}"
            )


async def open_team_agent(
    context: RunContext, team: Team, budget: BudgetConfig, tokens_of: Path | None
) -> TeamAgent:
    """Return the team with a model for each member; members with the same settings share one.

    Raises UserError for settings of an unknown member.
    """
    recipe = context.recipe
    prompts = team.member_prompts(context.tools)
    require_members(recipe.teacher, prompts)
    models: dict[str, ChatModel] = {}
    members = {}
    for name, prompt in prompts.items():
        settings = recipe.teacher.member_config(name)
        model_key = settings.model_dump_json(exclude={*SamplingConfig.model_fields})
        if model_key not in models:
            models[model_key] = await open_chat_model(
                context, settings, context.folder.collect_folder
            )
        decoding = resolve_teacher_decoding(context, settings)
        members[name] = TeamMember(
            models[model_key], prompt, decoding.temperature, decoding.truncation
        )
    return make_team_agent(context, team, members, budget, tokens_of)


async def open_chat_model(
    context: RunContext, settings: TeacherSettings, folder: Path
) -> ChatModel:
    """Return a client of the configured endpoint, which caches its replies in `folder`, or the
    checkpoint.

    Raises UserError if the endpoint does not respond now.
    """
    if settings.url is not None:
        endpoint = make_chat_client(settings, cache=folder / "replies.sqlite")
        await endpoint.require_available(read_truncation(settings))
        return endpoint
    assert settings.model is not None
    return _make_local_chat(context, settings, Path(settings.model))


def make_chat_client(settings: TeacherSettings, cache: Path | None) -> ChatClient:
    """Return a client of the endpoint named by `teacher.url` and `teacher.model`. With a cache, an
    interrupted attempt pays only for new requests."""
    assert settings.url is not None
    assert settings.model is not None
    return ChatClient(
        settings.url,
        settings.model,
        api_key_env=settings.api_key_env,
        concurrency=settings.concurrency,
        timeout_seconds=settings.timeout_seconds,
        retries=settings.retries,
        prices=settings.prices,
        cache=cache,
    )


def read_truncation(settings: TeacherSettings) -> Truncation:
    """Return the truncation settings sent to an endpoint."""
    return parse_sampling_keys(settings.explicit_keys, settings.default_temperature)[1]


def _make_local_chat(context: RunContext, settings: TeacherSettings, folder: Path) -> ChatModel:
    model, tokenizer = context.load_policy_model(folder), load_tokenizer(folder)
    context.set_threads(model)
    recipe = context.recipe
    engine = make_local_engine(recipe, model, tokenizer, context.threads.sampling)
    return EngineChatModel(
        engine, tokenizer, settings.prices, recipe.chat_template_kwargs, recipe.date
    )
