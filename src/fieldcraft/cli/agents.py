"""Commands about agents: ask, export, eval."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fieldcraft.cli.app import (
    AllowOption,
    DeviceOption,
    DialectOption,
    FileMaxLeftOutOption,
    IndexOption,
    LimitOption,
    MinPOption,
    OutOption,
    SamplingOption,
    SearchUrlOption,
    TemperatureOption,
    TopKOption,
    TopPOption,
    advise_options,
    announce_imports,
    app,
    collect_sampling_keys,
    make_judge_settings,
    require_empty_folder,
)
from fieldcraft.cli.suites import choose_suite, evaluate_suite, require_used_options
from fieldcraft.config.components import ComponentKind
from fieldcraft.config.names import resolve_path
from fieldcraft.config.sections import Dtype
from fieldcraft.config.url_secrets import require_no_secret
from fieldcraft.data.records import MAX_REJECTED_SHARE
from fieldcraft.evaluation.benchmarks import require_data_folder
from fieldcraft.evaluation.tables import (
    build_detail_tables,
    build_pairwise_table,
    build_results_table,
)
from fieldcraft.hub.push import parse_push_target, push_folder
from fieldcraft.records.files import require_writable, write_json
from fieldcraft.runs.event_loop import run_async
from fieldcraft.runs.folder import find_model, find_unmerged_checkpoint
from fieldcraft.terminal.console import CleanConsole, print_line
from fieldcraft.terminal.progress import TerminalReporter
from fieldcraft.terminal.trajectory_text import print_trajectory
from fieldcraft.types import Task, UserError

_QUESTIONS_ADVICE = dict.fromkeys(
    ("corpus", "pairs", "relevance"), "give a file of questions with answers as --tasks FILE"
)
MAX_SIMULATED_QUESTIONS = 400  # maximum number of training questions without --tasks and --limit


@app.command()
def ask(
    question: Annotated[str, typer.Argument(help="Question, in quotation marks.")],
    model: Annotated[Path, typer.Option(help="A run, a stage, a checkpoint or a name on the hub.")],
    index: IndexOption = None,
    search_url: SearchUrlOption = None,
    dialect: DialectOption = None,
    device: DeviceOption = "auto",
    temperature: TemperatureOption = None,
    top_k: TopKOption = None,
    top_p: TopPOption = None,
    min_p: MinPOption = None,
    sampling: SamplingOption = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the samples.", show_default="0")] = None,
    allow: AllowOption = None,
) -> None:
    """Ask an agent a question and print its thoughts, calls and answer; greedy by default."""
    if not question.strip():
        raise UserError("the question is empty: write one, in quotation marks.")
    keys = collect_sampling_keys(temperature, top_k, top_p, min_p, sampling)
    if seed is not None and (not keys or temperature == 0):
        raise UserError("greedy sampling has no seed: leave out --seed, or give --temperature.")
    require_valid_agents([model], dialect, index, search_url)
    with announce_imports():
        from fieldcraft.runs.agent import find_agent

    agent = find_agent(model).with_options(dialect, index, search_url, device)
    require_search_tool([agent], index, search_url)
    trajectory = agent.ask(question, seed=seed or 0, **keys)
    print_trajectory(trajectory, CleanConsole())


PushOption = Annotated[
    str | None, typer.Option(help="Also upload the folder to the hub, as org/name.")
]
PrivateOption = Annotated[
    bool, typer.Option("--private", help="Make a new model on the hub private.")
]


@app.command()
def export(
    model: Annotated[
        Path, typer.Argument(help="A run, a stage, a checkpoint or a name on the hub.")
    ],
    out: OutOption,
    dtype: Annotated[Dtype, typer.Option(help="Data type of the weights.")] = "bfloat16",
    push: PushOption = None,
    private: PrivateOption = False,
    allow: AllowOption = None,
) -> None:
    """Write a trained model, adapters merged, as a folder that transformers and others load."""
    if private and push is None:
        raise UserError("--private is for a model on the hub: give --push org/name.")
    require_empty_folder(out)
    target = None if push is None else parse_push_target(push)
    from fieldcraft.runs.trust import require_trust

    require_trust(*(find_unmerged_checkpoint(model) or find_model(model)))
    with announce_imports():
        from fieldcraft.runs.export import export

    export(model, out, dtype)
    print_line(out)
    if target is not None:
        print_line(push_folder(out, target, "private" if private else "public"))


ModelsOption = Annotated[
    list[Path], typer.Option(help="A run, a stage of it, or a checkpoint; repeat to compare.")
]
TasksOption = Annotated[
    Path | None, typer.Option(help="File of questions, in a format of docs/your-data.md.")
]
ToolsOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Replace the agent's tools by this one, for example search or my_tools:find."
    ),
]
SimulatorOption = Annotated[
    bool,
    typer.Option(
        "--simulator", help="Measure how faithfully each agent simulates its search instead."
    ),
]
SamplesOption = Annotated[
    int | None, typer.Option(min=1, help="Samples of each question, for avg@n and pass@k.")
]
EvalOutOption = Annotated[
    Path | None, typer.Option(help="Folder for the results and the judge's replies.")
]
SuiteOption = Annotated[
    str | None,
    typer.Option(
        help="Suite of benchmarks (`fieldcraft benchmarks` lists them), or its YAML file."
    ),
]
BenchmarkOption = Annotated[
    list[str] | None,
    typer.Option(help="Only this benchmark of the suite, or of all; repeat for several."),
]
DataOption = Annotated[
    Path | None,
    typer.Option(help="Folder with files of benchmarks, such as nq.jsonl, instead of the hub."),
]

PythonOption = Annotated[
    Path | None,
    typer.Option(help="Python interpreter that has the package of a benchmark, such as bfcl-eval."),
]


@app.command("eval")
def evaluate(
    model: ModelsOption,
    tasks: TasksOption = None,
    suite: SuiteOption = None,
    benchmark: BenchmarkOption = None,
    data: DataOption = None,
    python: PythonOption = None,
    index: IndexOption = None,
    search_url: SearchUrlOption = None,
    tool: ToolsOption = None,
    dialect: DialectOption = None,
    device: DeviceOption = "auto",
    limit: LimitOption = None,
    simulator: SimulatorOption = False,
    judge_url: Annotated[
        str | None, typer.Option(help="Also grade with a model at this URL.")
    ] = None,
    judge_model: Annotated[str | None, typer.Option(help="Name of the judge's model.")] = None,
    judge_votes: Annotated[
        int | None,
        typer.Option(min=1, help="Number of votes on each answer.", show_default="3"),
    ] = None,
    samples: SamplesOption = None,
    temperature: TemperatureOption = None,
    top_k: TopKOption = None,
    top_p: TopPOption = None,
    min_p: MinPOption = None,
    sampling: SamplingOption = None,
    max_left_out: FileMaxLeftOutOption = None,
    out: EvalOutOption = None,
    allow: AllowOption = None,
) -> None:
    """Grade agents on a file of questions and compare each with the first.

    With --suite or --benchmark, grade them on published question sets. With --simulator, grade the
    search results that they write themselves, by default for training questions."""
    if (judge_url is None) != (judge_model is None) or (judge_votes and not judge_url):
        raise UserError("a judge needs both a url and a model: give --judge-url and --judge-model.")
    settings = make_judge_settings(judge_url, judge_model, judge_votes)
    if out is not None:
        require_writable(out)
    asks_suite = suite is not None or bool(benchmark)
    _require_one_source(tasks, simulator, asks_suite, data, python)
    if max_left_out is not None and tasks is None and not asks_suite:
        raise UserError("--max-left-out is for files of questions: leave it out, or give --tasks.")
    if data is not None:
        require_data_folder(data)
    keys = collect_sampling_keys(temperature, top_k, top_p, min_p, sampling)
    keys |= {} if samples is None else {"samples": samples}
    if simulator and (keys or judge_url is not None):
        raise UserError(
            "--simulator samples once, as the run does, and has no judge: leave out --judge-url,"
            " --samples, --sampling, --temperature, --top-k, --top-p and --min-p."
        )
    chosen = choose_suite(suite, benchmark or [], python, max_left_out) if asks_suite else None
    if chosen is not None:
        own = {"--data": data, "--tool": tool, "--index": index, "--search-url": search_url}
        require_used_options(chosen, own)
    share = MAX_REJECTED_SHARE if max_left_out is None else max_left_out
    questions = _read_questions(tasks, share)[:limit] if tasks else []
    require_valid_agents(model, dialect, index, search_url)
    with announce_imports():
        from fieldcraft.runs.agent import find_agent
        from fieldcraft.runs.build import open_judge

    def load_agents(**sampling: Any) -> dict[str, Any]:
        agents = {
            str(m): find_agent(m)
            .with_options(dialect, index, search_url, device)
            .with_tools(tool or ())
            .with_sampling(**sampling)
            for m in model
        }
        require_search_tool([*agents.values()], index, search_url)
        return agents

    if chosen is not None:
        title = suite or ", ".join(benchmark or [])
        evaluate_suite(title, chosen, data, limit, keys, settings, load_agents, out)
        return
    judge = run_async(open_judge(settings, None if out is None else out / "judge.sqlite"))
    agents = load_agents(**keys)
    if simulator:
        _evaluate_simulators(agents, questions or _find_train_questions(agents, limit), out)
        return
    result = _grade_agents(agents, questions, judge)
    if out is not None:
        record = {"tasks": str(tasks), "n": len(questions)} | result
        record |= {"judge": settings.model_dump()} if judge else {}
        write_json(out / "eval.json", record)
    _print_result(result)
    if out is not None:
        print_line(out / "eval.json")


def _require_one_source(
    tasks: Path | None, simulator: bool, asks_suite: bool, data: Path | None, python: Path | None
) -> None:
    """Raise UserError unless the questions come from one source, and its options belong to it."""
    if tasks is None and not simulator and not asks_suite:
        raise UserError("there are no questions to grade: give a file with --tasks.")
    if asks_suite and (tasks is not None or simulator):
        raise UserError("a suite has its own questions: leave out --tasks and --simulator.")
    if data is not None and not asks_suite:
        raise UserError("--data has files of benchmarks: give --suite or --benchmark.")
    if python is not None and not asks_suite:
        raise UserError("--python is for benchmarks: give --suite or --benchmark.")


def _read_questions(file: Path, max_left_out: float) -> list[Task]:
    """Return the questions of a file; print the reasons for left-out ones."""
    from fieldcraft.data.tasks import add_data_source, read_task_file

    with advise_options(**_QUESTIONS_ADVICE):
        read = read_task_file(file, max_left_out)
    for line in read.warnings(file):
        print_line(line)
    return add_data_source(read.tasks, file)


def _grade_agents(
    agents: Mapping[str, Any], questions: Sequence[Task], judge: Any
) -> dict[str, Any]:
    """Answer and grade the questions with every agent, and compare each agent with the first."""
    from fieldcraft.evaluation.comparison import compare_with_first
    from fieldcraft.evaluation.summary import summarise_evaluation
    from fieldcraft.records.events import ignore_event

    split = next(iter(agents.values())).recipe.evaluation.leading_split
    trajectories, summaries = {}, {}
    reporter = TerminalReporter(CleanConsole())
    for name, agent in agents.items():
        started = time.perf_counter()
        trajectories[name] = run_async(agent.run_evaluation(questions, judge, name, reporter))
        summaries[name] = summarise_evaluation(trajectories[name], split) | {
            "seconds": time.perf_counter() - started,
            "sampling": agent.resolve_decoding(ignore_event).as_record(),
        }
    return {"evals": summaries, "pairwise": compare_with_first(trajectories, split)}


def _print_result(result: Mapping[str, Any]) -> None:
    console = CleanConsole()
    console.print(build_results_table(result["evals"], {}), *build_detail_tables(result["evals"]))
    if result["pairwise"]:
        console.print(build_pairwise_table(result["pairwise"]))


def require_valid_agents(
    models: Sequence[Path], dialect: str | None, index: Path | None, search_url: str | None
) -> None:
    """Raise UserError for errors in the agents that can be found without loading a model."""
    from fieldcraft.runs.trust import require_single_search, require_trust

    for model in models:
        if models.count(model) > 1:
            raise UserError(f"--model {model} is given twice: give each model once.")
        require_trust(*find_model(model))
    require_no_secret("search.url", search_url)
    if dialect is not None:
        resolve_path(ComponentKind.DIALECT, dialect)
    require_single_search(index, search_url)


def require_search_tool(agents: Sequence[Any], index: Path | None, search_url: str | None) -> None:
    """Raise UserError for a search that no agent can use."""
    is_given = index is not None or search_url is not None
    if is_given and not any(agent.recipe.has_search_tool for agent in agents):
        raise UserError(
            f"{agents[0].model} has no tool search: leave out --index and --search-url."
        )


def _find_train_questions(agents: Mapping[str, Any], limit: int | None) -> list[Task]:
    """Return training questions of the first agent."""
    first = next(iter(agents.values()))
    questions: list[Task] = [] if first.data_source is None else first.data_source.train_tasks()
    if not questions:
        raise UserError("there are no questions to simulate for: give a file with --tasks.")
    return questions[: limit or MAX_SIMULATED_QUESTIONS]


def _evaluate_simulators(
    agents: Mapping[str, Any], questions: Sequence[Task], out: Path | None
) -> None:
    from fieldcraft.evaluation.fidelity import build_fidelity_table
    from fieldcraft.runs.simulating import measure_simulator

    console = CleanConsole()
    reporter = TerminalReporter(console)
    found = {
        name: run_async(measure_simulator(agent, questions, name, reporter))
        for name, agent in agents.items()
    }
    if out is not None:
        write_json(out / "simulator.json", {"n": len(questions), "simulators": found})
    console.print(build_fidelity_table(found))
    if out is not None:
        print_line(out / "simulator.json")
