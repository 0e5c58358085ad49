"""Commands about agents: ask, export, eval."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fieldcraft.cli.app import (
    Allow,
    Device,
    Dialect,
    Index,
    Limit,
    Out,
    SearchUrl,
    app,
    loading,
    refuse_used,
)
from fieldcraft.cli.sampling import From, MinP, Temperature, TopK, TopP, given
from fieldcraft.config.addresses import refuse_secret
from fieldcraft.config.names import Kind, require
from fieldcraft.config.sections import Dtype, JudgeModel
from fieldcraft.evals.tables import detail_tables, pairwise_table, results_table
from fieldcraft.hub.push import push_folder, target_of
from fieldcraft.records.files import refuse_unwritable, write_json
from fieldcraft.runs.folder import find_model, find_part
from fieldcraft.runs.loop import run_async
from fieldcraft.terminal.console import CleanConsole, say
from fieldcraft.terminal.progress import TerminalSink
from fieldcraft.terminal.trajectories import print_trajectory
from fieldcraft.types import Task, UserError

SIMULATED_QUESTIONS = 400  # of a run's training questions, with neither --tasks nor --limit


@app.command()
def ask(
    question: str,
    model: Annotated[Path, typer.Option(help="A run, a stage, a checkpoint or a name on the hub.")],
    index: Index = None,
    search_url: SearchUrl = None,
    dialect: Dialect = None,
    device: Device = "auto",
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    sampling: From = None,
    seed: Annotated[int, typer.Option(help="Of the samples.")] = 0,
    allow: Allow = None,
) -> None:
    """Watch one agent think, act and answer; greedily, unless an option says otherwise."""
    if not question.strip():
        raise UserError("the question is empty: write one, in quotation marks.")
    check_agents([model], dialect, index, search_url)
    with loading():
        from fieldcraft.runs.agent import find_agent

    agent = find_agent(model).with_options(dialect, index, search_url, device)
    keys = given(temperature, top_k, top_p, min_p, sampling)
    trajectory = agent.ask(question, seed=seed, **keys)
    print_trajectory(trajectory, CleanConsole())


Push = Annotated[str | None, typer.Option(help="Also send it to the hub, as org/name.")]
Private = Annotated[bool, typer.Option("--private", help="A new model there is private.")]


@app.command()
def export(
    model: Annotated[
        Path, typer.Argument(help="A run, a stage, a checkpoint or a name on the hub.")
    ],
    out: Out,
    dtype: Annotated[Dtype, typer.Option(help="The type of the weights written.")] = "bfloat16",
    push: Push = None,
    private: Private = False,
    allow: Allow = None,
) -> None:
    """Write a trained model, adapters merged, as a folder that transformers and others load."""
    refuse_used(out)
    target = None if push is None else target_of(push)
    from fieldcraft.runs.trust import require_trust

    require_trust(*(find_part(model) or find_model(model)))
    with loading():
        from fieldcraft.runs.exporting import export

    export(model, out, dtype)
    say(out)
    if target is not None:
        say(push_folder(out, target, "private" if private else "public"))


Models = Annotated[
    list[Path], typer.Option(help="A run, a stage of it, or a checkpoint; repeat to compare.")
]
Questions = Annotated[
    Path | None, typer.Option(help="A file of questions, as your-data.md has them.")
]
MaxLeftOut = Annotated[
    float, typer.Option(min=0, max=1, help="The share of questions that may be unreadable.")
]
Tools = Annotated[
    list[str] | None,
    typer.Option(help="Offer this tool in place of its own, as in search or my_tools:find."),
]
Simulator = Annotated[
    bool, typer.Option("--simulator", help="How well each simulates its search instead.")
]
Samples = Annotated[
    int | None, typer.Option(min=1, help="Samples of each question, for avg@n and pass@k.")
]
Into = Annotated[
    Path | None, typer.Option(help="Also write eval.json, and keep the judge's replies, here.")
]


@app.command("eval")
def evaluate(
    model: Models,
    tasks: Questions = None,
    index: Index = None,
    search_url: SearchUrl = None,
    tool: Tools = None,
    dialect: Dialect = None,
    device: Device = "auto",
    limit: Limit = None,
    simulator: Simulator = False,
    judge_url: Annotated[str | None, typer.Option(help="Also ask a model behind this url.")] = None,
    judge_model: Annotated[str | None, typer.Option(help="Its name there.")] = None,
    judge_votes: Annotated[int, typer.Option(min=1, help="Votes on every answer.")] = 3,
    samples: Samples = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    sampling: From = None,
    max_left_out: MaxLeftOut = 0.1,
    out: Into = None,
    allow: Allow = None,
) -> None:
    """Grade agents on a file of questions and compare each with the first; or, with --simulator,
    the search results that they write themselves, sampled as in training and by default for
    questions of their training."""
    settings = JudgeModel(url=judge_url, model=judge_model, votes=judge_votes)
    if (judge_url is None) != (judge_model is None):
        raise UserError("a judge needs both a url and a model: give --judge-url and --judge-model.")
    refuse_secret("judge.url", judge_url)
    if out is not None:
        refuse_unwritable(out)
    if tasks is None and not simulator:
        raise UserError("there are no questions to grade: give a file with --tasks.")
    questions = _questions(tasks, max_left_out)[:limit] if tasks else []
    check_agents(model, dialect, index, search_url)
    with loading():
        from fieldcraft.runs.agent import find_agent
        from fieldcraft.runs.build import open_judge

    keys = given(temperature, top_k, top_p, min_p, sampling)
    keys |= {} if samples is None else {"samples": samples}
    judge = run_async(open_judge(settings, None if out is None else out / "judge.sqlite"))
    agents = {
        str(m): find_agent(m)
        .with_options(dialect, index, search_url, device)
        .offering(tool or ())
        .sampling(**keys)
        for m in model
    }
    if simulator:
        _evaluate_simulators(agents, questions or _own_questions(agents, limit), out)
        return
    graded = _graded(agents, questions, judge)
    if out is not None:
        record = {"tasks": str(tasks), "n": len(questions)} | graded
        record |= {"judge": settings.model_dump()} if judge else {}
        write_json(out / "eval.json", record)
    _print_graded(graded)
    if out is not None:
        say(out / "eval.json")


def _questions(file: Path, max_left_out: float) -> list[Task]:
    """Return the questions of a file; the reasons for which others are left out are printed."""
    from fieldcraft.data.sources import read_questions, with_source

    read = read_questions(file, max_left_out)
    for line in read.remarks(file):
        say(line)
    return with_source(read.tasks, file)


def _graded(agents: Mapping[str, Any], questions: Sequence[Task], judge: Any) -> dict[str, Any]:
    """Answer and grade the questions with every agent, and compare each agent with the first."""
    from fieldcraft.evals.metrics import summarise
    from fieldcraft.evals.pairwise import against_first
    from fieldcraft.records.events import nobody

    split = next(iter(agents.values())).recipe.evaluation.leading
    done, found = {}, {}
    terminal = TerminalSink(CleanConsole())
    for name, agent in agents.items():
        began = time.perf_counter()
        done[name] = run_async(agent.answer(questions, judge, name, terminal))
        found[name] = summarise(done[name], split) | {
            "seconds": time.perf_counter() - began,
            "sampling": agent.decoding(nobody).as_record(),
        }
    return {"evals": found, "pairwise": against_first(done, split)}


def _print_graded(graded: Mapping[str, Any]) -> None:
    console = CleanConsole()
    console.print(results_table(graded["evals"], {}), *detail_tables(graded["evals"]))
    if graded["pairwise"]:
        console.print(pairwise_table(graded["pairwise"]))


def check_agents(
    models: Sequence[Path], dialect: str | None, index: Path | None, search_url: str | None
) -> None:
    """Raise UserError for whatever can be wrong about the agents that needs no model to see."""
    from fieldcraft.runs.trust import require_trust
    from fieldcraft.tools.search.index import require_one_search

    for model in models:
        require_trust(*find_model(model))
    refuse_secret("search.url", search_url)
    if dialect is not None:
        require(Kind.DIALECT, dialect)
    require_one_search(index, search_url)


def _own_questions(agents: Mapping[str, Any], limit: int | None) -> list[Task]:
    """Return questions of the training of the first agent."""
    first = next(iter(agents.values()))
    questions: list[Task] = [] if first.inputs is None else first.inputs.train_tasks()
    if not questions:
        raise UserError("there are no questions to simulate for: give a file with --tasks.")
    return questions[: limit or SIMULATED_QUESTIONS]


def _evaluate_simulators(
    agents: Mapping[str, Any], questions: Sequence[Task], out: Path | None
) -> None:
    from fieldcraft.evals.fidelity import fidelity_table
    from fieldcraft.runs.simulating import measure_simulator

    console = CleanConsole()
    terminal = TerminalSink(console)
    found = {
        name: run_async(measure_simulator(agent, questions, name, terminal))
        for name, agent in agents.items()
    }
    if out is not None:
        write_json(out / "simulator.json", {"n": len(questions), "simulators": found})
    console.print(fidelity_table(found))
    if out is not None:
        say(out / "simulator.json")
