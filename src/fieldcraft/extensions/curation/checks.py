"""Checks of a recipe that collects, selects or evaluates teachers, before it runs."""

from __future__ import annotations

import random
from pathlib import Path

from fieldcraft.config.collection import TEACHER
from fieldcraft.config.collection import TeacherConfig as TeacherSettings
from fieldcraft.extensions.curation.chat_models import NO_TEMPLATE_MESSAGE
from fieldcraft.extensions.curation.filtering import require_valid_filters
from fieldcraft.extensions.curation.teachers import (
    find_team,
    make_chat_client,
    read_truncation,
    require_members,
    require_oracle,
    require_world,
)
from fieldcraft.runs.event_loop import run_async
from fieldcraft.runs.inputs import make_data_source
from fieldcraft.runs.sampling import resolve_decoding
from fieldcraft.runs.setup import Check, CheckContext, CheckReport
from fieldcraft.train.model import load_tokenizer
from fieldcraft.types import UserError


def check_teachers(context: CheckContext, report: CheckReport) -> None:
    """Check that the teachers of a recipe respond, or at least exist."""
    recipe, settings = context.recipe, context.recipe.teacher
    if settings.team is not None:
        find_team(settings.team)
    if settings.model is None:
        data_source = make_data_source(recipe)
        task = data_source.train_tasks()[0]
        if settings.team is not None:
            require_world(data_source).team_demonstration(task, random.Random(0))
            report.note("the team of the world")
        if "lone" in recipe.evaluation.teachers:
            require_world(data_source).single_agent_demonstration(task, random.Random(0))
            report.note("the single agent of the world")
        elif settings.team is None:
            report.note(f"the oracle of the world, {type(require_oracle(data_source)).__name__}")
        return
    configs = (settings, *map(settings.member_config, settings.members))
    for model in {(model.url, model.model): model for model in configs}.values():
        _check_model(model, report)


def check_members(context: CheckContext, report: CheckReport) -> None:
    """Check that the team has every member with settings of its own."""
    settings = context.recipe.teacher
    assert settings.team is not None, "only checked with a team"
    tools = [schema["function"]["name"] for schema in context.schemas]
    members = [*find_team(settings.team).prompts, *tools]
    require_members(settings, members)
    report.note(", ".join(settings.members))


def _has_members(context: CheckContext) -> bool:
    return context.recipe.teacher.team is not None and bool(context.recipe.teacher.members)


def _check_model(settings: TeacherSettings, report: CheckReport) -> None:
    """Check that the endpoint responds, or that the checkpoint exists."""
    assert settings.model is not None
    if settings.url is not None:
        run_async(
            make_chat_client(settings, cache=None).require_available(read_truncation(settings))
        )
        report.note(f"{settings.url} answers as {settings.model}")
        return
    folder = Path(settings.model)
    resolve_decoding(settings, folder, lambda event: report.note(str(event)))
    if not (folder / "config.json").exists():
        raise UserError(f"{folder} is not a checkpoint: give its folder, or set teacher.url too.")
    if load_tokenizer(folder).chat_template is None:
        report.error(NO_TEMPLATE_MESSAGE)
    report.note(str(folder))


def check_filters(context: CheckContext, report: CheckReport) -> None:
    """Check that every filter rule exists, with the files named in its settings."""
    assert context.recipe.collect is not None
    require_valid_filters(context.recipe.collect.filters)
    report.note(", ".join(context.recipe.collect.filters))


def _has_filters(context: CheckContext) -> bool:
    return context.recipe.collect is not None and bool(context.recipe.collect.filters)


def _asks_teacher(context: CheckContext) -> bool:
    return context.recipe.select is not None and (
        context.recipe.select.closed_book_model == TEACHER
    )


_MEMBERS_CHECK = Check("team", check_members, ("tools",), _has_members)
COLLECTION_CHECKS = (
    Check("teacher", check_teachers),
    _MEMBERS_CHECK,
    Check("filters", check_filters, applies=_has_filters),
)
SELECTION_CHECKS = (
    Check("teacher", lambda c, r: _check_model(c.recipe.teacher, r), applies=_asks_teacher),
)
EVALUATION_CHECKS = (Check("teachers", check_teachers), _MEMBERS_CHECK)
