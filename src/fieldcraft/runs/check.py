"""Checks of a recipe before training.

Some errors would stop a run, possibly only after hours; others would let it continue without
learning anything. Checks write only to a temporary folder.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from fieldcraft.config.components import BUILTIN_COMPONENTS, TRACKERS_MODULE, ComponentKind
from fieldcraft.config.names import import_object
from fieldcraft.config.plan import EXTENSION_STEPS, makes_only_data, plan_steps
from fieldcraft.config.recipe import Recipe, trains_on_retrieved
from fieldcraft.config.stages import RETRIEVED_DATASET
from fieldcraft.config.validation_errors import InvalidRecipeError
from fieldcraft.dialects.encoding import DemonstrationEncoder
from fieldcraft.engine.resources import RunResources
from fieldcraft.environments.base import isolate_failures
from fieldcraft.runs.build import make_external_environment, make_verdict_reward, open_judge
from fieldcraft.runs.closed_book import check_closed_book
from fieldcraft.runs.engines import make_engine
from fieldcraft.runs.evaluating import find_workflow
from fieldcraft.runs.event_loop import run_async
from fieldcraft.runs.examples import ExampleSource
from fieldcraft.runs.inputs import make_data_source
from fieldcraft.runs.memory import format_gb, read_free_memory
from fieldcraft.runs.memory_advice import make_memory_advice
from fieldcraft.runs.memory_estimate import (
    FLOAT32_BYTES,
    count_trained_parameters,
    estimate_run_memory,
)
from fieldcraft.runs.question_checks import (
    check_answer_forms,
    check_budgets,
    check_dialect,
    check_gold_answers,
    check_positions,
)
from fieldcraft.runs.setup import (
    Check,
    CheckContext,
    CheckReport,
    check_weights,
    load_device,
    load_first_model,
    load_judge,
    load_questions,
    load_tools,
)
from fieldcraft.runs.stage_checks import check_stage
from fieldcraft.train.master_weights import choose_adamw
from fieldcraft.types import UserError

TOOL_CALLING_WORKFLOWS = (
    "prompted-react",
    "prompted-reflexion",
)  # workflows in which the model calls tools
SEARCH_WORKFLOWS = BUILTIN_COMPONENTS[ComponentKind.WORKFLOW].keys() - {
    *TOOL_CALLING_WORKFLOWS,
    "closed-book",
}  # additionally those in which code searches
CHECKPOINT_BYTES_PER_PARAMETER = 3 * FLOAT32_BYTES  # at most: a parameter and two moments
ESTIMATE_CHECKS = ("memory", "disk")  # checks against an estimate
CheckReporter = Callable[[str, Sequence[str], Sequence[str]], None]


# -- checks ------------------------------------------------------------------------------------


def check_trackers(context: CheckContext, report: CheckReport) -> None:
    """Check that every tracker is installed, and accepts its settings."""
    make_trackers = import_object(f"{TRACKERS_MODULE}:make_trackers")
    report.note(", ".join(make_trackers(context.recipe)))


def check_engine(context: CheckContext, report: CheckReport) -> None:
    """Check that the engine is available, without weights. Nothing is started, but running servers
    must respond."""
    resources = RunResources(context.draft)
    engine = make_engine(
        context.recipe, context.meta_model, context.dialect.tokenizer, 1, resources
    )
    require_usable = getattr(engine, "require_usable", None)
    if require_usable is not None:
        run_async(require_usable())
    report.note(context.recipe.engine.name)


def check_environment(context: CheckContext, report: CheckReport) -> None:
    """Check that an external environment opens, and that a rollout fits into the model."""
    recipe = context.recipe
    check_positions(context, report)
    environment = make_external_environment(recipe)
    assert environment is not None, "only checked if there is one"

    async def open_once() -> None:
        async with isolate_failures(environment, context.dialect, recipe.budget):
            report.note(recipe.environment.name)

    run_async(open_once())


def check_workflows(context: CheckContext, report: CheckReport) -> None:
    """Check that every workflow and its tools exist."""
    recipe = context.recipe
    for name in recipe.evaluation.workflows:
        find_workflow(name)
        if name in SEARCH_WORKFLOWS and not recipe.has_search_tool:
            report.error(
                f"the workflow '{name}' searches, and tools has no search: set"
                " evaluation.workflows=[], or add search to tools."
            )
        if name in TOOL_CALLING_WORKFLOWS and not recipe.tools:
            report.error(
                f"the workflow '{name}' acts, and there are no tools: set evaluation.workflows=[],"
                " or add tools."
            )
    report.note(", ".join(recipe.evaluation.workflows) or "none")


def check_memory(context: CheckContext, report: CheckReport) -> None:
    """Check the run's estimated peak memory against the memory of the device, and that the
    optimiser moments can be stored as configured."""
    for stage in context.recipe.stages.values():
        choose_adamw(stage.optim, context.device)
    estimates = estimate_run_memory(context.sizes)
    name = max(estimates, key=estimates.__getitem__)
    available = read_free_memory(context.device)
    report.note(f"about {format_gb(estimates[name])} of {format_gb(available)}")
    if estimates[name] > available and context.has_weights:
        report.error(
            f"{name} needs about {format_gb(estimates[name])} of memory and {context.device} has"
            f" {format_gb(available)}: {make_memory_advice(context.sizes, available)}."
        )


def check_disk(context: CheckContext, report: CheckReport) -> None:
    """Check the free disk space. Every stage leaves its model and its retained checkpoints; the
    running one temporarily has two and, in reinforcement learning, also the healthiest one."""
    sizes, stages = context.sizes, context.recipe.stages.values()
    trained = max(
        (count_trained_parameters(sizes, stage) for stage in stages),
        default=sizes.trainable_parameters,
    )
    retained = [stage.keep_checkpoints for stage in stages]
    checkpoints = 2 + any(stage.kind == "rl" for stage in stages)
    checkpoints += sum(number for number in retained if isinstance(number, int))
    checkpoint_bytes = trained * CHECKPOINT_BYTES_PER_PARAMETER
    needed = sizes.parameters * len(stages) * FLOAT32_BYTES + checkpoints * checkpoint_bytes
    free = shutil.disk_usage(context.out).free
    more = (
        f", and {format_gb(checkpoint_bytes)} for each retained checkpoint"
        if "all" in retained
        else ""
    )
    report.note(f"about {format_gb(needed)} of {format_gb(free)}{more}")
    if needed > free and context.has_weights:
        report.error(
            f"the run writes about {format_gb(needed)} and {context.out} has {format_gb(free)}"
            " free: free disk space or choose a folder on another disk."
        )


def show_examples(context: CheckContext, report: CheckReport) -> None:
    """Pass the data to `examine`, with prompts if the recipe has a dialect here. Unlike in the
    checks, programs are executed and a judge is queried."""
    assert context.examine is not None, "only executed if there is one"
    recipe, data_source = context.recipe, make_data_source(context.recipe, is_preview=True)
    data_source.dataset_files = context.data_source.dataset_files
    data_source.verdict_reward = make_verdict_reward(
        recipe, run_async(open_judge(recipe.judge, cache=None))
    )
    asks = _asks_questions(context)
    encoder = DemonstrationEncoder(context.dialect, context.schemas) if asks else None
    context.examine(ExampleSource(recipe, data_source, data_source.verdict_reward, encoder))
    report.note("as above")


# -- table of checks ---------------------------------------------------------------------------


def _is_collection(context: CheckContext) -> bool:
    return context.recipe.collect is not None


def _uses_model(context: CheckContext) -> bool:
    """Return whether a run uses a model; a selection of questions may have none."""
    recipe = context.recipe
    return recipe.collect is None and (recipe.model is not None or not recipe.has_task_files)


def _asks_questions(context: CheckContext) -> bool:
    return _uses_model(context) and not context.recipe.environment.is_external


def _evaluates_questions(context: CheckContext) -> bool:
    return _asks_questions(context) and not makes_only_data(context.recipe)


def _shows_prompts(context: CheckContext) -> bool:
    has_examples = all(_has_examples(context, name) for name in context.recipe.stages)
    return context.examine is not None and _asks_questions(context) and has_examples


def _has_examples(context: CheckContext, stage: str) -> bool:
    """Return whether the examples of a stage are present: the search may have found none in the
    part of a large corpus that is checked."""
    is_retrieved = trains_on_retrieved(context.recipe.stages[stage])
    return not is_retrieved or RETRIEVED_DATASET in context.data_source.dataset_files


def _shows_questions(context: CheckContext) -> bool:
    """Return whether examples are shown without prompts."""
    is_external = context.recipe.environment.is_external
    return context.examine is not None and (is_external or not _uses_model(context))


PROMPT_NEEDS = ("questions", "tools", "model", "judge")
DATA_CHECKS = (
    Check("device", load_device),
    Check("questions", load_questions),
    Check("tools", load_tools),
    Check("trackers", check_trackers, applies=lambda c: bool(c.recipe.trackers)),
    Check("examples", show_examples, ("questions", "tools"), _shows_questions),
    Check("correct answers", check_answer_forms, ("questions",), _is_collection),
)
MODEL_CHECKS = (
    Check("model", load_first_model, (), lambda c: _uses_model(c) and c.recipe.model is not None),
    Check(
        "model",  # is generated for the questions
        load_first_model,
        ("questions",),
        lambda c: _uses_model(c) and c.recipe.model is None,
    ),
    Check("judge", load_judge, (), _uses_model),
    Check("engine", check_engine, ("model",)),
    Check("weights", check_weights, ("model",)),
    Check("examples", show_examples, PROMPT_NEEDS, _shows_prompts),
    Check("environment", check_environment, ("model",), lambda c: c.recipe.environment.is_external),
    Check("dialect", check_dialect, ("questions", "tools", "model"), _asks_questions),
    Check("gold answers", check_gold_answers, ("questions", "model", "judge"), _asks_questions),
    Check("correct answers", check_answer_forms, ("questions",), _asks_questions),
    Check("closed book", check_closed_book, ("questions",), _evaluates_questions),
    Check("budget", check_budgets, ("questions", "tools", "model"), _asks_questions),
    Check("workflows", check_workflows, (), _evaluates_questions),
)
SPACE_CHECKS = (
    Check(  # the estimate is for a single process
        "memory", check_memory, ("device", "model"), lambda c: not c.recipe.cluster.trainers
    ),
    Check("disk", check_disk, ("model",)),
)


def list_checks(recipe: Recipe) -> list[Check]:
    """Return the table of checks in order. Those of steps by extensions, such as a collection,
    follow the checks of questions and tools."""
    kinds = dict.fromkeys(step.kind for step in plan_steps(recipe))
    by_extensions = [
        check
        for kind in kinds
        if kind in EXTENSION_STEPS
        for check in import_object(EXTENSION_STEPS[kind].checks)
    ]
    of_stages = [
        Check(
            f"stage {name}",
            partial(check_stage, name=name),
            PROMPT_NEEDS,
            partial(_has_examples, stage=name),
        )
        for name in recipe.stages
    ]
    return [*DATA_CHECKS, *by_extensions, *MODEL_CHECKS, *of_stages, *SPACE_CHECKS]


def check_recipe(
    recipe: Recipe,
    out: Path,
    report: CheckReporter,
    examine: Callable[[ExampleSource], None] | None = None,
) -> list[str]:
    """Check everything that a run requires. An error ends only the checks that need what it
    concerns.

    Args:
        recipe: settings with work to do, see `find_missing_work`.
        out: folder on the disk to which the run will write.
        report: callback after every check with its name, notes, and errors.
        examine: callback with the source of examples, once it is available.

    Returns:
        The errors, each one sentence and each once; empty if none was found.
    """
    errors: list[str] = []
    passed: set[str] = set()
    with tempfile.TemporaryDirectory() as draft:
        context = CheckContext(recipe, Path(draft), out, examine)
        for check in list_checks(recipe):
            if not passed.issuperset(check.needs) or not check.applies(context):
                continue
            found = CheckReport()
            try:
                check.run(context, found)
            except UserError as error:
                found.error(str(error))
            report(check.name, found.notes, found.errors)
            errors += [error for error in found.errors if error not in errors]
            passed |= set() if found.errors else {check.name}
    return errors


def require_checked(recipe: Recipe) -> None:
    """Check the files and settings of a run before its folder is created. Estimates never reject a
    run. Raises InvalidRecipeError with all errors."""
    found: list[str] = []

    def report(name: str, notes: Sequence[str], errors: Sequence[str]) -> None:
        found.extend(e for e in errors if name not in ESTIMATE_CHECKS and e not in found)

    check_recipe(recipe, Path.cwd(), report)
    if found:
        raise InvalidRecipeError(found)
