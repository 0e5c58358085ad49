"""Step of a run that makes demonstrations with its search, and the check of it.

The folder `retrieved` gets the demonstrations, the questions that were left out with the reasons,
and a data card with the retrieval ceiling: the share of the questions whose answers the searches
reach.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from fieldcraft.concurrency import run_concurrently
from fieldcraft.config.plan import Step
from fieldcraft.config.recipe import Recipe
from fieldcraft.config.stages import RETRIEVED_DATASET
from fieldcraft.data.decontamination import EvaluationPassages
from fieldcraft.data.passages import read_corpus
from fieldcraft.data.steps_io import write_demonstrations
from fieldcraft.data.world import Demonstration
from fieldcraft.dialects.encoding import DemonstrationEncoder
from fieldcraft.environments.guards import truncate_middle
from fieldcraft.extensions.curation.filtering import write_data_card
from fieldcraft.extensions.curation.filters import (
    CardExample,
    DataCard,
    FilterStage,
    make_card_example,
    pick_examples,
)
from fieldcraft.extensions.curation.retrieval_settings import (
    RetrievalSettings,
    parse_retrieval_settings,
)
from fieldcraft.extensions.curation.retrieved import (
    SearchFunction,
    SearchPath,
    exclude_contaminated,
    find_path,
    make_steps,
)
from fieldcraft.hub.dataset_files import resolve_data_file
from fieldcraft.records.events import JobsCompleted, LogMessage, track_phase
from fieldcraft.records.files import write_json
from fieldcraft.records.jsonl import write_json_lines
from fieldcraft.records.reading import RERUN_ADVICE, read_json
from fieldcraft.runs.context import RunContext
from fieldcraft.runs.dialects import choose_dialect, load_dialect
from fieldcraft.runs.event_loop import run_async
from fieldcraft.runs.search import find_search
from fieldcraft.runs.setup import Check, CheckContext, CheckReport
from fieldcraft.runs.stage_files import DEMONSTRATIONS_FILE
from fieldcraft.tools.base import ClosableTool
from fieldcraft.types import Task, ToolError, UserError

SUMMARY_FILE, LEFT_OUT_FILE = "summary.json", "left_out.jsonl"
CONCURRENCY = 16  # questions at a time, for a search server
PREVIEW_QUESTIONS, PREVIEW_PASSAGES = 100, 50_000  # that a check searches for, and in


async def retrieve_demonstrations(context: RunContext, step: Step) -> None:
    """Make the demonstrations once, and provide them as the data set `retrieved`. Raises UserError
    if no answer can be reached, or if the search fails."""
    recipe, folder = context.recipe, context.folder.retrieved_folder
    if not folder.exists():
        encoder = context.load_encoder(context.folder.model(step.model))
        settings = parse_retrieval_settings(recipe)
        tasks = context.data_source.train_tasks()[: settings.questions]
        with track_phase(context.emit, step.kind, len(tasks), "questions"):
            paths = await _search_for_all(context, tasks, settings, encoder)
        _require_demonstrations(recipe, paths)

        def write(draft: Path) -> None:
            _write_results(draft, paths, recipe, settings, encoder)

        context.folder.make_once(folder.name, write)
    summary = read_json(folder / SUMMARY_FILE, dict[str, Any], RERUN_ADVICE)
    context.report_figures[RETRIEVED_DATASET] = summary
    context.emit(LogMessage(f"retrieved demonstrations: {describe_summary(summary)}"))
    context.data_source.dataset_files = {RETRIEVED_DATASET: folder / DEMONSTRATIONS_FILE}


async def _search_for_all(
    context: RunContext,
    tasks: Sequence[Task],
    settings: RetrievalSettings,
    encoder: DemonstrationEncoder,
) -> list[SearchPath]:
    """Search for the answers of all questions, and report the progress."""
    finished = 0

    def on_path(path: SearchPath) -> None:
        nonlocal finished
        finished += 1
        context.emit(JobsCompleted("retrieve", finished, f"last: {path.reason or 'found'}"))

    passages = EvaluationPassages(context.data_source.evaluation_tasks())
    async with open_search(context.recipe, context.folder.index, encoder) as search:
        return await find_paths(tasks, search, settings, passages, on_path)


async def find_paths(
    tasks: Sequence[Task],
    search: SearchFunction,
    settings: RetrievalSettings,
    passages: EvaluationPassages,
    on_path: Callable[[SearchPath], None] = lambda path: None,
) -> list[SearchPath]:
    """Return the path of each question, in order. Paths that read passages of the evaluations have
    no demonstration."""

    async def find(task: Task) -> SearchPath:
        path = await find_path(task, search, settings.searches, settings.queries)
        return exclude_contaminated(path, passages)

    return await run_concurrently([(task,) for task in tasks], find, CONCURRENCY, on_path)


@asynccontextmanager
async def open_search(
    recipe: Recipe, index: Path, encoder: DemonstrationEncoder
) -> AsyncIterator[SearchFunction]:
    """Open the search of a recipe inside the block. Its observations are those that a rollout
    reads, cut to the budget, without simulated failures."""
    tool = await find_search().open_tool(recipe, index)
    tokenizer, max_tokens = encoder.dialect.tokenizer, recipe.budget.max_observation_tokens

    async def search(query: str) -> str:
        try:
            observation = await tool(query=query)
        except ToolError as error:
            raise UserError(f"the search failed ({error}): run the same command again.") from error
        return truncate_middle(observation, max_tokens, tokenizer)[0]

    try:
        yield search
    finally:
        if isinstance(tool, ClosableTool):
            await tool.close()


def _require_demonstrations(recipe: Recipe, paths: Sequence[SearchPath]) -> None:
    if all(path.reason for path in paths):
        reasons = Counter(path.reason for path in paths).most_common()
        details = ", ".join(f"{count} {reason}" for reason, count in reasons)
        raise UserError(
            f"the search reaches the answer of none of the {len(paths)} questions of"
            f" {recipe.tasks} ({details}): give a corpus that states the answers, or raise"
            " search.top_k or retrieve.searches."
        )


# -- files --------------------------------------------------------------------------------------


def _write_results(
    folder: Path,
    paths: Sequence[SearchPath],
    recipe: Recipe,
    settings: RetrievalSettings,
    encoder: DemonstrationEncoder,
) -> None:
    """Write demonstrations, questions left out, the summary and the data card."""
    demonstrations = make_demonstrations(paths, settings, encoder)
    write_demonstrations(folder / DEMONSTRATIONS_FILE, demonstrations)
    left_out = (_with_meta(path, reason=path.reason) for path in paths if path.reason)
    write_demonstrations(folder / LEFT_OUT_FILE, ((task, ()) for task in left_out))
    summary = summarise_paths(paths)
    write_json(folder / SUMMARY_FILE, summary)
    write_data_card(_make_card(recipe, settings, paths, demonstrations, summary), folder)


def make_demonstrations(
    paths: Sequence[SearchPath], settings: RetrievalSettings, encoder: DemonstrationEncoder
) -> list[Demonstration]:
    """Return the demonstrations of the paths that have one, with the number of searches in the
    metadata."""
    return [
        (_with_meta(path, searches=len(path.queries)), make_steps(path, settings, encoder))
        for path in paths
        if not path.reason
    ]


def _with_meta(path: SearchPath, **meta: Any) -> Task:
    return replace(path.task, meta={**path.task.meta, **meta})


def summarise_paths(paths: Sequence[SearchPath]) -> dict[str, Any]:
    """Return the numbers of questions and demonstrations, demonstrations by their number of
    searches, reasons for leaving questions out, and the retrieval ceiling: the share of the
    questions whose answers are reached by at most so many searches. Passages of evaluations count
    as reached."""
    reached = Counter(len(path.queries) for path in paths if path.evidence is not None)
    used = Counter(len(path.queries) for path in paths if not path.reason)
    ceilings = {
        str(number): sum(reached[n] for n in reached if n <= number) / max(len(paths), 1)
        for number in range(1, max(reached, default=1) + 1)
    }
    reasons = Counter(path.reason for path in paths if path.reason)
    return {
        "questions": len(paths),
        "demonstrations": used.total(),
        "by_searches": {str(number): used[number] for number in sorted(used)},
        "ceilings": ceilings,
        "left_out": dict(reasons.most_common()),
    }


def describe_summary(summary: Mapping[str, Any]) -> str:
    """Return a summary as one line of text."""
    made, total = summary["demonstrations"], summary["questions"]
    parts = [f"{made} of {total} questions"]
    parts += [
        f"{count} with {number} search{'es' * (number != '1')}"
        for number, count in summary["by_searches"].items()
    ]
    shares = ", ".join(f"{share:.3f}" for share in summary["ceilings"].values())
    parts.append(f"retrieval ceiling with 1, 2, ... searches: {shares}")
    parts += [f"{count} left out: {reason}" for reason, count in summary["left_out"].items()]
    return "; ".join(parts)


def _make_card(
    recipe: Recipe,
    settings: RetrievalSettings,
    paths: Sequence[SearchPath],
    demonstrations: Sequence[Demonstration],
    summary: Mapping[str, Any],
) -> DataCard:
    rule = FilterStage(
        "answer found by the search",
        settings.model_dump(),
        summary["questions"],
        summary["demonstrations"],
        summary["left_out"],
    )
    figures = {
        f"{number} search{'es' * (number != '1')}": {
            "demonstrations": float(summary["by_searches"].get(number, 0)),
            "retrieval ceiling": share,
        }
        for number, share in summary["ceilings"].items()
    }
    made = map(make_card_example, demonstrations)
    left_out = (
        CardExample(rule.name, p.reason, p.task.question, p.task.answers, "\n".join(p.observations))
        for p in paths
        if p.reason
    )
    search: dict[str, Any] = recipe.search.model_dump(include={"top_k", "ranking", "encoder"})
    search |= {"dialect": choose_dialect(recipe).name}
    return DataCard(
        f"{recipe.name}, {RETRIEVED_DATASET} demonstrations",
        "questions",
        recipe.seed,
        search,
        [rule],
        figures,
        pick_examples([*made, *left_out]),
    )


# -- check --------------------------------------------------------------------------------------


def check_retrieval(context: CheckContext, report: CheckReport) -> None:
    """Make the demonstrations of the first questions in a temporary folder, with a server or with
    an index of the first passages, ranked by words."""
    choice = choose_dialect(context.recipe)
    recipe = context.recipe.model_copy(update={"dialect": choice.name})
    assert recipe.model is not None, "questions of files need one"
    settings = parse_retrieval_settings(recipe)
    index, is_partial = _index_preview(recipe, context.draft)
    encoder = DemonstrationEncoder(load_dialect(recipe, recipe.model), context.schemas)
    count = min(settings.questions, PREVIEW_QUESTIONS)
    tasks = context.data_source.train_tasks()[:count]
    passages = EvaluationPassages(context.data_source.evaluation_tasks())

    async def find_all() -> list[SearchPath]:
        async with open_search(recipe, index, encoder) as search:
            return await find_paths(tasks, search, settings, passages)

    paths = run_async(find_all())
    report.note(f"of the first {len(paths)}: {describe_summary(summarise_paths(paths))}")
    if is_partial:
        report.note(f"in the first {PREVIEW_PASSAGES:,} passages only")
        if all(path.reason for path in paths):
            return
    _require_demonstrations(recipe, paths)
    path = context.draft / f"{RETRIEVED_DATASET}.jsonl"
    write_demonstrations(path, make_demonstrations(paths, settings, encoder))
    context.data_source.dataset_files = {RETRIEVED_DATASET: path}


def _index_preview(recipe: Recipe, draft: Path) -> tuple[Path, bool]:
    """Index the first passages of a corpus by words, unless a server searches. Return the folder
    of the index, and whether the corpus has more passages."""
    index = draft / "preview-index"
    if recipe.search.url is not None or recipe.corpus is None:
        return index, False
    converted, preview = draft / "corpus.jsonl", draft / "preview.jsonl"
    corpus = converted if converted.exists() else resolve_data_file(recipe.corpus)
    passages = read_corpus(corpus)
    first = islice(passages, PREVIEW_PASSAGES)
    write_json_lines(preview, ({"id": p.id, "title": p.title, "text": p.text} for p in first))
    is_partial = next(passages, None) is not None
    by_words = recipe.search.model_copy(update={"ranking": None, "encoder": None})
    find_search().build_index(recipe.model_copy(update={"search": by_words}), preview, index)
    return index, is_partial


RETRIEVAL_CHECKS = (Check("retrieved", check_retrieval, ("questions", "tools")),)
