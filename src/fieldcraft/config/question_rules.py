"""Rules for the questions of a recipe, and for the sections that sample models before training."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

from pydantic import ValidationError

from fieldcraft.config.collection import TEACHER, ClosedBookConfig, TeacherConfig
from fieldcraft.config.components import ComponentKind
from fieldcraft.config.names import list_registered, suggest_name
from fieldcraft.config.numbers import MAX_WORLD_COUNT
from fieldcraft.config.plan import makes_only_data
from fieldcraft.config.recipe import (
    Recipe,
    get_closed_book_model,
    get_split_titles,
    make_world_settings_model,
    trains_on_retrieved,
)
from fieldcraft.config.sampling import SamplingConfig
from fieldcraft.config.stages import SupervisedConfig
from fieldcraft.config.validation_errors import describe_section_errors

# -- questions for training and evaluation ------------------------------------------------------


def find_invalid_world_settings(recipe: Recipe) -> Iterator[str]:
    if recipe.world is not None:
        known_settings = make_world_settings_model(recipe.world.name)
        try:
            known_settings.model_validate(recipe.world.settings)
        except ValidationError as error:
            yield from describe_section_errors(error, known_settings, ("world",))


def _has_own_questions(recipe: Recipe) -> bool:
    """Return whether a world or an environment provides questions."""
    return recipe.world is not None or recipe.environment.is_external


def find_missing_questions(recipe: Recipe) -> Iterator[str]:
    if not (_has_own_questions(recipe) or recipe.has_task_files):
        yield (
            f"recipe '{recipe.name}' has no questions: give tasks=FILE, or world.name= with one"
            f" of {', '.join(list_registered(ComponentKind.WORLD))}."
        )


def find_unread_files(recipe: Recipe) -> Iterator[str]:
    own = {key: getattr(recipe, key) for key in ("corpus", "demonstrations", "pairs")}
    for key, path in own.items():
        if path is not None and _has_own_questions(recipe) and not recipe.has_task_files:
            yield (
                f"{key}={path} would not be read, because the questions are those of a world or an"
                f" environment: give tasks=FILE, too, or remove {key}."
            )


def find_missing_training_questions(recipe: Recipe) -> Iterator[str]:
    needing = [f"stage '{name}'" for name, s in recipe.stages.items() if s.kind != "supervised"]
    needing += [key for key in ("select", "collect") if getattr(recipe, key) is not None]
    if not recipe.evaluation.tasks or recipe.tasks is not None:
        return
    if _has_own_questions(recipe):
        yield (
            "evaluation.tasks replaces the questions of a world or an environment, so the questions"
            " to train on must be your own, too: give tasks=FILE, or remove evaluation.tasks."
        )
    elif needing:
        yield f"{needing[0]} needs other questions than evaluation.tasks: give tasks=FILE."


def find_unknown_splits(recipe: Recipe) -> Iterator[str]:
    files = recipe.evaluation.tasks
    own = () if files else get_split_titles(recipe)
    has_heldout = recipe.tasks is not None or not (files or recipe.world)
    known = sorted({*files, *own, *(["heldout"] if has_heldout else [])})
    has_questions = recipe.has_task_files or _has_own_questions(recipe)
    for name in recipe.evaluation.splits if has_questions else ():
        if name not in known:
            advice = suggest_name(name, known, "evaluation.splits.")
            yield f"unknown key 'evaluation.splits.{name}'; {advice}"


def find_too_many_world_questions(recipe: Recipe) -> Iterator[str]:
    """Yield an error for each number of questions or examples that would fill the memory."""
    if recipe.world is None:
        return
    counts = {f"evaluation.splits.{name}": n for name, n in recipe.evaluation.splits.items()}
    counts |= {
        f"stages.{name}.max_examples": stage.max_examples
        for name, stage in recipe.stages.items()
        if isinstance(stage, SupervisedConfig) and stage.max_examples is not None
    }
    for key, count in counts.items():
        if count > MAX_WORLD_COUNT:
            yield (
                f"{key}={count} is more than the {MAX_WORLD_COUNT} that are generated of a world:"
                " lower it."
            )


def find_missing_heldout_size(recipe: Recipe) -> Iterator[str]:
    sizes = recipe.evaluation.split_sizes
    if recipe.tasks is not None and not recipe.evaluation.tasks and not sizes.get("heldout"):
        yield (
            "tasks=FILE needs evaluation.splits.heldout=, the number of questions to test on, or"
            " evaluation.tasks=FILE."
        )


def find_unused_evaluation(recipe: Recipe) -> Iterator[str]:
    """Yield an error for each key of an evaluation that a run does not have."""
    if recipe.evaluation.periodic is not None and not recipe.stages:
        yield (
            "evaluation.periodic evaluates a model while it is trained, and the recipe has no"
            " stages: remove it."
        )
    keys = ("teachers", "verifier", "samples", "prices", "budget", *SamplingConfig.model_fields)
    for key in keys if makes_only_data(recipe) else ():
        if not recipe.evaluation.has_default(key):
            yield (
                f"evaluation.{key} has no effect, because a recipe with collect, or with select and"
                " no stages, evaluates nothing: remove it."
            )


# -- teachers and collection --------------------------------------------------------------------


def find_missing_team(recipe: Recipe) -> Iterator[str]:
    if "team" in recipe.evaluation.teachers and recipe.teacher.team is None:
        yield "evaluation.teachers names the team, so set teacher.team, as in afm."


def find_team_without_tools(recipe: Recipe) -> Iterator[str]:
    collect = recipe.collect
    if recipe.teacher.team is not None and collect and (collect.cot or collect.pairs):
        yield "a team always uses its tools: remove collect.cot and collect.pairs."


def _selects_by_teacher(recipe: Recipe) -> bool:
    return recipe.select is not None and recipe.select.closed_book_model == TEACHER


def find_unused_teacher(recipe: Recipe) -> Iterator[str]:
    is_used = recipe.collect or recipe.evaluation.teachers or _selects_by_teacher(recipe)
    if recipe.teacher != TeacherConfig() and not is_used:
        yield (
            "teacher is only for a recipe with collect, select.closed_book_model=teacher or"
            " evaluation.teachers: use the recipe autocoa-data, or afm-data."
        )


def find_unnamed_teacher(recipe: Recipe) -> Iterator[str]:
    teacher, collects = recipe.teacher, recipe.collect is not None
    needs_model = teacher.url is not None or teacher.members or (collects and recipe.has_task_files)
    if (collects or recipe.evaluation.teachers) and teacher.model is None and needs_model:
        yield (
            "the teacher has no name: set teacher.model, the name of a model at teacher.url or the"
            " folder of a checkpoint."
        )
    if recipe.collect is None and teacher.model is None and _selects_by_teacher(recipe):
        yield "select.closed_book_model=teacher needs the name of a model: set teacher.model."


def find_unused_teacher_keys(recipe: Recipe) -> Iterator[str]:
    """Yield an error for each key of the teacher that neither its model nor a script reads."""
    teacher, collects = recipe.teacher, recipe.collect is not None
    answers = collects or bool(recipe.evaluation.teachers)
    set_keys = [key for key in TeacherConfig.model_fields if not teacher.has_default(key)]
    if answers and teacher.model is None:
        read = {"url", "members", "team"} | ({"concurrency"} if collects else set())
        for key in set_keys:
            if key not in read:
                yield (
                    f"teacher.{key} has no effect on the script of a world, which answers without"
                    f" teacher.model: set teacher.model, or remove teacher.{key}."
                )
    elif not answers and _selects_by_teacher(recipe):
        for key in set_keys:
            if key in SamplingConfig.model_fields:
                yield (
                    f"teacher.{key} has no effect on the selection, which has its own sampling: set"
                    f" select.{key} instead."
                )


def find_stages_with_collection(recipe: Recipe) -> Iterator[str]:
    if recipe.collect is not None and recipe.stages:
        yield (
            "a recipe with collect has no stages: train in a second run, with demonstrations= and"
            " pairs= of the files that this one writes."
        )


def find_budget_of_collection(recipe: Recipe) -> Iterator[str]:
    for key in ("at_limit", "max_refusals", "fold"):
        if recipe.collect is not None and not recipe.budget.has_default(key):
            yield (
                f"budget.{key} has no effect with collect, because the teacher decides when to"
                " stop: remove it."
            )
    is_local = recipe.teacher.model is not None and recipe.teacher.url is None
    cuts = not recipe.budget.has_default("max_observation_tokens")
    if recipe.collect is not None and not is_local and cuts:
        yield (
            "budget.max_observation_tokens has no effect with collect unless teacher.model is a"
            " folder, whose tokenizer counts the tokens: remove it."
        )


# -- selection ----------------------------------------------------------------------------------


def find_sampling_of_remote_teacher(recipe: Recipe) -> Iterator[str]:
    reads_model = recipe.select is not None and recipe.select.sampling == "model"
    if _selects_by_teacher(recipe) and reads_model and recipe.teacher.url is not None:
        yield (
            "select.sampling=model reads the folder of a model, and the teacher that answers"
            " without tools is behind a url: set select.temperature and the like instead."
        )


def find_unused_selection(recipe: Recipe) -> Iterator[str]:
    kinds = [stage.kind for stage in recipe.stages.values()]
    if recipe.select is not None and recipe.collect is not None:
        yield "a recipe has either collect or select: do them in two runs."
    if recipe.select is not None and kinds and "rl" not in kinds:
        yield (
            "select chooses the questions of a stage of reinforcement learning, which the recipe"
            " does not have: add one, or remove select."
        )


def find_late_selection_models(recipe: Recipe) -> Iterator[str]:
    models = ["start", *takewhile(lambda name: recipe.stages[name].kind != "rl", recipe.stages)]
    for name in sorted(recipe.select.sampled_models if recipe.select is not None else ()):
        if name not in models:
            yield (
                f"select samples the model of '{name}', which does not exist before the first"
                f" rl stage: use one of {', '.join(models)}."
            )


# -- closed book --------------------------------------------------------------------------------


def _get_used_closed_book(recipe: Recipe) -> ClosedBookConfig | None:
    """Return the section closed_book of a recipe with questions that it can ask."""
    is_measured = not recipe.environment.is_external and not makes_only_data(recipe)
    return recipe.closed_book if is_measured and (recipe.stages or recipe.model) else None


def find_unused_closed_book(recipe: Recipe) -> Iterator[str]:
    if recipe.closed_book is not None and _get_used_closed_book(recipe) is None:
        yield (
            "closed_book asks the questions of evaluations and stages without tools, and this"
            " recipe has no such questions: remove it."
        )


def find_unknown_closed_book_model(recipe: Recipe) -> Iterator[str]:
    models = ["start", *recipe.stages]
    if _get_used_closed_book(recipe) is not None and get_closed_book_model(recipe) not in models:
        yield (
            f"closed_book samples the model of '{get_closed_book_model(recipe)}', which does not"
            f" exist: use one of {', '.join(models)}."
        )


def find_unused_closed_book_questions(recipe: Recipe) -> Iterator[str]:
    closed_book = _get_used_closed_book(recipe)
    if closed_book is None or closed_book.questions == 0:
        return
    if recipe.select is not None and recipe.select.closed_book_model is not None:
        yield (
            "select already measures the closed-book rate of the training questions: remove"
            " closed_book.questions."
        )
    model, models = get_closed_book_model(recipe), ["start", *recipe.stages]
    later = list(recipe.stages.values())[models.index(model) if model in models else 0 :]
    if all(stage.kind != "rl" for stage in later):
        yield (
            "closed_book.questions is for a stage of reinforcement learning after"
            f" '{model}', but the recipe has none: add one, or set closed_book.questions=0."
        )


# -- retrieved demonstrations -------------------------------------------------------------------


def find_unusable_retrieval(recipe: Recipe) -> Iterator[str]:
    stages = [name for name, stage in recipe.stages.items() if trains_on_retrieved(stage)]
    if not stages:
        if recipe.retrieve:
            yield "retrieve has no effect: give a stage dataset: retrieved, or remove retrieve."
        return
    if recipe.tasks is None or not recipe.has_search_tool:
        yield (
            f"stage '{stages[0]}' is trained on what the search finds for your questions: give"
            " tasks=FILE and the tool search, or another dataset."
        )
