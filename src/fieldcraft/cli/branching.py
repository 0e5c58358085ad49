"""The command branch: what a step of a trajectory, or another text there, was worth."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fieldcraft.cli.app import Device, app, loading
from fieldcraft.runs.loop import run_async
from fieldcraft.terminal.progress import TerminalSink
from fieldcraft.types import UserError


@app.command()
def branch(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    trajectory: Annotated[int, typer.Option(min=0, help="Its number, as in 'fieldcraft show'.")],
    step: Annotated[
        int | None, typer.Option(min=0, help="Go on from here; 0 is the question. None: all.")
    ] = None,
    observation: Annotated[
        str | None, typer.Option(help="What comes back at the step, in place of the recorded text.")
    ] = None,
    thought: Annotated[
        str | None, typer.Option(help="What the model begins the step with.")
    ] = None,
    stage: Annotated[str | None, typer.Option(help="By default the last one evaluated.")] = None,
    training: Annotated[
        bool, typer.Option("--training", help="A rollout that training has kept.")
    ] = False,
    model: Annotated[
        Path | None, typer.Option(help="Another model of the run, as in RUN/STAGE.")
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Of each state.")] = 32,
    temperature: Annotated[float, typer.Option(min=0.0, help="Of the samples.")] = 1.0,
    seed: int = 0,
    device: Device = "auto",
    out: Annotated[
        Path | None, typer.Option(help="Where samples are kept; RUN/branches/... by default.")
    ] = None,
) -> None:
    """Sample how a trajectory goes on from a step, as it was and with another text there; without
    --step, from every step: the value of each."""
    if observation is not None and thought is not None:
        raise UserError("one edit at a time: give --observation or --thought.")
    if step is None and (observation is not None or thought is not None):
        raise UserError("it is not said which step is edited: give --step.")
    if not temperature and samples > 1:
        raise UserError("greedy samples are all the same: give --temperature, as in 0.6.")
    with loading():
        from fieldcraft.branching.branch import Edit
        from fieldcraft.branching.kept import open_kept
        from fieldcraft.branching.opening import choose, open_sampler
        from fieldcraft.branching.showing import (
            branch_table,
            step_labels,
            values_table,
            write_values,
        )

    edit = None
    if observation is not None:
        edit = Edit("observation", observation)
    if thought is not None:
        edit = Edit("thought", thought)
    chosen = choose(run, stage, trajectory, training)
    agent = chosen.agent(model).with_options(None, None, None, device)
    folder = out or chosen.folder(model)
    console = Console()

    async def work() -> list[str]:
        settings = chosen.settings(agent, seed, temperature)
        with open_kept(folder, settings, chosen.trajectory) as kept:
            sampler = await open_sampler(
                agent,
                samples=samples,
                seed=seed,
                temperature=temperature,
                kept=kept,
                emit=TerminalSink(console),
            )
            if step is not None:
                found = await sampler.branch(chosen.trajectory, step, edit)
                console.print(branch_table(found))
                return found.differences
            values = await sampler.values(chosen.trajectory)
            labels = step_labels(chosen.trajectory, sampler.steps(chosen.trajectory))
            console.print(values_table(values, labels))
            title = f"{chosen.name} {chosen.number}"
            print(write_values(folder, values, labels, chosen.trajectory, title))
            return values.differences

    differences = run_async(work())
    for sentence in differences:
        console.print(f"A tool does not repeat itself: {sentence}.", markup=False)
    print(folder)
