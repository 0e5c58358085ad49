"""The command `fieldcraft synthesise`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fieldcraft.cli.app import AllowOption, OverridesArgument, RecipeArgument, announce_imports, app
from fieldcraft.recipes.loading import load_recipe
from fieldcraft.records.events import EventBus
from fieldcraft.records.files import require_writable
from fieldcraft.runs.resume import require_same_recipe
from fieldcraft.terminal.console import CleanConsole, print_line
from fieldcraft.terminal.progress import TerminalReporter


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
