"""The command branch: what a step of a trajectory, or another text there, was worth."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from fieldcraft.cli.app import Allow, Device, app, loading
from fieldcraft.runs.loop import run_async
from fieldcraft.terminal.console import CleanConsole, say
from fieldcraft.terminal.progress import TerminalSink
from fieldcraft.types import UserError

EditKind = Literal["observation", "thought"]
Number = Annotated[int, typer.Option(min=0, help="Its number, as in 'fieldcraft show'.")]
AtStep = Annotated[
    int | None, typer.Option(min=0, help="From here; 0 is the question. By default every step.")
]
Observed = Annotated[
    str | None, typer.Option(help="What comes back at the step, in place of the recorded text.")
]
Thought = Annotated[str | None, typer.Option(help="What the model begins the step with.")]
Training = Annotated[bool, typer.Option("--training", help="A rollout that training has kept.")]
Model = Annotated[Path | None, typer.Option(help="Another model of the run, as in RUN/STAGE.")]
Out = Annotated[
    Path | None, typer.Option(help="Where samples are kept; RUN/branches/... by default.")
]


@app.command()
def branch(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    trajectory: Number,
    step: AtStep = None,
    observation: Observed = None,
    thought: Thought = None,
    stage: Annotated[str | None, typer.Option(help="By default the last one evaluated.")] = None,
    training: Training = False,
    model: Model = None,
    samples: Annotated[int, typer.Option(min=1, help="Of each state.")] = 32,
    temperature: Annotated[float, typer.Option(min=0.0, help="Of the samples.")] = 1.0,
    seed: int = 0,
    device: Device = "auto",
    out: Out = None,
    allow: Allow = None,
) -> None:
    """Sample how a trajectory continues from a step, as it was and with another text there; without
    --step, from every step: the value of each."""
    given = _edits(observation, thought)
    if len(given) > 1:
        raise UserError("one edit at a time: give --observation or --thought.")
    if step is None and given:
        raise UserError("it is not said which step is edited: give --step.")
    if not temperature and samples > 1:
        raise UserError("greedy samples are all the same: give --temperature, as in 0.6.")
    with loading():
        from fieldcraft.branching.branch import Edit
        from fieldcraft.branching.kept import open_kept
        from fieldcraft.branching.opening import choose, open_sampler
        from fieldcraft.branching.showing import branch_table

    chosen = choose(run, stage, trajectory, training)
    agent = chosen.agent(model).with_options(None, None, None, device)
    folder = out or chosen.folder(model)
    console = CleanConsole()

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
            if step is None:
                return await _show_values(sampler, chosen, folder, console)
            edit = Edit(*given[0]) if given else None
            found = await sampler.branch(chosen.trajectory, step, edit)
            console.print(branch_table(found))
            return found.differences

    differences = run_async(work())
    for sentence in differences:
        console.print(f"A tool does not repeat itself: {sentence}.")
    say(folder)


def _edits(observation: str | None, thought: str | None) -> list[tuple[EditKind, str]]:
    """Return the texts that the user gives for the step."""
    edits: list[tuple[EditKind, str | None]] = [("observation", observation), ("thought", thought)]
    return [(kind, text) for kind, text in edits if text is not None]


async def _show_values(sampler: Any, chosen: Any, folder: Path, console: Console) -> list[str]:
    """Show the value of every step, as a table and as a page; return how tools differed."""
    from fieldcraft.branching.showing import step_labels, values_table, write_values

    values = await sampler.values(chosen.trajectory)
    labels = step_labels(chosen.trajectory, sampler.steps(chosen.trajectory))
    console.print(values_table(values, labels))
    say(write_values(folder, values, labels, chosen.trajectory, f"{chosen.name} {chosen.number}"))
    differences: list[str] = values.differences
    return differences
