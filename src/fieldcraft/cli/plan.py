"""The command plan: what a recipe takes on so many devices, before anything starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fieldcraft.cli.app import Allow, Overrides, RecipeName, app, loading
from fieldcraft.config.recipe import Recipe, refuse_idle
from fieldcraft.recipes.loading import load_recipe
from fieldcraft.scaling.devices import CPU, Device, find_device
from fieldcraft.terminal.console import CleanConsole, say
from fieldcraft.terminal.figures import Figures

if TYPE_CHECKING:
    from fieldcraft.scaling.plan import Plan


@app.command()
def plan(
    recipe: RecipeName,
    overrides: Overrides = None,
    gpus: Annotated[int, typer.Option(help="How many devices there are.")] = 1,
    gpu: Annotated[
        str, typer.Option(help="Their name, as in h100; cpu is a core of this machine.")
    ] = "h100",
    tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Of a text in the mean; else half of budget.total_tokens."),
    ] = None,
    written: Annotated[
        float, typer.Option(min=0, max=1, help="The part of a rollout that the policy writes.")
    ] = 0.5,
    tool_seconds: Annotated[
        float, typer.Option(min=0, help="Of all calls of a rollout, in the mean.")
    ] = 0.0,
    allow: Allow = None,
) -> None:
    """Show which process goes where, the memory of each and the time of a run, before it starts."""
    settings = load_recipe(recipe, overrides or [])
    refuse_idle(settings)
    if gpu != CPU:
        find_device(gpu)
    with loading():
        from fieldcraft.scaling.measured import measure_cpu
        from fieldcraft.scaling.plan import make_plan, placed, read_model
        from fieldcraft.scaling.times import FASTER, Usual
    setup = read_model(settings)
    device = measure_cpu() if gpu == CPU else find_device(gpu)
    usual = Usual(tokens or settings.budget.total_tokens / 2, written, tool_seconds)
    found = make_plan(setup, device, gpus, usual)
    say(f"{settings.recipe}: {setup.parameters:,} parameters on {gpus} {_device(device)}")
    if found.chosen:
        say(f"The recipe names no processes; fastest by the formulas: {_keys(found, settings)}")
    for line in placed(found):
        say(line)
    times = _times(
        found,
        f"Seconds of a step, of texts with {usual.tokens:g} tokens in the mean"
        f" ({written:.0%} of a rollout written by the policy).",
    )
    CleanConsole().print(_memory(found, device), times)
    rest = f", without {', '.join(found.unknown)}" if found.unknown else ""
    longest = found.longest
    say(f"All stages: {_long(found.seconds)}{rest}. Evaluations are not counted.")
    say(f"The limit of {longest.name}: {longest.limit}. Faster: {FASTER[longest.limit]}.")


def _keys(found: Plan, recipe: Recipe) -> str:
    """Return the keys to set for these processes. Trainers hold the moments in parts, in float32
    only."""
    cluster = found.cluster
    keys = [f"cluster.trainers={cluster.trainers}", f"cluster.engines={cluster.engines}"]
    keys += ["cluster.colocate=true"] if cluster.colocate else []
    for name, stage in recipe.stages.items():
        if cluster.trainers and stage.optim.moments != "float32":
            keys.append(f"stages.{name}.optim.moments=float32")
    return " ".join(keys)


def _memory(found: Plan, device: Device) -> Figures:
    """Return a row for each process of each stage, and a column for each use of its memory."""
    parts = [parts for processes in found.memory.values() for parts in processes.values()]
    used = list(dict.fromkeys(part for of in parts for part in of))
    heads = [*(part.replace(" and ", ",\n") for part in used), "together", "share"]
    table = Figures(heads, f"GB at the peak; a device has {device.memory / 1e9:.3g}.")
    for stage, processes in found.memory.items():
        for process, of in processes.items():
            total = sum(of.values())
            cells = [f"{of[part] / 1e9:.3g}" if of.get(part) else "" for part in used]
            share = f"{total / device.memory:.0%}"
            table.add_row(f"{stage}: {process}", *cells, f"{total / 1e9:.3g}", share)
    return table


def _times(found: Plan, caption: str) -> Figures:
    heads = ["sampling", "training", "weights", "a step", "steps", "all", "limit"]
    table = Figures(heads, caption)
    for time in found.times:
        table.add_row(
            time.name,
            *(_seconds(one) for one in (time.sampling, time.training, time.publishing, time.step)),
            "?" if time.steps is None else str(time.steps),
            "?" if time.seconds is None else _long(time.seconds),
            time.limit,
        )
    return table


def _device(device: Device) -> str:
    return (
        f"{device.name} ({device.memory / 1e9:.3g} GB, {device.rate / 1e12:.3g} TFLOP/s,"
        f" {device.bandwidth / 1e9:.4g} GB/s)"
    )


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g}" if seconds else ""


def _long(seconds: float) -> str:
    if seconds < 600:
        return f"{seconds:.3g} s"
    return f"{seconds / 3600:.1f} h" if seconds >= 7200 else f"{seconds / 60:.0f} min"
