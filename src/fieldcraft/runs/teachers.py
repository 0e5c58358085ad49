"""The teacher of a run that collects: made from a recipe, and looked at before a run."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fieldcraft.agents.chat import NO_TEMPLATE, Chat, EngineChat
from fieldcraft.agents.prompted import Prompted
from fieldcraft.agents.team import Seat, Seated, Team
from fieldcraft.config.names import Kind, find, suggestion
from fieldcraft.config.recipe import Recipe
from fieldcraft.config.sampling import SamplingConfig, decode_keys
from fieldcraft.config.sections import Limits
from fieldcraft.config.teacher import Teacher as TeacherSettings
from fieldcraft.data.teachers import (
    ChatTeacher,
    Oracle,
    ScriptedTeam,
    Teacher,
    TeamTeacher,
    Way,
)
from fieldcraft.endpoints.openai import ChatEndpoint
from fieldcraft.runs.context import Context
from fieldcraft.runs.engines import make_local_engine
from fieldcraft.runs.inputs import make_inputs
from fieldcraft.runs.loop import run_async
from fieldcraft.runs.sampling import Decoding, resolve_sampling
from fieldcraft.sampling import Truncation
from fieldcraft.train.model import load_tokenizer
from fieldcraft.types import AnyTool, UserError


async def make_teacher(context: Context) -> Teacher:
    """Return the teacher of a recipe and, if models are asked, the tools they use."""
    recipe = context.recipe
    if recipe.teacher.model is None:
        if recipe.teacher.team is not None:
            return ScriptedTeam(context.inputs.team_chain)
        return Oracle(context.inputs.oracle, recipe.seed)
    await context.open_tools()
    if recipe.teacher.team is not None:
        return TeamTeacher(await make_team(context, find_team(recipe.teacher.team), recipe.budget))
    chat = await make_chat(context, recipe.teacher, context.folder.collected)
    tools: dict[Way, list[AnyTool]] = {Way.COT: [], Way.COA: list(context.tools)}
    how = teacher_sampling(context, recipe.teacher)
    return ChatTeacher(
        chat,
        {way: make_prompted(recipe, chat, used, how) for way, used in tools.items()},
    )


def teacher_sampling(context: Context, settings: TeacherSettings) -> Decoding:
    """Return the sampling of a teacher with a model. Raises UserError as `resolve_sampling`
    does."""
    return resolve_sampling(settings, Path(settings.model or ""), context.emit)


def make_prompted(recipe: Recipe, chat: Chat, tools: Sequence[AnyTool], how: Decoding) -> Prompted:
    """Return the teacher of a model that answers with these tools, within the budget of the
    recipe."""
    return Prompted(
        chat=chat,
        tools=tools,
        max_calls=recipe.budget.max_calls,
        turn_tokens=recipe.budget.turn_tokens,
        temperature=how.temperature,
        truncation=how.truncation,
        call_seconds=recipe.budget.call_seconds,
    )


def make_seated(context: Context, team: Team, seats: Mapping[str, Seat], budget: Limits) -> Seated:
    """Return the teacher of a team that answers with the tools of a run, within a budget."""
    return Seated(
        team=team,
        seats=seats,
        tools=context.tools,
        max_calls=budget.max_calls,
        turn_tokens=budget.turn_tokens,
        call_seconds=budget.call_seconds,
    )


def find_team(name: str) -> Team:
    """Return the team of this name. Raises UserError for something else."""
    found = find(Kind.TEAM, name)
    if not isinstance(found, Team):
        raise UserError(f"'{name}' is no team: make it a fieldcraft.agents.team.Team.")
    return found


async def make_team(context: Context, team: Team, budget: Limits) -> Seated:
    """Return the team with a model in each seat; seats with the same settings share one.

    Raises UserError for the settings of a seat that the team does not have.
    """
    recipe = context.recipe
    prompts = team.seat_prompts(context.tools)
    for name in recipe.teacher.seats:
        if name not in prompts:
            raise UserError(
                f"the team '{recipe.teacher.team}' has no seat '{name}';"
                f" {suggestion(name, prompts)}"
            )
    models: dict[str, Chat] = {}
    seats = {}
    for name, prompt in prompts.items():
        settings = recipe.teacher.seat(name)
        same = settings.model_dump_json(exclude={*SamplingConfig.model_fields})
        if same not in models:
            models[same] = await make_chat(context, settings, context.folder.collected)
        how = teacher_sampling(context, settings)
        seats[name] = Seat(models[same], prompt, how.temperature, how.truncation)
    return make_seated(context, team, seats, budget)


async def make_chat(context: Context, settings: TeacherSettings, folder: Path) -> Chat:
    """Return the endpoint of these settings, which keeps its replies in `folder`, or the
    checkpoint.

    Raises UserError if the endpoint does not answer now.
    """
    if settings.url is not None:
        endpoint = endpoint_of(settings, cache=folder / "replies.sqlite")
        await endpoint.check(_limits(settings))
        return endpoint
    assert settings.model is not None
    return _local(context, Path(settings.model))


def endpoint_of(settings: TeacherSettings, cache: Path | None) -> ChatEndpoint:
    """Return the endpoint that `teacher.url` and `teacher.model` name. A cache keeps its replies,
    so that an attempt that was cut short pays only for what it had not asked yet."""
    assert settings.url is not None
    assert settings.model is not None
    return ChatEndpoint(
        settings.url,
        settings.model,
        api_key_env=settings.api_key_env,
        concurrency=settings.concurrency,
        timeout_seconds=settings.timeout_seconds,
        retries=settings.retries,
        prices=settings.prices,
        cache=cache,
    )


def _limits(settings: TeacherSettings) -> Truncation:
    """Return the limits that an endpoint is asked to keep."""
    return decode_keys(settings.given, settings.usual_temperature)[1]


def _local(context: Context, folder: Path) -> Chat:
    model, tokenizer = context.policy(folder), load_tokenizer(folder)
    context.use_threads(model)
    engine = make_local_engine(context.recipe, model, tokenizer, context.threads.sampling)
    return EngineChat(engine, tokenizer)


def teacher_problems(recipe: Recipe, notes: list[str]) -> Iterator[str]:
    """Check that the teachers of a recipe answer, or at least are there."""
    settings = recipe.teacher
    if settings.team is not None:
        find_team(settings.team)
    if settings.model is None:
        inputs = make_inputs(recipe)
        task = inputs.train_tasks()[0]
        if settings.team is not None:
            inputs.team_chain(task, random.Random(0))
            notes.append("the team of the world")
        if "lone" in recipe.evaluation.teachers:
            inputs.lone_chain(task, random.Random(0))
            notes.append("the single agent of the world")
        elif settings.team is None:
            notes.append(f"the oracle of the world, {type(inputs.oracle).__name__}")
        return
    named = (settings, *map(settings.seat, settings.seats))
    for model in {(model.url, model.model): model for model in named}.values():
        yield from model_problems(model, notes)


def model_problems(settings: TeacherSettings, notes: list[str]) -> Iterator[str]:
    """Check that the endpoint answers, or that the checkpoint is there."""
    assert settings.model is not None
    if settings.url is not None:
        run_async(endpoint_of(settings, cache=None).check(_limits(settings)))
        notes.append(f"{settings.url} answers as {settings.model}")
        return
    folder = Path(settings.model)
    resolve_sampling(settings, folder, lambda event: notes.append(str(event)))
    if not (folder / "config.json").exists():
        raise UserError(f"{folder} is no checkpoint: give its folder, or set teacher.url too.")
    if load_tokenizer(folder).chat_template is None:
        yield NO_TEMPLATE
    notes.append(str(folder))
