"""Commands about data and servers: world, synthesise, convert, index, serve, bench."""

from __future__ import annotations

import runpy
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Literal

import typer

from fieldcraft.cli.app import (
    AllowOption,
    HostOption,
    MaxLeftOutOption,
    OutOption,
    OverridesArgument,
    PortOption,
    RecipeArgument,
    announce_imports,
    app,
    require_empty_folder,
    serve_app,
)
from fieldcraft.config.recipe import Recipe
from fieldcraft.recipes.loading import load_recipe, load_world_recipe
from fieldcraft.records.events import EventBus
from fieldcraft.records.files import atomic_folder, require_writable
from fieldcraft.runs.resume import require_same_recipe
from fieldcraft.terminal.console import CleanConsole, print_line
from fieldcraft.terminal.progress import TerminalReporter
from fieldcraft.types import UserError


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
    host: HostOption = "127.0.0.1",
    port: PortOption = 8000,
    allow: AllowOption = None,
) -> None:
    """Write a synthetic world as files: passages to search, training and test questions.

    With --serve, serve it as a website instead.
    """
    if (out is None) != serve:
        raise UserError("give either --out FOLDER or --serve.")
    settings = load_world_recipe(name, settings_from, overrides or [])
    if out is None:
        _serve_world(settings, host, port)
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
        from fieldcraft.runs.synthesising import synthesise_questions

    events = EventBus([TerminalReporter(CleanConsole())])
    questions_folder = synthesise_questions(settings, folder, depth, width, events)
    for path in (questions_folder / "tasks.jsonl", questions_folder / "card.html"):
        if path.exists():  # without its extension, there is no page
            print_line(path)


@app.command()
def convert(
    source: Annotated[Path, typer.Argument(help="A file, or a folder of datasets.")],
    to: Annotated[
        str,
        typer.Option(
            help="Format to write: openai, trl, trl-prompt, sharegpt, afm, autocoa, steps,"
            " questions or verl."
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", help="File (.jsonl, .json, .parquet) or folder to write.")
    ],
    max_left_out: MaxLeftOutOption = 0.1,
) -> None:
    """Convert demonstrations or questions to another format."""
    from fieldcraft.data.formats import convert as formats

    if not out.suffix:
        require_empty_folder(out)
    require_writable(out)
    written, reasons = formats.convert(source, to, out, max_left_out)
    for reason, count in reasons.most_common():
        print_line(f"{count} left out: {reason}")
    print_line(f"{out}: {written} written")


@app.command("index")
def index_corpus(
    corpus: Annotated[Path, typer.Argument(help="File of passages, of HotpotQA or of MuSiQue.")],
    out: OutOption,
    encoder: Annotated[
        str | None,
        typer.Option(help="Search by vectors of this model, a folder or a name on the hub."),
    ] = None,
    ranking: Annotated[
        Literal["bm25", "dense", "hybrid"] | None,
        typer.Option(help="Ranking. Default: hybrid with an encoder, bm25 without."),
    ] = None,
    hnsw: Annotated[
        bool,
        typer.Option(
            "--hnsw", help="Build an HNSW graph of the vectors, for millions of passages."
        ),
    ] = False,
    max_left_out: MaxLeftOutOption = 0.1,
) -> None:
    """Build a search index: BM25, vectors of an encoder, or both."""
    from fieldcraft.data.corpora import CorpusFile
    from fieldcraft.extensions.search.index import build_index

    require_writable(out)
    # An encoder requires torch.
    with tempfile.TemporaryDirectory() as draft, announce_imports() if encoder else nullcontext():
        source = CorpusFile(corpus, max_left_out)
        for line in source.warnings():
            print_line(line)
        passages = source.ensure_passages(Path(draft, "corpus.jsonl"))
        index = build_index(passages, out, ranking=ranking, encoder=encoder, approximate=hnsw)
    print_line(f"{out}: {len(index)} passages")


@serve_app.command("search")
def serve_index(
    index: Annotated[Path, typer.Option(help="Folder written by 'fieldcraft index'.")],
    host: HostOption = "127.0.0.1",
    port: PortOption = 8000,
    allow: AllowOption = None,
) -> None:
    """Serve a search index with the interfaces of Search-R1 and AutoCoA: POST /retrieve."""
    from fieldcraft.extensions.search.index import require_trusted_index
    from fieldcraft.extensions.search.server import serve_search

    require_trusted_index(index)

    if (index / "manifest.json").exists():  # slow with an encoder
        print_line(f"Opening {index} ...", file=sys.stderr)
    serve_search(index, host, port)


@serve_app.command("sandbox")
def serve_code_sandbox(
    host: HostOption = "127.0.0.1",
    port: PortOption = 8080,
    concurrency: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum number of running programs. Default: four per core."),
    ] = None,
    queue: Annotated[int, typer.Option(min=0, help="Maximum number of waiting programs.")] = 512,
    allow_missing_layer: Annotated[
        list[str] | None, typer.Option(help="Run without this layer of isolation; repeatable.")
    ] = None,
    memory_mb: Annotated[
        int, typer.Option(min=1, help="Maximum memory of a process of a program.")
    ] = 512,
) -> None:
    """Serve a sandbox with the interface of SandboxFusion, Python only: POST /run_code."""
    from fieldcraft.extensions.sandbox.server import serve_sandbox

    serve_sandbox(host, port, concurrency, queue, allow_missing_layer or [], memory_mb)


@app.command(
    context_settings={
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "help_option_names": [],  # `bench NAME --help` is for the script
    }
)
def bench(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of a script in bench/, for example engine.")],
) -> None:
    """Run a script of bench/, with its options after its name; only from a checkout."""
    if name == "--help":
        print_line(context.get_help())
        return
    folder = Path(__file__).parents[3] / "bench"
    scripts = {script.stem: script for script in sorted(folder.glob("[!_]*.py"))}
    if not scripts:
        raise UserError("bench/ is not part of the installed package: run it from a checkout.")
    if name not in scripts:
        raise UserError(f"bench/ has no script '{name}': use one of {', '.join(scripts)}.")
    print_line(f"Running bench/{name}.py ...", file=sys.stderr)
    sys.argv = [str(scripts[name]), *context.args]
    sys.path.insert(0, str(folder))  # scripts share modules, as when Python runs them
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except ModuleNotFoundError as error:
        raise UserError(
            f"bench/{name}.py needs the package '{error.name}': install the requirements"
            " in the first lines of the script."
        ) from error
