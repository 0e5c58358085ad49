"""Teachers of a collection: instantiation from a recipe, and checks before a run."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fieldcraft.config.collection import TeacherConfig as TeacherSettings
from fieldcraft.config.names import ComponentKind, resolve, suggest_name
from fieldcraft.config.recipe import Recipe
from fieldcraft.config.sampling import SamplingConfig, parse_sampling_keys
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.data.teachers import (
    AnswerMode,
    ChatTeacher,
    DemonstrationTeacher,
    OracleTeacher,
    ScriptedTeamTeacher,
    TeamTeacher,
)
from fieldcraft.extensions.agents.chat_models import NO_TEMPLATE_MESSAGE, ChatModel, EngineChatModel
from fieldcraft.extensions.agents.react_agent import PromptedAgent
from fieldcraft.extensions.agents.team import Team, TeamAgent, TeamMember
from fieldcraft.runs.context import RunContext
from fieldcraft.runs.engines import make_local_engine
from fieldcraft.runs.event_loop import run_async
from fieldcraft.runs.inputs import make_data_source
from fieldcraft.runs.sampling import Decoding, resolve_decoding
from fieldcraft.sampling import Truncation
from fieldcraft.tools.chat_client import ChatClient
from fieldcraft.train.model import load_tokenizer
from fieldcraft.types import AnyTool, UserError


async def make_teacher(context: RunContext) -> DemonstrationTeacher:
    """Return the teacher of a recipe and, if models are queried, their tools."""
    recipe = context.recipe
    if recipe.teacher.model is None:
        if recipe.teacher.team is not None:
            return ScriptedTeamTeacher(context.data_source.team_demonstration)
        return OracleTeacher(context.data_source.oracle, recipe.seed)
    await context.open_tools()
    if recipe.teacher.team is not None:
        return TeamTeacher(
            await open_team_agent(context, find_team(recipe.teacher.team), recipe.budget)
        )
    chat = await open_chat_model(context, recipe.teacher, context.folder.collect_folder)
    tools: dict[AnswerMode, list[AnyTool]] = {
        AnswerMode.COT: [],
        AnswerMode.COA: list(context.tools),
    }
    decoding = resolve_teacher_decoding(context, recipe.teacher)
    return ChatTeacher(
        chat,
        {
            mode: make_prompted_agent(recipe, chat, mode_tools, decoding)
            for mode, mode_tools in tools.items()
        },
    )


def resolve_teacher_decoding(context: RunContext, settings: TeacherSettings) -> Decoding:
    """Return the sampling settings of a teacher with a model. Raises UserError like
    `resolve_decoding`."""
    return resolve_decoding(settings, Path(settings.model or ""), context.emit)


def make_prompted_agent(
    recipe: Recipe, chat: ChatModel, tools: Sequence[AnyTool], decoding: Decoding
) -> PromptedAgent:
    """Return a teacher whose model answers with the given tools, within the budget of the
    recipe."""
    return PromptedAgent(
        model=chat,
        tools=tools,
        max_calls=recipe.budget.max_calls,
        turn_tokens=recipe.budget.max_turn_tokens,
        temperature=decoding.temperature,
        truncation=decoding.truncation,
        call_seconds=recipe.budget.call_timeout_seconds,
    )


def make_team_agent(
    context: RunContext, team: Team, members: Mapping[str, TeamMember], budget: BudgetConfig
) -> TeamAgent:
    """Return a teacher whose team answers with the tools of a run, within a budget."""
    return TeamAgent(
        team=team,
        members=members,
        tools=context.tools,
        max_calls=budget.max_calls,
        turn_tokens=budget.max_turn_tokens,
        call_seconds=budget.call_timeout_seconds,
    )


def find_team(name: str) -> Team:
    """Return the team with the given name. Raises UserError for any other object."""
    found = resolve(ComponentKind.TEAM, name)
    if not isinstance(found, Team):
        raise UserError(
            f"'{name}' is not a team: make it a fieldcraft.extensions.agents.team.Team."
        )
    return found


async def open_team_agent(context: RunContext, team: Team, budget: BudgetConfig) -> TeamAgent:
    """Return the team with a model for each member; members with the same settings share one.

    Raises UserError for settings of an unknown member.
    """
    recipe = context.recipe
    prompts = team.member_prompts(context.tools)
    for name in recipe.teacher.members:
        if name not in prompts:
            raise UserError(
                f"the team '{recipe.teacher.team}' has no member '{name}';"
                f" {suggest_name(name, prompts)}"
            )
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
    return make_team_agent(context, team, members, budget)


async def open_chat_model(
    context: RunContext, settings: TeacherSettings, folder: Path
) -> ChatModel:
    """Return a client of the configured endpoint, which caches its replies in `folder`, or the
    checkpoint.

    Raises UserError if the endpoint does not respond now.
    """
    if settings.url is not None:
        endpoint = make_chat_client(settings, cache=folder / "replies.sqlite")
        await endpoint.require_available(_read_truncation(settings))
        return endpoint
    assert settings.model is not None
    return _make_local_chat(context, Path(settings.model))


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


def _read_truncation(settings: TeacherSettings) -> Truncation:
    """Return the truncation settings sent to an endpoint."""
    return parse_sampling_keys(settings.explicit_keys, settings.default_temperature)[1]


def _make_local_chat(context: RunContext, folder: Path) -> ChatModel:
    model, tokenizer = context.load_policy_model(folder), load_tokenizer(folder)
    context.set_threads(model)
    engine = make_local_engine(context.recipe, model, tokenizer, context.threads.sampling)
    return EngineChatModel(engine, tokenizer)


def check_teachers(recipe: Recipe, notes: list[str]) -> Iterator[str]:
    """Check that the teachers of a recipe respond, or at least exist."""
    settings = recipe.teacher
    if settings.team is not None:
        find_team(settings.team)
    if settings.model is None:
        data_source = make_data_source(recipe)
        task = data_source.train_tasks()[0]
        if settings.team is not None:
            data_source.team_demonstration(task, random.Random(0))
            notes.append("the team of the world")
        if "lone" in recipe.evaluation.teachers:
            data_source.single_agent_demonstration(task, random.Random(0))
            notes.append("the single agent of the world")
        elif settings.team is None:
            notes.append(f"the oracle of the world, {type(data_source.oracle).__name__}")
        return
    configs = (settings, *map(settings.member_config, settings.members))
    for model in {(model.url, model.model): model for model in configs}.values():
        yield from check_teacher_model(model, notes)


def check_teacher_model(settings: TeacherSettings, notes: list[str]) -> Iterator[str]:
    """Check that the endpoint responds, or that the checkpoint exists."""
    assert settings.model is not None
    if settings.url is not None:
        run_async(
            make_chat_client(settings, cache=None).require_available(_read_truncation(settings))
        )
        notes.append(f"{settings.url} answers as {settings.model}")
        return
    folder = Path(settings.model)
    resolve_decoding(settings, folder, lambda event: notes.append(str(event)))
    if not (folder / "config.json").exists():
        raise UserError(f"{folder} is not a checkpoint: give its folder, or set teacher.url too.")
    if load_tokenizer(folder).chat_template is None:
        yield NO_TEMPLATE_MESSAGE
    notes.append(str(folder))
