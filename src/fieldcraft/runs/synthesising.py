"""Synthesis of questions for a recipe, by its world or its teacher's model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fieldcraft.config.recipe import Recipe
from fieldcraft.data.funnel import DataCard, pick_examples
from fieldcraft.data.grading import Grader
from fieldcraft.data.synthesis import (
    DEPTH,
    WIDTH_KINDS,
    DraftJournal,
    ModelQuestionGenerator,
    QuestionGenerator,
    WorldQuestionGenerator,
    synthesise,
)
from fieldcraft.data.tasks import write_tasks
from fieldcraft.extensions.agents.question_writers import DEPTH_WRITERS, WIDTH_WRITERS
from fieldcraft.extensions.agents.team import Team, TeamAgent, TeamMember
from fieldcraft.records.events import EventBus, JobsCompleted, track_phase
from fieldcraft.records.files import make_folder
from fieldcraft.runs.context import RunContext, open_run_context
from fieldcraft.runs.event_loop import run_async
from fieldcraft.runs.filtering import write_data_card
from fieldcraft.runs.inputs import WorldData
from fieldcraft.runs.teachers import (
    make_prompted_agent,
    make_team_agent,
    open_chat_model,
    resolve_teacher_decoding,
)
from fieldcraft.types import UserError

SYNTHESIS_FOLDER = "synthesis"


def synthesise_questions(
    recipe: Recipe, out: Path, depth: int, width: int, events: EventBus
) -> Path:
    """Synthesise `depth` and `width` questions, or the remaining ones, and return the folder with
    `tasks.jsonl`, `card.json` and `card.html`.

    Raises UserError if neither a world nor a model can synthesise them, or a model does not
    respond.
    """
    return run_async(_synthesise(recipe, out, depth, width, events))


async def _synthesise(recipe: Recipe, out: Path, depth: int, width: int, events: EventBus) -> Path:
    async with open_run_context(recipe, out, events) as context:
        generator = await _make_generator(context)
        folder = context.folder.path / SYNTHESIS_FOLDER
        drafts = DraftJournal(folder / "drafts.jsonl")
        counts = _count_by_kind(generator, depth, width)

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
    counts = {DEPTH: depth} if depth else {}
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


async def _make_generator(context: RunContext) -> QuestionGenerator:
    recipe, data_source = context.recipe, context.data_source
    tasks = [task for task in data_source.train_tasks() if task.answers]
    if recipe.teacher.model is None:
        if not isinstance(data_source, WorldData) or not data_source.world.synthesis_kinds:
            raise UserError(
                "no generator of questions is configured: set teacher.model, and teacher.url or a"
                " checkpoint, or use a world that makes questions."
            )
        return WorldQuestionGenerator(data_source.world, tasks, Grader(context.verdict_reward))
    await context.open_tools()
    if not context.tools:
        raise UserError("questions are synthesised with a tool: add search to tools.")
    folder = context.folder.path / SYNTHESIS_FOLDER
    make_folder(folder)
    chat = await open_chat_model(context, recipe.teacher, folder)
    decoding = resolve_teacher_decoding(context, recipe.teacher)

    def make_agent(team: Team) -> TeamAgent:
        prompts = team.member_prompts(context.tools)
        members = {
            name: TeamMember(chat, prompt, decoding.temperature, decoding.truncation)
            for name, prompt in prompts.items()
        }
        return make_team_agent(context, team, members, context.recipe.budget)

    closed_book_agent = make_prompted_agent(recipe, chat, [], decoding)
    tool_agent = make_prompted_agent(recipe, chat, context.tools, decoding)
    grader = Grader(context.verdict_reward)
    return ModelQuestionGenerator(
        tasks,
        make_agent(DEPTH_WRITERS),
        make_agent(WIDTH_WRITERS),
        closed_book_agent,
        tool_agent,
        grader,
    )
