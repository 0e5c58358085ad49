"""The commands `fieldcraft synthesise` and `fieldcraft prepare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fieldcraft.cli.app import (
    AllowOption,
    MaxLeftOutOption,
    OutOption,
    OverridesArgument,
    RecipeArgument,
    advise_options,
    announce_imports,
    app,
    require_empty_folder,
)
from fieldcraft.recipes.loading import load_recipe
from fieldcraft.records.events import EventBus
from fieldcraft.records.files import require_writable
from fieldcraft.runs.resume import require_same_recipe
from fieldcraft.terminal.console import CleanConsole, print_line
from fieldcraft.terminal.progress import TerminalReporter

_QUESTIONS_ADVICE = "give files of questions with answers, and those of passages as --corpus FILE"
_FILE_ADVICE = {
    "tasks": "give it without --corpus, which takes passages",
    "corpus": "give passages as --corpus FILE, and add golden_answers to questions",
} | dict.fromkeys(("demonstrations", "pairs", "relevance"), _QUESTIONS_ADVICE)


@app.command()
def synthesise(
    recipe: RecipeArgument,
    overrides: OverridesArgument = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write. Default: runs/RECIPE-questions.")
    ] = None,
    depth: Annotated[int, typer.Option(min=0, help="Number of questions with one more hop.")] = 100,
    width: Annotated[
        int, typer.Option(min=0, help="Number of questions joined from several.")
    ] = 100,
    allow: AllowOption = None,
) -> None:
    """Make harder versions of a recipe's questions, by its world or by its teacher's model."""
    settings = load_recipe(recipe, overrides or [])
    folder = out or Path("runs", f"{settings.name}-questions")
    require_same_recipe(folder, settings)
    require_writable(folder)
    with announce_imports():
        from fieldcraft.extensions.curation.synthesis import synthesise_questions

    events = EventBus([TerminalReporter(CleanConsole())])
    questions_folder = synthesise_questions(settings, folder, depth, width, events)
    for path in (questions_folder / "tasks.jsonl", questions_folder / "card.html"):
        if path.exists():  # without its extension, there is no page
            print_line(path)


@app.command()
def prepare(
    questions: Annotated[
        list[Path], typer.Argument(help="Files, or hub: names, of questions with answers.")
    ],
    out: OutOption,
    corpus: Annotated[
        list[Path] | None, typer.Option(help="More passages: a file or a hub: name. Repeatable.")
    ] = None,
    heldout: Annotated[int, typer.Option(min=1, help="Number of questions to hold out.")] = 400,
    max_words: Annotated[int, typer.Option(min=1, help="Maximum words of a passage.")] = 100,
    seed: Annotated[int, typer.Option(help="Seed of the held-out questions.")] = 0,
    max_left_out: MaxLeftOutOption = 0.1,
) -> None:
    """Write the questions, held-out questions and short passages of data sets for a run."""
    from fieldcraft.extensions.curation.question_files import (
        QuestionFileSettings,
        write_question_files,
    )

    require_empty_folder(out)
    require_writable(out)
    settings = QuestionFileSettings(max_words, heldout, seed, max_left_out)
    with advise_options(**_FILE_ADVICE):
        summary = write_question_files(questions, corpus or [], out, settings)
    for line in summary["warnings"]:
        print_line(line)
    for reason, count in summary["left_out"].items():
        print_line(f"{count} questions left out: {reason}")
    counts = f"{summary['train']} questions, {summary['heldout']} held out"
    print_line(f"{out}: {counts}, {summary['passages']} passages")
