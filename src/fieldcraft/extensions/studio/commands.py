"""The commands `studio`, the page of runs, and `branch`, the value of a step of a trajectory."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote

import typer
from rich.console import Console

from fieldcraft.cli.app import (
    AllowOption,
    DeviceOption,
    PortOption,
    SeedOption,
    StageOption,
    announce_imports,
    app,
)
from fieldcraft.runs.event_loop import run_async
from fieldcraft.runs.folder import find_run
from fieldcraft.terminal.console import CleanConsole, print_line
from fieldcraft.terminal.progress import TerminalReporter
from fieldcraft.types import UserError

EditKind = Literal["observation", "thought"]
TrajectoryIndexOption = Annotated[
    int, typer.Option(min=0, help="Index of the trajectory, as in 'fieldcraft show'.")
]
StepOption = Annotated[
    int | None,
    typer.Option(min=0, help="Step to continue; 0 is the question. Default: every step."),
]
ObservationOption = Annotated[
    str | None, typer.Option(help="Replacement for the observation recorded at this step.")
]
ThoughtOption = Annotated[str | None, typer.Option(help="Text at the start of the model's step.")]
FromTrainingOption = Annotated[
    bool, typer.Option("--from-training", help="Branch from a recorded training rollout.")
]
ModelOption = Annotated[
    Path | None,
    typer.Option(help="Another model of the run to sample from, for example RUN/STAGE."),
]
SamplesOutOption = Annotated[
    Path | None, typer.Option(help="Folder of the samples. Default: RUN/branches/...")
]


@app.command("view", hidden=True, help="Run 'fieldcraft studio', as this command is now called.")
@app.command()
def studio(
    runs: Annotated[list[Path], typer.Argument(help="Folders of one or more runs.")],
    host: Annotated[
        str, typer.Option(help="Address to listen on; beyond this machine a token is required.")
    ] = "127.0.0.1",
    port: PortOption = 8001,
    token: Annotated[
        str | None,
        typer.Option(
            envvar=["FIELDCRAFT_STUDIO_TOKEN", "FIELDCRAFT_VIEW_TOKEN"],
            help="Token of the page. Default: a new one at each start, none on this machine.",
        ),
    ] = None,
    allow_sampling: Annotated[
        bool, typer.Option("--allow-sampling", help="Let users sample from a step of a trajectory.")
    ] = False,
    allow: AllowOption = None,
) -> None:
    """Show runs in the browser: curves, trajectories with their tokens, and a timeline."""
    from fieldcraft.extensions.studio.branch_command import BranchCommand
    from fieldcraft.extensions.studio.run_view import load_run_views
    from fieldcraft.extensions.studio.server import create_app
    from fieldcraft.runs.trust import require_trust
    from fieldcraft.tools.server_requests import is_loopback
    from fieldcraft.tools.serving import serve_until_interrupt

    if token is not None and not (token.isascii() and token.strip()):
        raise UserError(
            "the token must be ASCII text that is not empty, because browsers keep it as a cookie:"
            " give another --token, or leave it out."
        )
    run_views = load_run_views(runs)
    for run in run_views if allow_sampling else ():  # sampling commands cannot ask for consent
        if run.folder is not None:
            require_trust(run.folder, run.path)
    if token is None and not is_loopback(host):
        token = secrets.token_urlsafe(24)
    page = create_app(
        run_views,
        token=token,
        branch_command=BranchCommand() if allow_sampling else None,
    )
    path = "/" if token is None else f"/?token={quote(token, safe='')}"
    serve_until_interrupt(page, "studio", host, port, path, page.state.end, token)


@app.command()
def branch(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    index: TrajectoryIndexOption,
    step: StepOption = None,
    observation: ObservationOption = None,
    thought: ThoughtOption = None,
    stage: StageOption = None,
    from_training: FromTrainingOption = False,
    model: ModelOption = None,
    samples: Annotated[int, typer.Option(min=1, help="Number of samples from each state.")] = 32,
    temperature: Annotated[float, typer.Option(min=0.0, help="Sampling temperature.")] = 1.0,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
    out: SamplesOutOption = None,
    allow: AllowOption = None,
) -> None:
    """Sample continuations of a trajectory from a step, as recorded or with a replaced text.

    Without --step, estimate the value of every step."""
    edits = _collect_edits(observation, thought)
    if len(edits) > 1:
        raise UserError("only one edit is possible: give --observation or --thought.")
    if step is None and edits:
        raise UserError("--observation and --thought edit a step: give its number with --step.")
    if not temperature and samples > 1:
        raise UserError("greedy samples are identical: give a --temperature above 0, such as 0.6.")
    find_run(run)  # before torch is loaded
    with announce_imports():
        from fieldcraft.extensions.studio.branching.sample_store import open_sample_store
        from fieldcraft.extensions.studio.branching.sampler import TrajectoryEdit
        from fieldcraft.extensions.studio.branching.selection import open_sampler, select_trajectory
        from fieldcraft.extensions.studio.branching.tables import make_branch_table

    selected = select_trajectory(run, stage, index, from_training)
    agent = selected.make_agent(model).with_options(None, None, None, device)
    folder = out or selected.get_default_folder(model)
    console = CleanConsole()

    async def run_sampler() -> list[str]:
        settings = selected.make_sample_settings(agent, seed, temperature)
        with open_sample_store(folder, settings, selected.trajectory) as sample_store:
            sampler = await open_sampler(
                agent,
                samples=samples,
                seed=seed,
                temperature=temperature,
                store=sample_store,
                on_event=TerminalReporter(console),
            )
            if step is None:
                return await _show_values(sampler, selected, folder, console)
            edit = TrajectoryEdit(*edits[0]) if edits else None
            result = await sampler.branch(selected.trajectory, step, edit)
            console.print(make_branch_table(result))
            return result.replay_mismatches

    differences = run_async(run_sampler())
    for sentence in differences:
        console.print(f"A tool returned another result when replayed: {sentence}.")
    print_line(folder)


def _collect_edits(observation: str | None, thought: str | None) -> list[tuple[EditKind, str]]:
    """Return the edits given by the user."""
    edits: list[tuple[EditKind, str | None]] = [("observation", observation), ("thought", thought)]
    return [(kind, text) for kind, text in edits if text is not None]


async def _show_values(sampler: Any, selected: Any, folder: Path, console: Console) -> list[str]:
    """Show the value of every step as a table and a page; return mismatches of replayed calls."""
    from fieldcraft.extensions.studio.branching.tables import (
        label_steps,
        make_values_table,
        write_values,
    )

    values = await sampler.estimate_values(selected.trajectory)
    labels = label_steps(selected.trajectory, sampler.split_steps(selected.trajectory))
    console.print(make_values_table(values, labels))
    print_line(
        write_values(
            folder, values, labels, selected.trajectory, f"{selected.name} {selected.index}"
        )
    )
    differences: list[str] = values.replay_mismatches
    return differences
