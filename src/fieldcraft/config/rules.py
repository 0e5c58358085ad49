"""All rules between the keys of a recipe: `list_violations` checks each of them.

A rule may assume that each section is valid on its own; rules within a section are its
`find_violations`. If two rules could report the same mistake, one of them skips it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from fieldcraft.config import question_rules, stage_rules
from fieldcraft.config.components import (
    AUTO_VERDICT,
    ENGINE_FEATURES,
    RUBRIC,
    VERDICT_REWARD_KEY,
    ComponentKind,
)
from fieldcraft.config.hub_names import DATASET_FORM, MODEL_FORMS
from fieldcraft.config.names import ComponentError, get_display_name, resolve_path, suggest_name
from fieldcraft.config.plan import get_seed_table_rows, list_evaluations
from fieldcraft.config.recipe import Recipe, trains_on_retrieved
from fieldcraft.config.rl import Rl
from fieldcraft.config.stage_rules import RESERVED_STAGE_NAMES
from fieldcraft.config.stages import Sft
from fieldcraft.config.validation_errors import InvalidRecipeError

Rule = Callable[[Recipe], Iterator[str]]  # yields a sentence for each violation


# -- names of components and rows ---------------------------------------------------------------


def _list_components(recipe: Recipe) -> Iterator[tuple[ComponentKind, str | None]]:
    """Yield kind and name of each component that a recipe can be built without."""
    stages, evaluation = recipe.stages.values(), recipe.evaluation
    rewards = sorted({name for stage in stages for name in stage.reward_names})
    filters = [stage.filters for stage in stages if isinstance(stage, Sft)]
    filters += [s.filters for s in (recipe.collect, recipe.select) if s is not None]
    names: dict[ComponentKind, Iterable[str | None]] = {
        ComponentKind.REWARD: [name for name in rewards if name != VERDICT_REWARD_KEY],
        ComponentKind.FILTER: [name for section in filters for name in section],
        ComponentKind.TRACKER: [tracker.name for tracker in recipe.trackers],
        ComponentKind.VERIFIER: [evaluation.verifier],
        ComponentKind.DIALECT: [recipe.dialect],
        ComponentKind.ENGINE: [recipe.engine.name],
        ComponentKind.ENVIRONMENT: [recipe.environment.name],
        ComponentKind.TOOL: [tool.name for tool in recipe.tools],
        ComponentKind.TEAM: [recipe.teacher.team],
        ComponentKind.WORKFLOW: evaluation.workflows,
    }
    yield from ((kind, name) for kind, of_kind in names.items() for name in of_kind)
    if recipe.verdict_reward != AUTO_VERDICT:
        yield ComponentKind.REWARD, recipe.verdict_reward


def find_unknown_components(recipe: Recipe) -> Iterator[str]:
    for kind, name in _list_components(recipe):
        try:
            if name is not None:
                resolve_path(kind, name)
        except ComponentError as error:
            yield str(error)


def find_repeated_names(recipe: Recipe) -> Iterator[str]:
    names = {
        "tools": [name for tool in recipe.tools for name in sorted(tool.all_names)],
        "trackers": [tracker.name for tracker in recipe.trackers],
    }
    for key, names_of_key in names.items():
        for name in (name for name, count in Counter(names_of_key).items() if count > 1):
            yield f"'{key}' is wrong: it names '{name}' twice: remove one of the two."


def find_conflicting_rows(recipe: Recipe) -> Iterator[str]:
    row_owners: dict[str, str] = {"base": "the first model"}
    for workflow in recipe.evaluation.workflows:
        row = get_display_name(workflow)
        if row in row_owners:
            yield (
                f"the workflow '{workflow}' and {row_owners[row]} would both be the row '{row}' of"
                " the report: give the function another name."
            )
        elif row in recipe.stages and row not in RESERVED_STAGE_NAMES:
            yield (
                f"the workflow '{workflow}' and a stage are both called '{row}': choose another"
                " name for the stage."
            )
        row_owners[row] = f"the workflow '{workflow}'"


def find_unknown_rows(recipe: Recipe) -> Iterator[str]:
    evaluations, rows = list_evaluations(recipe), get_seed_table_rows(recipe)
    for title, name in recipe.table_rows.items():
        if name not in evaluations:
            yield (
                f"row '{title}' shows '{name}', which is never evaluated: use one of"
                f" {', '.join(evaluations)}."
            )
    for title, pair in recipe.comparisons.items():
        for row in (row for row in pair if row not in rows):
            yield (
                f"the comparison '{title}' names the row '{row}', which the table does not"
                f" have; {suggest_name(row, rows)}"
            )


# -- processes ----------------------------------------------------------------------------------


def find_unsharded_moments(recipe: Recipe) -> Iterator[str]:
    trainers = recipe.cluster.trainers
    for name, stage in recipe.stages.items() if trainers else ():
        sections = {"optim": stage.optim}
        if isinstance(stage, Rl) and stage.critic.optim is not None:
            sections["critic.optim"] = stage.critic.optim
        for key, optim in sections.items():
            if optim.optimizer_state != "float32":
                yield (
                    f"stage '{name}' has {key}.optimizer_state={optim.optimizer_state}, and"
                    f" cluster.trainers={trainers} each hold a shard of float32 moments, so set it"
                    " to float32."
                )


def find_unusable_engines(recipe: Recipe) -> Iterator[str]:
    if recipe.cluster.engines and recipe.engine.features.cluster is None:
        yield (
            f"cluster.engines={recipe.cluster.engines} starts engines of the kinds"
            f" {' and '.join(ENGINE_FEATURES)}, and engine is '{recipe.engine.name}': use one of"
            " these, or cluster.engines=0."
        )
    if recipe.cluster.engines and "urls" in recipe.engine.settings:
        yield (
            f"cluster.engines={recipe.cluster.engines} starts servers, and engine.urls names some"
            " that are already running: leave out one of the two."
        )


def find_unusable_tensor_parallel(recipe: Recipe) -> Iterator[str]:
    devices, engine = recipe.cluster.tensor_parallel, recipe.engine
    if devices > 1 and not engine.features.tensor_parallel:
        yield (
            f"cluster.tensor_parallel={devices} is for engine=vllm, and engine={engine.name}"
            " computes on one device: change one of the two."
        )


def find_trainers_without_engines(recipe: Recipe) -> Iterator[str]:
    has_rl = any(stage.kind == "rl" for stage in recipe.stages.values())
    needs_sampling = has_rl or recipe.evaluation.periodic is not None
    if recipe.cluster.trainers and needs_sampling and not recipe.cluster.engines:
        yield (
            f"cluster.trainers={recipe.cluster.trainers} needs engines to sample from the trained"
            " model: set cluster.engines to 1 or more."
        )


# -- seeds, files, judge ------------------------------------------------------------------------


def find_unusable_seeds(recipe: Recipe) -> Iterator[str]:
    if len(set(recipe.seeds)) < len(recipe.seeds):
        yield f"seeds={list(recipe.seeds)} names a seed twice: give each one once."
    if recipe.seeds and recipe.seed:
        yield (
            f"seed={recipe.seed} is one run and seeds={list(recipe.seeds)} several: for one alone"
            " set seeds=[] as well."
        )
    if recipe.seeds and not recipe.stages:
        yield (
            f"the recipe '{recipe.name}' trains nothing, so there is no table over"
            f" seeds={list(recipe.seeds)}: run it with seed=N for each."
        )


def find_missing_files(recipe: Recipe) -> Iterator[str]:
    is_retrieved = any(map(trains_on_retrieved, recipe.stages.values()))
    for key in recipe.required_paths:
        advice = ""
        if is_retrieved and key in ("tasks", "corpus"):
            advice = ", such as a file that 'fieldcraft prepare' makes from published data sets"
        elif key == "model":
            advice = f": {MODEL_FORMS}"
        if getattr(recipe, key) is None:
            yield f"recipe '{recipe.name}' needs {key}=PATH on the command line{advice}."
    keys = ("model", "tasks", "corpus", "demonstrations", "pairs")
    files: dict[str, Path | None] = {key: getattr(recipe, key) for key in keys}
    files |= {f"evaluation.tasks.{name}": path for name, path in recipe.evaluation.tasks.items()}
    for name, path in files.items():
        if path is not None and not path.exists():
            forms = MODEL_FORMS if name == "model" else f"an existing file, or {DATASET_FORM}"
            yield f"{name}={path} does not exist: give {forms}."


def find_incomplete_judge(recipe: Recipe) -> Iterator[str]:
    graders = {recipe.verdict_reward, recipe.evaluation.verifier}
    graders.update(*(stage.reward_names for stage in recipe.stages.values()))
    has_questions = any(criterion.question for criterion in recipe.rubric.values())
    needs_judge = has_questions or not graders.isdisjoint({"judge", "pairwise"})
    is_set = {recipe.judge.url is not None, recipe.judge.model is not None}
    if len(is_set) == 2 or (needs_judge and is_set == {False}):
        yield "a judge needs both a url and a model: set judge.url and judge.model."


def find_missing_criteria(recipe: Recipe) -> Iterator[str]:
    rewarded = set[str]().union(*(stage.reward_names for stage in recipe.stages.values()))
    if RUBRIC in {recipe.verdict_reward, *rewarded} and not recipe.rubric:
        yield "the reward 'rubric' has no criteria: name them in the section rubric."
    for name in recipe.rubric:
        if "/" in name or not name.strip():
            yield f"the criterion '{name}' is no name: use letters, digits, - and _."


def find_ignored_world(recipe: Recipe) -> Iterator[str]:
    if recipe.has_task_files and recipe.world is not None:
        yield (
            f"the world '{recipe.world.name}' would be ignored, because tasks=FILE provides"
            " the questions: remove one of the two."
        )


def find_missing_work(recipe: Recipe) -> Iterator[str]:
    if not (recipe.stages or recipe.model or recipe.collect or recipe.select):
        yield f"recipe '{recipe.name}' does nothing: give it stages, or a model to evaluate."


# -- the table ----------------------------------------------------------------------------------

# Rules for loaded agents, too, whose files may no longer exist.
AGENT_RULES: tuple[Rule, ...] = (
    stage_rules.find_invalid_budgets,
    stage_rules.find_changed_summary_prompts,
    stage_rules.find_tools_with_environment,
    stage_rules.find_cot_share_without_tools,
    question_rules.find_team_without_tools,
    question_rules.find_sampling_of_remote_teacher,
    find_repeated_names,
    find_unknown_components,
    find_conflicting_rows,
    stage_rules.find_late_models,
    find_unknown_rows,
)
RULES: tuple[Rule, ...] = (
    *AGENT_RULES,
    stage_rules.find_invalid_stage_names,
    find_unsharded_moments,
    find_unusable_engines,
    find_unusable_tensor_parallel,
    find_trainers_without_engines,
    find_unusable_seeds,
    find_incomplete_judge,
    find_missing_criteria,
    find_missing_files,
    question_rules.find_missing_team,
    question_rules.find_unused_teacher,
    question_rules.find_stages_with_collection,
    question_rules.find_budget_of_collection,
    question_rules.find_unnamed_teacher,
    question_rules.find_unused_teacher_keys,
    question_rules.find_unused_selection,
    question_rules.find_late_selection_models,
    question_rules.find_unused_closed_book,
    question_rules.find_unknown_closed_book_model,
    question_rules.find_unused_closed_book_questions,
    question_rules.find_unusable_retrieval,
    stage_rules.find_second_model,
    stage_rules.find_unused_sampler_weights,
    stage_rules.find_unreachable_overlong_limits,
    stage_rules.find_keys_with_environment,
    stage_rules.find_stages_with_environment,
    question_rules.find_invalid_world_settings,
    question_rules.find_missing_questions,
    question_rules.find_unread_files,
    question_rules.find_missing_training_questions,
    question_rules.find_unknown_splits,
    question_rules.find_too_many_world_questions,
    question_rules.find_missing_heldout_size,
    question_rules.find_unused_evaluation,
)
RUN_RULES: tuple[Rule, ...] = (*RULES, find_missing_work)  # of a recipe that is run


def list_violations(recipe: Recipe, rules: Sequence[Rule] = RULES) -> list[str]:
    """Return a sentence for each violation of rules, in the order of the rules."""
    sentences = list[str]()
    for rule in rules:
        try:
            sentences += rule(recipe)
        except ComponentError as error:  # several rules may need the same unknown world
            sentences.append(str(error))
    return list(dict.fromkeys(sentences))


def require_valid(recipe: Recipe, rules: Sequence[Rule] = RULES) -> None:
    """Raise InvalidRecipeError with all violations of rules."""
    if violations := list_violations(recipe, rules):
        raise InvalidRecipeError(violations)
