"""Questions that are synthesised for a recipe: by its world, or by the model of its teacher."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fieldcraft.agents.question_team import DEEPER, JOINING
from fieldcraft.agents.team import Seat, Seated, Team
from fieldcraft.config.recipe import Recipe
from fieldcraft.data.funnel import Card, few
from fieldcraft.data.grading import Grader
from fieldcraft.data.sources import write_tasks
from fieldcraft.data.synthesis import DEPTH, WIDTH, ChatMaker, Drafts, Maker, WorldMaker, synthesise
from fieldcraft.evals.cards import write_card
from fieldcraft.records.events import Events, JobsDone, during
from fieldcraft.records.files import make_folder
from fieldcraft.runs.context import Context, open_context
from fieldcraft.runs.inputs import WorldInputs
from fieldcraft.runs.loop import run_async
from fieldcraft.runs.teachers import make_chat, make_prompted, make_seated, teacher_sampling
from fieldcraft.types import UserError

FOLDER = "synthesis"


def synthesise_for(recipe: Recipe, out: Path, depth: int, width: int, events: Events) -> Path:
    """Make `depth` and `width` questions, or what is left of them, and return the folder with
    `tasks.jsonl`, `card.json` and `card.html`.

    Raises UserError where neither a world nor a model can make them, or a model does not answer.
    """
    return run_async(_synthesise(recipe, out, depth, width, events))


async def _synthesise(recipe: Recipe, out: Path, depth: int, width: int, events: Events) -> Path:
    async with open_context(recipe, out, events) as context:
        maker = await _maker(context)
        folder = context.folder.path / FOLDER
        drafts = Drafts(folder / "drafts.jsonl")
        wanted = _wanted(maker, depth, width)

        def on_kept(kept: int) -> None:
            events(JobsDone(FOLDER, kept, f"of {len(drafts.found)} drafts"))

        with during(events, FOLDER, sum(wanted.values()), "jobs"):
            await synthesise(
                maker, wanted, recipe.seed, drafts, recipe.teacher.concurrency, on_kept
            )
        kept = [task for kind in wanted for task in drafts.kept(kind)[: wanted[kind]]]
        if not kept:
            raise UserError(
                f"none of {len(drafts.found)} drafts became a question, see {drafts.path}: give"
                " other questions, or another model."
            )
        write_tasks(kept, folder / "tasks.jsonl")
        write_card(_card(recipe, drafts, wanted), folder)
    return folder


def _wanted(maker: Maker, depth: int, width: int) -> dict[str, int]:
    """Return the number of questions of each kind: those in width in equal parts."""
    joins = [kind for kind in WIDTH if kind in maker.kinds]
    found = {DEPTH: depth} if depth else {}
    for place, kind in enumerate(joins):
        if count := width // len(joins) + (place < width % len(joins)):
            found[kind] = count
    return found


def _card(recipe: Recipe, drafts: Drafts, wanted: Mapping[str, int]) -> Card:
    figures = {
        kind: {
            "wanted": float(count),
            "drafts": float(sum(draft.kind == kind for draft in drafts.found)),
            "kept": float(len(drafts.kept(kind))),
        }
        for kind, count in wanted.items()
    }
    settings = {"wanted": dict(wanted), "teacher": recipe.teacher.model_dump(mode="json")}
    title = f"{recipe.recipe}: synthesised questions"
    examples = few(drafts.examples())
    return Card(title, "drafts", recipe.seed, settings, drafts.cuts(), figures, examples)


async def _maker(context: Context) -> Maker:
    recipe, inputs = context.recipe, context.inputs
    tasks = [task for task in inputs.train_tasks() if task.answers]
    if recipe.teacher.model is None:
        if not isinstance(inputs, WorldInputs) or not inputs.world.synthesised:
            raise UserError(
                "nobody can synthesise questions: set teacher.model, and teacher.url or a"
                " checkpoint, or use a world that makes questions."
            )
        return WorldMaker(inputs.world, tasks, Grader(context.correct))
    await context.open_tools()
    if not context.tools:
        raise UserError("questions are synthesised with a tool: add search to tools.")
    folder = context.folder.path / FOLDER
    make_folder(folder)
    chat = await make_chat(context, recipe.teacher, folder)
    how = teacher_sampling(context, recipe.teacher)

    def seated(team: Team) -> Seated:
        prompts = team.seat_prompts(context.tools)
        seats = {
            name: Seat(chat, prompt, how.temperature, how.truncation)
            for name, prompt in prompts.items()
        }
        return make_seated(context, team, seats, context.recipe.budget)

    closed = make_prompted(recipe, chat, [], how)
    acting = make_prompted(recipe, chat, context.tools, how)
    grader = Grader(context.correct)
    return ChatMaker(tasks, seated(DEEPER), seated(JOINING), closed, acting, grader)
