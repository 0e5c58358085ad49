"""The command line. Whatever loads torch is imported by the command that needs it, so that
`fieldcraft --help` answers at once."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib import resources
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fieldcraft import __version__
from fieldcraft.config.recipe import Recipe, dump_recipe
from fieldcraft.config.sections import Dtype, JudgeModel
from fieldcraft.config.stages import Sft
from fieldcraft.data.steps_io import as_trajectory, read_demonstrations
from fieldcraft.evals.tables import pairwise_table, results_table, seeds_table, tool_table
from fieldcraft.recipes.loading import check_judge, load_recipe, load_world, recipe_of_run, shipped
from fieldcraft.records.files import atomic_folder, read_json, write_json
from fieldcraft.records.trajectories import read_trajectories
from fieldcraft.runs.folder import RunFolder
from fieldcraft.terminal import (
    StageProgress,
    print_collection,
    print_mask,
    print_trajectory,
    print_trajectory_list,
)
from fieldcraft.types import Author, Task, Trajectory, UserError

app = typer.Typer(
    help="Train language models that decide for themselves when to think, act and answer.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
serve_app = typer.Typer(help="Serve what agents use over HTTP.", no_args_is_help=True)
app.add_typer(serve_app, name="serve")

STOPPED = "fieldcraft: stopped; the same command goes on where this one stopped."

RecipeName = Annotated[str, typer.Argument(help="A shipped recipe or the path of a YAML file.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...", help="Settings to change, as in seed=7 or stages.rl2.steps=3."
    ),
]
Out = Annotated[Path, typer.Option("--out", help="The folder to write.")]
Index = Annotated[Path | None, typer.Option(help="Search this index instead of the run's own.")]
SearchUrl = Annotated[str | None, typer.Option(help="Search with this server instead.")]
Dialect = Annotated[str | None, typer.Option(help="The dialect of a bare checkpoint.")]
Device = Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Where the model runs.")]
Limit = Annotated[int | None, typer.Option(min=1, help="At most this many of them.")]

SIMULATED_QUESTIONS = 400  # of a run's training questions, with neither --tasks nor --limit


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit: 0 done, 2 a mistake of the user's (in one sentence), 130 Ctrl-C."""
    # Threads that spin while they wait make a busy machine several times slower. OpenMP reads this
    # once, when torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    mistakes: list[UserError] = []
    try:
        app(args=arguments, prog_name="fieldcraft")
    except* UserError as group:  # a rollout's arrives in the group of its siblings
        mistakes += _leaves(group)
    if mistakes:
        print(f"fieldcraft: {mistakes[0]}", file=sys.stderr)
        sys.exit(2)


def _leaves(group: BaseExceptionGroup[UserError]) -> list[UserError]:
    found: list[UserError] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found


@app.callback(invoke_without_command=True)
def version(
    show: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if show:
        print(f"fieldcraft {__version__}")
        raise typer.Exit


# -- runs --------------------------------------------------------------------------------------


@app.command()
def run(
    recipe: RecipeName,
    overrides: Overrides = None,
    out: Annotated[
        Path | None, typer.Option(help="The run's folder, by default runs/RECIPE[-seedN].")
    ] = None,
) -> None:
    """Every stage of a recipe; what is done already is skipped."""
    settings = load_recipe(recipe, overrides or [])
    seed = f"-seed{settings.seed}" if settings.seed else ""
    folder = out or Path("runs", f"{settings.recipe}{seed}")
    console = Console()
    if settings.collect is not None:
        _collect(settings, folder, console)
        return
    if (folder / "report.html").exists():  # a run writes it last
        RunFolder(folder, dump_recipe(settings))
        report = read_json(folder / "report.json")
    else:
        if not (folder / "recipe.json").exists():
            _refuse_unsound(settings)
        try:
            report = _execute(settings, folder, console)
        except KeyboardInterrupt:
            print(STOPPED, file=sys.stderr)
            raise typer.Exit(130) from None
    one = folder
    if settings.seeds:
        one = folder / f"seed-{settings.seeds[0]}"
        console.print(seeds_table(report["rows"]))
    else:
        seconds = {stage["name"]: stage["seconds"] for stage in report["stages"]}
        console.print(results_table(report["evals"], seconds), tool_table(report["evals"]))
    print(f"{folder / 'report.json'}\n{folder / 'report.html'}")
    print(f"fieldcraft ask --model {shlex.quote(str(one))} {shlex.quote(_question(one))}")


def _execute(settings: Recipe, folder: Path, console: Console) -> dict[str, Any]:
    """One run, or one for every seed of the recipe."""
    if settings.seeds:
        from fieldcraft.runs.seeds import sweep

        return sweep(settings, folder, console)
    from fieldcraft.runs.run import Run

    return Run(settings, folder, console).execute()


def _collect(settings: Recipe, folder: Path, console: Console) -> None:
    """A run that has a teacher and no stages."""
    if (folder / "report.html").exists():
        RunFolder(folder, dump_recipe(settings))
    else:
        from fieldcraft.runs.collect import collect

        try:
            collect(settings, folder, console)
        except KeyboardInterrupt:
            print(STOPPED, file=sys.stderr)
            raise typer.Exit(130) from None
    print_collection(read_json(folder / "collect" / "summary.json"), console)
    for name in ("collect/demonstrations.jsonl", "collect/pairs.jsonl", "report.html"):
        print(folder / name)
    print(f"fieldcraft show {shlex.quote(str(folder))}")


def _refuse_unsound(recipe: Recipe) -> None:
    """Before a run begins, and so before its folder is made: its files and settings. What is only
    estimated refuses no run."""
    from fieldcraft.runs.check import ESTIMATED, check_recipe

    found: list[str] = []

    def report(name: str, notes: Sequence[str], problems: Sequence[str]) -> None:
        found.extend([] if name in ESTIMATED else problems)

    check_recipe(recipe, Path.cwd(), report)
    _refuse(found)


def _refuse(problems: Sequence[str]) -> None:
    """Print every problem, and exit with 2 if there is one."""
    for problem in problems:
        print(f"fieldcraft: {problem}", file=sys.stderr)
    if problems:
        raise typer.Exit(2)


def _question(run: Path) -> str:
    """A question of the run's last evaluation, to go on with."""
    with _evaluation(run, None).open(encoding="utf-8") as file:
        question: str = json.loads(file.readline())["task"]["question"]
    return question


@app.command()
def check(recipe: RecipeName, overrides: Overrides = None) -> None:
    """What would go wrong with a recipe, before it costs anything."""
    from fieldcraft.runs.check import check_recipe

    settings = load_recipe(recipe, overrides or [])
    console = Console()

    def report(name: str, notes: Sequence[str], problems: Sequence[str]) -> None:
        mark = Text("wrong ", "red") if problems else Text("fine  ", "green")
        console.print(mark + Text(f"{name}  ") + Text("; ".join(notes), "dim"), soft_wrap=True)

    _refuse(check_recipe(settings, Path.cwd(), report))


@app.command()
def recipes() -> None:
    """The recipes that come with fieldcraft."""
    table = Table.grid(padding=(0, 2))
    for name in shipped():
        text = (resources.files("fieldcraft.recipes") / f"{name}.yaml").read_text("utf-8")
        comment = takewhile(lambda line: line.startswith("#"), text.splitlines())
        first = " ".join(line.strip("# ") for line in comment).partition(". ")[0].rstrip(".")
        table.add_row(Text(name, "bold"), Text(first))
    Console().print(table)


# -- agents ------------------------------------------------------------------------------------


@app.command()
def ask(
    question: str,
    model: Annotated[Path, typer.Option(help="A run, a stage of it, or a checkpoint.")],
    index: Index = None,
    search_url: SearchUrl = None,
    dialect: Dialect = None,
    device: Device = "auto",
) -> None:
    """Watch one agent think, act and answer, greedily."""
    import asyncio

    from fieldcraft.runs.agent import find_agent
    from fieldcraft.train.model import choose_device

    agent = find_agent(model).with_options(dialect, index, search_url)
    answer = agent.start(choose_device(device))
    trajectory = asyncio.run(answer(Task("asked", question, ()), "asked"))
    print_trajectory(trajectory, Console())


@app.command()
def export(
    model: Annotated[Path, typer.Argument(help="A run, a stage of it, or a checkpoint.")],
    out: Out,
    dtype: Annotated[Dtype, typer.Option(help="The type of the weights written.")] = "bfloat16",
) -> None:
    """Write a trained model, adapters merged, as a folder that transformers and others load."""
    from fieldcraft.runs.agent import export

    _refuse_used(out)
    export(model, out, dtype)
    print(out)


@app.command("eval")
def evaluate(
    model: Annotated[
        list[Path], typer.Option(help="A run, a stage of it, or a checkpoint; repeat to compare.")
    ],
    tasks: Annotated[
        Path | None, typer.Option(help="Questions: .jsonl, .json or .parquet.")
    ] = None,
    index: Index = None,
    search_url: SearchUrl = None,
    dialect: Dialect = None,
    device: Device = "auto",
    limit: Limit = None,
    simulator: Annotated[
        bool, typer.Option("--simulator", help="How well each simulates its search instead.")
    ] = False,
    judge_url: Annotated[str | None, typer.Option(help="Also ask a model behind this url.")] = None,
    judge_model: Annotated[str | None, typer.Option(help="Its name there.")] = None,
    judge_votes: Annotated[int, typer.Option(min=1, help="Votes on every answer.")] = 3,
    out: Annotated[
        Path | None, typer.Option(help="Also write eval.json, and keep the judge's replies, here.")
    ] = None,
) -> None:
    """Grade agents on a file of questions, greedily, and compare each with the first; or, with
    --simulator, the search results that they write themselves, sampled as in training and by
    default for questions of their training."""
    from fieldcraft.data.sources import read_tasks
    from fieldcraft.evals.metrics import summarise
    from fieldcraft.evals.pairwise import against_first
    from fieldcraft.evals.run import answer_rubric, evaluate
    from fieldcraft.runs.agent import find_agent
    from fieldcraft.runs.run import open_judge
    from fieldcraft.train.model import choose_device

    console = Console()
    settings = JudgeModel(url=judge_url, model=judge_model, votes=judge_votes)
    check_judge(settings, needed=False)
    judge = open_judge(settings, None if out is None else out / "judge.sqlite")
    questions = read_tasks(tasks)[:limit] if tasks else []
    agents = {str(m): find_agent(m).with_options(dialect, index, search_url) for m in model}
    if simulator:
        _evaluate_simulators(agents, questions or _own_questions(agents, limit), device, out)
        return
    if tasks is None:
        raise UserError("there are no questions to grade: give a file with --tasks.")
    split = next(iter(agents.values())).recipe.evaluation.leading
    done, found = {}, {}
    for name, agent in agents.items():
        began = time.perf_counter()
        answer = agent.start(choose_device(device))
        concurrency = agent.recipe.evaluation.concurrency
        with StageProgress(name, len(questions), console) as progress:
            done[name] = evaluate(questions, answer, answer_rubric(judge), concurrency, progress)
        found[name] = summarise(done[name], split) | {"seconds": time.perf_counter() - began}
    compared = against_first(done, split)
    console.print(results_table(found, {}), tool_table(found))
    if compared:
        console.print(pairwise_table(compared))
    if out is not None:
        record = {"tasks": str(tasks), "n": len(questions), "evals": found, "pairwise": compared}
        record |= {"judge": settings.model_dump()} if judge else {}
        write_json(out / "eval.json", record)
        print(out / "eval.json")


def _own_questions(agents: Mapping[str, Any], limit: int | None) -> list[Task]:
    """Of the training of the first agent."""
    first = next(iter(agents.values()))
    if first.inputs is None:
        raise UserError("there are no questions to simulate for: give a file with --tasks.")
    questions: list[Task] = first.inputs.train_tasks()[: limit or SIMULATED_QUESTIONS]
    return questions


def _evaluate_simulators(
    agents: Mapping[str, Any], questions: Sequence[Task], device: str, out: Path | None
) -> None:
    from fieldcraft.evals.fidelity import fidelity_table
    from fieldcraft.runs.agent import measure_simulator
    from fieldcraft.train.model import choose_device

    console = Console()
    found = {
        name: measure_simulator(agent, questions, choose_device(device), name, console)
        for name, agent in agents.items()
    }
    console.print(fidelity_table(found))
    if out is not None:
        write_json(out / "simulator.json", {"n": len(questions), "simulators": found})
        print(out / "simulator.json")


@app.command()
def show(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    stage: Annotated[str | None, typer.Option(help="By default the last one evaluated.")] = None,
    wrong: Annotated[bool, typer.Option("--wrong", help="Only wrong answers.")] = False,
    limit: Limit = None,
    number: Annotated[int | None, typer.Option(min=0, help="One of the list, in full.")] = None,
    mask: Annotated[bool, typer.Option("--mask", help="Which tokens its stage trains.")] = False,
    html: Annotated[bool, typer.Option("--html", help="Print where the report is.")] = False,
) -> None:
    """Trajectories of a run's evaluations: a list, or one in full."""
    if html:
        if not (run / "report.html").exists():
            raise UserError(f"{run} has no report yet: let 'fieldcraft run' go on.")
        print(run / "report.html")
        return
    console = Console()
    collected = recipe_of_run(run).collect is not None
    if collected:
        if mask or stage is not None:
            raise UserError(f"{run} holds demonstrations, which no stage has trained on yet.")
        found = _collected(run, "rejected" if wrong else "demonstrations")
    else:
        file = _evaluation(run, stage)
        found = read_trajectories(file)
        if wrong:
            found = [t for t in found if t.rewards.get("em") == 0]
    found = found[:limit]
    if number is not None and number >= len(found):
        raise UserError(f"there are {len(found)} trajectories to show, counted from 0.")
    if mask:
        _print_mask(run, file.stem, found[number or 0], console)
    elif number is not None:
        print_trajectory(found[number], console)
    else:
        print_trajectory_list(found, console)


def _print_mask(run: Path, stage: str, trajectory: Any, console: Console) -> None:
    from fieldcraft.train.model import load_tokenizer

    recipe = recipe_of_run(run)
    settings = recipe.stages.get(stage)
    trained = settings.train_on if isinstance(settings, Sft) else ("policy",)
    first = recipe.model or run / "start" / "model"
    tokenizer = load_tokenizer(run / stage / "model" if settings else first)
    print_mask(trajectory, tokenizer, {Author(author) for author in trained}, console)


def _collected(run: Path, name: str) -> list[Trajectory]:
    """Demonstrations that were kept, or rejected attempts with their reasons."""
    file = run / "collect" / f"{name}.jsonl"
    if not file.exists():
        raise UserError(f"{run} has collected nothing yet: let 'fieldcraft run' go on.")
    return [as_trajectory(task, steps) for task, steps in read_demonstrations(file)]


def _evaluation(run: Path, stage: str | None) -> Path:
    """The trajectories of a stage's evaluation, of the last one there is by default."""
    order = ["base", "workflow", *recipe_of_run(run).stages]
    files = {name: run / "evaluations" / f"{name}.jsonl" for name in order}
    found = [name for name, file in files.items() if file.exists()]
    if not found:
        raise UserError(f"{run} has no evaluation yet: let 'fieldcraft run' go on.")
    if stage is not None and stage not in found:
        raise UserError(f"{run} has no evaluation of '{stage}': it has {', '.join(found)}.")
    return files[stage or found[-1]]


# -- worlds, indexes, servers ------------------------------------------------------------------


@app.command()
def world(
    name: Annotated[str, typer.Argument(help="A world's name, or module:Name of your own.")],
    out: Out,
    overrides: Overrides = None,
    recipe: Annotated[
        str, typer.Option(help="Whose settings it has, if that is its world.")
    ] = "autocoa-mini",
    model: Annotated[bool, typer.Option("--model", help="Also a random tiny model.")] = False,
) -> None:
    """Write a synthetic world as files: what is searched, and questions to train and to test on."""
    from fieldcraft.runs.inputs import make_inputs

    _refuse_used(out)
    inputs = make_inputs(load_world(name, recipe, overrides or []))
    with atomic_folder(out) as draft:
        inputs.write_world(draft)
        if model:
            inputs.write_model(draft / "model")
    for path in sorted(out.iterdir()):
        print(path)


def _refuse_used(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists and is not empty: choose another folder with --out.")


@app.command("index")
def build(
    corpus: Annotated[Path, typer.Argument(help="Passages, or a HotpotQA or MuSiQue file.")],
    out: Out,
    k1: Annotated[float, typer.Option(help="How slowly repeated words saturate.")] = 0.9,
    b: Annotated[float, typer.Option(help="How much long passages are held back, 0 to 1.")] = 0.4,
    encoder: Annotated[
        str | None, typer.Option(help="Search by vectors of this model: a folder or a hub name.")
    ] = None,
    ranking: Annotated[
        Literal["bm25", "dense", "hybrid"] | None,
        typer.Option(help="By default hybrid with an encoder, bm25 without."),
    ] = None,
    hnsw: Annotated[bool, typer.Option("--hnsw", help="A graph, for millions of vectors.")] = False,
) -> None:
    """Build a search index: BM25, vectors of an encoder, or both."""
    from fieldcraft.data.sources import ensure_corpus
    from fieldcraft.tools.search.index import build_index

    with tempfile.TemporaryDirectory() as draft:
        passages = ensure_corpus(corpus, Path(draft, "corpus.jsonl"))
        index = build_index(passages, out, k1, b, ranking=ranking, encoder=encoder, hnsw=hnsw)
    print(f"{out}: {len(index)} passages")


@serve_app.command("search")
def serve(
    index: Annotated[Path, typer.Option(help="A folder that 'fieldcraft index' wrote.")],
    host: str = "127.0.0.1",
    port: int = 8000,
) -> None:
    """A search server with the interfaces of Search-R1 and AutoCoA: POST /retrieve."""
    from fieldcraft.tools.search.server import serve_search

    serve_search(index, host, port)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def bench(
    context: typer.Context, name: Annotated[str, typer.Argument(help="As in engine.")]
) -> None:
    """A comparison of bench/, with its own options behind its name; from a checkout only."""
    folder = Path(__file__).parents[2] / "bench"
    scripts = {script.stem: script for script in sorted(folder.glob("*.py"))}
    if not scripts:
        raise UserError("bench/ is not part of the installed package: run it from a checkout.")
    if name not in scripts:
        raise UserError(f"there is no comparison '{name}': use one of {', '.join(scripts)}.")
    raise typer.Exit(subprocess.call([sys.executable, str(scripts[name]), *context.args]))
