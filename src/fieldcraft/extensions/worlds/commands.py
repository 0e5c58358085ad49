"""The command `fieldcraft world`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fieldcraft.cli.app import (
    AllowOption,
    OverridesArgument,
    announce_imports,
    app,
    require_empty_folder,
)
from fieldcraft.config.recipe import Recipe
from fieldcraft.recipes.loading import load_world_recipe
from fieldcraft.records.files import atomic_folder
from fieldcraft.terminal.console import print_line
from fieldcraft.types import UserError

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 8000


@app.command()
def world(
    name: Annotated[str, typer.Argument(help="Name of a world, or module:Name of a custom one.")],
    out: Annotated[Path | None, typer.Option("--out", help="Folder to write.")] = None,
    overrides: OverridesArgument = None,
    settings_from: Annotated[
        str, typer.Option(help="Take the world settings of this recipe, if it has this world.")
    ] = "autocoa-mini",
    with_model: Annotated[
        bool, typer.Option("--with-model", help="Also write a random tiny model.")
    ] = False,
    serve: Annotated[
        bool, typer.Option("--serve", help="Serve the world as a website with a search page.")
    ] = False,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on.", show_default=DEFAULT_HOST)
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(help="Port to listen on; 0 takes a free one.", show_default=str(DEFAULT_PORT)),
    ] = None,
    allow: AllowOption = None,
) -> None:
    """Write a synthetic world as files: passages to search, training and test questions.

    With --serve, serve it as a website instead.
    """
    if (out is None) != serve:
        raise UserError("give either --out FOLDER or --serve.")
    if serve and with_model:
        raise UserError("--with-model writes a model into a folder: leave it out, or give --out.")
    if not serve and (host is not None or port is not None):
        raise UserError("--host and --port are for a server: leave them out, or give --serve.")
    settings = load_world_recipe(name, settings_from, overrides or [])
    if out is None:
        _serve_world(settings, host or DEFAULT_HOST, DEFAULT_PORT if port is None else port)
    else:
        _write_world(settings, out, with_model)


def _serve_world(recipe: Recipe, host: str, port: int) -> None:
    from fieldcraft.data.world import make_world
    from fieldcraft.extensions.worlds.site import serve_site

    assert recipe.world is not None, "load_world_recipe ensures a world"
    serve_site(make_world(recipe.world.name, recipe.world.settings, recipe.seed), host, port)


def _write_world(recipe: Recipe, out: Path, with_model: bool) -> None:
    from fieldcraft.runs.inputs import make_data_source

    require_empty_folder(out)
    inputs = make_data_source(recipe)
    if with_model:
        with announce_imports():
            from fieldcraft.runs.first_model import write_first_model
    with atomic_folder(out) as draft:
        inputs.write_files(draft)
        if with_model:
            write_first_model(inputs, draft / "model")
    for line in (*inputs.warnings(), *inputs.corpus_warnings(), *sorted(out.iterdir())):
        print_line(line)
