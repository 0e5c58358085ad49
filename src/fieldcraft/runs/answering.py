"""Teachers that answer the questions of an evaluation, beside the models of a run."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

from fieldcraft.agents.afm_team import requests
from fieldcraft.agents.prompted import Attempt, End, Prompted
from fieldcraft.agents.team import Seated, shown
from fieldcraft.data.steps_io import as_trajectory
from fieldcraft.dialects.demonstrations import encode_demonstration
from fieldcraft.evals.spending import Spent
from fieldcraft.records.costs import Costs
from fieldcraft.runs.context import Context
from fieldcraft.runs.teachers import (
    find_team,
    make_chat,
    make_prompted,
    make_team,
    teacher_sampling,
)
from fieldcraft.tools.named import costs_of
from fieldcraft.types import Action, Dialect, Status, Step, Task, Trajectory

Answering = Callable[[Task, str], Awaitable[Trajectory]]

STATUSES = {End.ANSWERED: Status.ANSWERED, End.CUT: Status.TRUNCATED}


async def answering(context: Context, name: str, model: Path) -> Answering:
    """Return how a teacher answers: `team` or `lone`. Without a model of its own it is that of the
    world, and its chains are read by the tokenizer of `model`.

    Raises UserError if there is no such teacher, or its model does not answer.
    """
    answer = await _teacher(context, name, model)
    costs = Costs(costs_of(context.tools))  # its tokens are not those of a policy

    async def priced(task: Task, key: str) -> Trajectory:
        trajectory = await answer(task, key)
        costs.price(trajectory)
        return trajectory

    return priced


async def _teacher(context: Context, name: str, model: Path) -> Answering:
    recipe = context.recipe.as_evaluated
    settings = recipe.teacher
    if settings.model is None:
        return _scripted(context, name, model)
    if name == "team":
        assert settings.team is not None, "parse_recipe sees to that"
        return _by_models(await make_team(context, find_team(settings.team), recipe.budget))
    chat = await make_chat(context, settings, context.folder.collected)
    how = teacher_sampling(context, settings)
    return _by_models(make_prompted(recipe, chat, context.tools, how))


def _scripted(context: Context, name: str, model: Path) -> Answering:
    inputs, dialect = context.inputs, context.dialect(model)
    chain = inputs.team_chain if name == "team" else inputs.lone_chain

    async def answer(task: Task, key: str) -> Trajectory:
        steps = chain(task, random.Random(f"{context.recipe.seed}:{name}:{key}"))
        if name == "team":
            spent = _spent_by_seats(task, steps, dialect)
            task = replace(task, meta=task.meta | spent.as_meta())
        return encode_demonstration(task, steps, dialect, context.schemas)

    return answer


def _spent_by_seats(task: Task, steps: Sequence[Step], dialect: Dialect) -> Spent:
    """Return the tokens that the seats of the team of AFM would have read and written. Their
    prompts are left out, because a small tokenizer would count them too high."""

    def tokens(some: Sequence[Step]) -> int:
        return sum(len(dialect.tokenizer.encode(shown(step))) for step in some)

    question = len(dialect.tokenizer.encode(task.question))
    made = list(requests(steps))
    read = sum(question + tokens(steps[:begin]) for begin, _ in made)
    return Spent(len(made), read, sum(tokens(steps[begin:end]) for begin, end in made))


def _by_models(teacher: Seated | Prompted) -> Answering:
    async def answer(task: Task, key: str) -> Trajectory:
        attempt = await teacher.attempt(task, key)
        spent = Spent(
            _requests(attempt),
            attempt.usage.prompt_tokens,
            attempt.usage.completion_tokens,
            attempt.usage.cost,
        )
        task = replace(task, meta=task.meta | spent.as_meta())
        trajectory = as_trajectory(task, attempt.steps)
        trajectory.well_formed = attempt.end is End.ANSWERED
        trajectory.status = STATUSES.get(attempt.end, Status.NO_ANSWER)
        if attempt.failed:
            trajectory.status, trajectory.error = Status.ERROR, attempt.detail
        return trajectory

    return answer


def _requests(attempt: Attempt) -> int:
    """Return the number of requests: those to the seats of a team; one agent makes one before each
    action, and one to answer."""
    if attempt.seats:
        return sum(seat.requests for seat in attempt.seats.values())
    actions = sum(isinstance(step, Action) for step in attempt.steps)
    return actions + (attempt.end is not End.TOOL_FAILED)
