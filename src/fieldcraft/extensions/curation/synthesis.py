"""Synthesis of harder questions from easier ones: unknown without tools, solved with them.

TaskCraft, whose questions AFM (arXiv 2508.13167) uses, extends questions in depth, by one more hop,
and in width, by joining several. Here width has three forms: the common answer of several questions
(`intersect`), the one of several that qualifies (`compare`), and their number (`count`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from fieldcraft.config.recipe import Recipe
from fieldcraft.data.grading import Grader
from fieldcraft.data.tasks import write_tasks
from fieldcraft.extensions.curation.filtering import write_data_card
from fieldcraft.extensions.curation.filters import CardExample, DataCard, FilterStage, pick_examples
from fieldcraft.extensions.curation.question_generators import (
    DEPTH,
    DEPTH_WRITERS,
    WIDTH_KINDS,
    WIDTH_WRITERS,
    ModelQuestionGenerator,
    QuestionGenerator,
    WorldQuestionGenerator,
)
from fieldcraft.extensions.curation.teachers import (
    find_tokens,
    make_prompted_agent,
    make_team_agent,
    open_chat_model,
    resolve_teacher_decoding,
)
from fieldcraft.extensions.curation.team import Team, TeamAgent, TeamMember
from fieldcraft.records.events import EventBus, JobsCompleted, track_phase
from fieldcraft.records.files import append_text, dump_finite_json, make_folder
from fieldcraft.records.jsonl import parse_object, read_journal
from fieldcraft.runs.context import RunContext, open_run_context
from fieldcraft.runs.event_loop import run_async
from fieldcraft.types import Task, UserError

RULE_NAMES = ("made", "new", "closed", "right")  # in this order
DRAFTS_PER_QUESTION = 10  # for each requested question


class QuestionDraft(NamedTuple):
    """One attempt: the question if it passed all rules, else the rule that it failed and why."""

    kind: str
    number: int
    question: str
    answers: tuple[str, ...]
    meta: dict[str, Any]
    id: str
    rule: str = ""
    reason: str = ""

    @property
    def task(self) -> Task:
        return Task(self.id, self.question, self.answers, self.meta)


def _parse_draft(line: bytes, location: str) -> QuestionDraft:
    return TypeAdapter(QuestionDraft).validate_python(parse_object(line, location))


class DraftJournal:
    """Journal of all attempts, with one line per attempt."""

    def __init__(self, path: Path) -> None:
        """Read the existing journal. Raises UserError if it is damaged."""
        self.path = path
        make_folder(path.parent)
        self.drafts = read_journal(path, _parse_draft, "to make the question again")

    def append(self, draft: QuestionDraft) -> None:
        append_text(
            self.path, f"{dump_finite_json(self.path, draft._asdict(), ensure_ascii=False)}\n"
        )
        self.drafts.append(draft)

    def get_accepted_tasks(self, kind: str) -> list[Task]:
        return [draft.task for draft in self.drafts if draft.kind == kind and not draft.rule]

    def get_filter_stages(self) -> list[FilterStage]:
        """Return the number of attempts that passed each rule, and why the others failed."""
        remaining, stages = list(self.drafts), list[FilterStage]()
        for rule in RULE_NAMES:
            failed = Counter(draft.reason for draft in remaining if draft.rule == rule)
            passed = [draft for draft in remaining if draft.rule != rule]
            stages.append(
                FilterStage(rule, {}, len(remaining), len(passed), dict(failed.most_common()))
            )
            remaining = passed
        return stages

    def list_examples(self) -> list[CardExample]:
        return [
            CardExample(d.rule, d.reason, d.question, d.answers) for d in self.drafts if d.question
        ]


async def synthesise(
    generator: QuestionGenerator,
    target_counts: Mapping[str, int],
    seed: int,
    drafts: DraftJournal,
    concurrency: int,
    on_accepted: Callable[[int], None],
) -> None:
    """Make questions until the target number of each kind is reached, or DRAFTS_PER_QUESTION times
    as many attempts were made. Attempts in the journal are not repeated. `on_accepted` receives the
    number of accepted questions."""
    for kind, count in target_counts.items():
        while len(drafts.get_accepted_tasks(kind)) < count:
            num_tried = sum(draft.kind == kind for draft in drafts.drafts)
            wave_size = min(
                count - len(drafts.get_accepted_tasks(kind)),
                concurrency,
                count * DRAFTS_PER_QUESTION - num_tried,
            )
            if wave_size <= 0:
                break
            numbers = range(num_tried, num_tried + wave_size)
            new_drafts = await asyncio.gather(
                *(_make_draft(generator, kind, n, seed) for n in numbers)
            )
            for draft in new_drafts:
                drafts.append(_reject_repeated(draft, drafts))
            on_accepted(sum(len(drafts.get_accepted_tasks(each)) for each in target_counts))


async def _make_draft(
    generator: QuestionGenerator, kind: str, number: int, seed: int
) -> QuestionDraft:
    key = f"{seed}:{kind}:{number}"
    generated = await generator.generate(kind, key)
    if isinstance(generated, str):
        return QuestionDraft(kind, number, "", (), {}, "", "made", generated)
    draft = QuestionDraft(
        kind, number, generated.question, generated.answers, generated.meta, generated.id
    )
    if reason := await generator.check_closed_book(generated, f"{key}:closed"):
        return draft._replace(rule="closed", reason=reason)
    if reason := await generator.check_answer(generated, f"{key}:right"):
        return draft._replace(rule="right", reason=reason)
    return draft


def _reject_repeated(draft: QuestionDraft, drafts: DraftJournal) -> QuestionDraft:
    if draft.question and any(draft.id == other.id for other in drafts.drafts):
        return draft._replace(rule="new", reason="it was made before")
    return draft


# -- command -----------------------------------------------------------------------------------

SYNTHESIS_FOLDER = "synthesis"


def synthesise_questions(
    recipe: Recipe, out: Path, depth: int, width: int, events: EventBus
) -> Path:
    """Synthesise `depth` and `width` questions, or the remaining ones, and return the folder with
    `tasks.jsonl`, `card.json` and `card.html`.

    Raises UserError if neither a world nor a model can synthesise them, none are requested, or a
    model does not respond.
    """
    return run_async(_synthesise(recipe, out, depth, width, events))


async def _synthesise(recipe: Recipe, out: Path, depth: int, width: int, events: EventBus) -> Path:
    async with open_run_context(recipe, out, events) as context:
        generator = await _make_generator(context)
        folder = context.folder.path / SYNTHESIS_FOLDER
        drafts = DraftJournal(folder / "drafts.jsonl")
        counts = _count_by_kind(generator, depth, width)
        if not counts:
            raise UserError(
                f"--depth={depth} and --width={width} ask for no question of the kinds"
                f" {', '.join(generator.kinds)}: raise one of them."
            )

        def on_accepted(accepted: int) -> None:
            events(JobsCompleted(SYNTHESIS_FOLDER, accepted, f"of {len(drafts.drafts)} drafts"))

        with track_phase(events, SYNTHESIS_FOLDER, sum(counts.values()), "jobs"):
            await synthesise(
                generator, counts, recipe.seed, drafts, recipe.teacher.concurrency, on_accepted
            )
        tasks = [
            task for kind in counts for task in drafts.get_accepted_tasks(kind)[: counts[kind]]
        ]
        if not tasks:
            raise UserError(
                f"none of {len(drafts.drafts)} drafts became a question, see {drafts.path}: give"
                " other questions, or another model."
            )
        write_tasks(tasks, folder / "tasks.jsonl")
        write_data_card(_make_card(recipe, drafts, counts), folder)
    return folder


def _count_by_kind(generator: QuestionGenerator, depth: int, width: int) -> dict[str, int]:
    """Return the number of questions of each kind; width questions are divided equally."""
    width_kinds = [kind for kind in WIDTH_KINDS if kind in generator.kinds]
    counts = {DEPTH: depth} if depth and DEPTH in generator.kinds else {}
    for position, kind in enumerate(width_kinds):
        if count := width // len(width_kinds) + (position < width % len(width_kinds)):
            counts[kind] = count
    return counts


def _make_card(recipe: Recipe, drafts: DraftJournal, counts: Mapping[str, int]) -> DataCard:
    figures = {
        kind: {
            "wanted": float(count),
            "drafts": float(sum(draft.kind == kind for draft in drafts.drafts)),
            "kept": float(len(drafts.get_accepted_tasks(kind))),
        }
        for kind, count in counts.items()
    }
    settings = {"wanted": dict(counts), "teacher": recipe.teacher.model_dump(mode="json")}
    title = f"{recipe.name}: synthesised questions"
    examples = pick_examples(drafts.list_examples())
    return DataCard(
        title, "drafts", recipe.seed, settings, drafts.get_filter_stages(), figures, examples
    )


def _select_answered(tasks: Sequence[Task]) -> list[Task]:
    """Return the questions with accepted answers. Raises UserError if there are none."""
    answered = [task for task in tasks if task.answers]
    if not answered:
        raise UserError(
            "no question has an answer, and harder questions are made from answered ones: add"
            " questions with accepted answers to tasks."
        )
    return answered


async def _make_generator(context: RunContext) -> QuestionGenerator:
    recipe, data_source = context.recipe, context.data_source
    if recipe.teacher.model is None:
        if data_source.world is None or not data_source.world.synthesis_kinds:
            raise UserError(
                "no generator of questions is configured: set teacher.model, and teacher.url or a"
                " checkpoint, or use a world that makes questions."
            )
        return WorldQuestionGenerator(
            data_source.world,
            _select_answered(data_source.train_tasks()),
            Grader(context.verdict_reward),
        )
    tasks = _select_answered(data_source.train_tasks())
    await context.open_tools()
    if not context.tools:
        raise UserError("questions are synthesised with a tool: add search to tools.")
    folder = context.folder.path / SYNTHESIS_FOLDER
    make_folder(folder)
    chat = await open_chat_model(context, recipe.teacher, folder)
    decoding = resolve_teacher_decoding(context, recipe.teacher)
    tokens_of = find_tokens(recipe.teacher)

    def make_agent(team: Team) -> TeamAgent:
        prompts = team.member_prompts(context.tools)
        members = {
            name: TeamMember(chat, prompt, decoding.temperature, decoding.truncation)
            for name, prompt in prompts.items()
        }
        return make_team_agent(context, team, members, recipe.budget, tokens_of)

    closed_book_agent = make_prompted_agent(recipe, chat, [], decoding)
    tool_agent = make_prompted_agent(recipe, chat, context.tools, decoding, tokens_of)
    grader = Grader(context.verdict_reward)
    return ModelQuestionGenerator(
        tasks,
        make_agent(DEPTH_WRITERS),
        make_agent(WIDTH_WRITERS),
        closed_book_agent,
        tool_agent,
        grader,
    )
