"""Checks of a recipe that collects, selects or evaluates teachers, before it runs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from fieldcraft.config.choices import Filters
from fieldcraft.config.collection import TEACHER
from fieldcraft.config.collection import TeacherConfig as TeacherSettings
from fieldcraft.config.recipe import Recipe
from fieldcraft.extensions.curation.chat_models import NO_TEMPLATE_MESSAGE
from fieldcraft.extensions.curation.filtering import require_valid_filters
from fieldcraft.extensions.curation.teachers import (
    find_team,
    make_chat_client,
    read_truncation,
    require_oracle,
    require_world,
)
from fieldcraft.runs.event_loop import run_async
from fieldcraft.runs.inputs import make_data_source
from fieldcraft.runs.sampling import resolve_decoding
from fieldcraft.runs.setup import NamedCheck
from fieldcraft.train.model import load_tokenizer
from fieldcraft.types import UserError


def list_collection_checks(recipe: Recipe) -> Iterator[NamedCheck]:
    """Return the checks of a collection."""
    assert recipe.collect is not None
    yield "teacher", partial(check_teachers, recipe)
    if recipe.collect.filters:
        yield "filters", partial(check_filters, recipe.collect.filters)


def list_selection_checks(recipe: Recipe) -> Iterator[NamedCheck]:
    """Return the checks of a selection: of its teacher, if a teacher answers."""
    if recipe.select is not None and recipe.select.closed_book_model == TEACHER:
        yield "teacher", partial(check_teacher_model, recipe.teacher)


def list_evaluation_checks(recipe: Recipe) -> Iterator[NamedCheck]:
    """Return the checks of an evaluation of teachers."""
    yield "teachers", partial(check_teachers, recipe)


def check_teachers(recipe: Recipe, notes: list[str]) -> Iterator[str]:
    """Check that the teachers of a recipe respond, or at least exist."""
    settings = recipe.teacher
    if settings.team is not None:
        find_team(settings.team)
    if settings.model is None:
        data_source = make_data_source(recipe)
        task = data_source.train_tasks()[0]
        if settings.team is not None:
            require_world(data_source).team_demonstration(task, random.Random(0))
            notes.append("the team of the world")
        if "lone" in recipe.evaluation.teachers:
            require_world(data_source).single_agent_demonstration(task, random.Random(0))
            notes.append("the single agent of the world")
        elif settings.team is None:
            notes.append(f"the oracle of the world, {type(require_oracle(data_source)).__name__}")
        return
    configs = (settings, *map(settings.member_config, settings.members))
    for model in {(model.url, model.model): model for model in configs}.values():
        yield from check_teacher_model(model, notes)


def check_teacher_model(settings: TeacherSettings, notes: list[str]) -> Iterator[str]:
    """Check that the endpoint responds, or that the checkpoint exists."""
    assert settings.model is not None
    if settings.url is not None:
        run_async(
            make_chat_client(settings, cache=None).require_available(read_truncation(settings))
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


def check_filters(filters: Filters, notes: list[str]) -> Iterator[str]:
    """Check that every filter rule exists, with the files named in its settings."""
    require_valid_filters(filters)
    notes.append(", ".join(filters))
    yield from ()
