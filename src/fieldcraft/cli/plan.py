"""Command `plan`: memory and time of a recipe on given devices, before a run starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fieldcraft.cli.app import AllowOption, OverridesArgument, RecipeArgument, announce_imports, app
from fieldcraft.config.recipe import Recipe
from fieldcraft.config.rules import RUN_RULES
from fieldcraft.recipes.loading import load_recipe
from fieldcraft.scaling.devices import CPU_NAME, Device, find_device
from fieldcraft.terminal.console import CleanConsole, print_line
from fieldcraft.terminal.figure_table import FigureTable

if TYPE_CHECKING:
    from fieldcraft.scaling.plan import ClusterPlan


@app.command()
def plan(
    recipe: RecipeArgument,
    overrides: OverridesArgument = None,
    gpus: Annotated[int, typer.Option(help="Number of devices.")] = 1,
    gpu: Annotated[
        str,
        typer.Option(help="Name of the devices, for example h100; cpu is a core of this machine."),
    ] = "h100",
    mean_tokens: Annotated[
        int | None,
        typer.Option(
            min=1, help="Mean tokens of a rollout; default: half of budget.max_context_tokens."
        ),
    ] = None,
    completion_share: Annotated[
        float,
        typer.Option(min=0, max=1, help="Share of a rollout's tokens that the policy generates."),
    ] = 0.5,
    tool_seconds: Annotated[
        float, typer.Option(min=0, help="Mean seconds of all tool calls of a rollout.")
    ] = 0.0,
    allow: AllowOption = None,
) -> None:
    """Show the device and the memory of each process, and the time of a run, before it starts."""
    settings = load_recipe(recipe, overrides or [], rules=RUN_RULES)
    if gpu != CPU_NAME:
        find_device(gpu)
    with announce_imports():
        from fieldcraft.scaling.measured import measure_cpu
        from fieldcraft.scaling.plan import load_model_sizes, make_plan, render_placement
        from fieldcraft.scaling.times import SPEEDUP_ADVICE, TypicalText
    sizes = load_model_sizes(settings)
    device = measure_cpu() if gpu == CPU_NAME else find_device(gpu)
    tokens = mean_tokens or settings.budget.max_context_tokens / 2
    typical_text = TypicalText(tokens, completion_share, tool_seconds)
    found = make_plan(sizes, device, gpus, typical_text)
    print_line(
        f"{settings.name}: {sizes.parameters:,} parameters on {gpus} {_describe_device(device)}"
    )
    if found.is_auto_split:
        print_line(
            "The recipe sets no processes; fastest by the formulas: "
            f"{_format_cluster_keys(found, settings)}"
        )
    for line in render_placement(found):
        print_line(line)
    times = _build_times_table(
        found,
        f"Seconds per step, with a mean of {typical_text.tokens:g} tokens per text"
        f" ({completion_share:.0%} of a rollout written by the policy).",
    )
    CleanConsole().print(_build_memory_table(found, device), times)
    rest = (
        f", without {', '.join(found.stages_without_steps)}" if found.stages_without_steps else ""
    )
    longest = found.slowest_stage
    print_line(
        f"All stages: {_format_duration(found.total_seconds)}{rest}. Evaluations are not included."
    )
    print_line(
        f"Bottleneck of {longest.name}: {longest.bottleneck}. To speed it up: "
        f"{SPEEDUP_ADVICE[longest.bottleneck]}."
    )


def _format_cluster_keys(found: ClusterPlan, recipe: Recipe) -> str:
    """Return the keys to set for these processes. Trainers shard the optimizer state, only in
    float32."""
    cluster = found.cluster
    keys = [f"cluster.trainers={cluster.trainers}", f"cluster.engines={cluster.engines}"]
    keys += ["cluster.colocate=true"] if cluster.colocate else []
    for name, stage in recipe.stages.items():
        if cluster.trainers and stage.optim.optimizer_state != "float32":
            keys.append(f"stages.{name}.optim.optimizer_state=float32")
    return " ".join(keys)


def _build_memory_table(found: ClusterPlan, device: Device) -> FigureTable:
    """Return a table with a row per process of each stage, and a column per use of memory."""
    uses_by_process = [
        uses_by_process
        for processes in found.memory.values()
        for uses_by_process in processes.values()
    ]
    used = list(dict.fromkeys(part for uses in uses_by_process for part in uses))
    headers = [*(part.replace(" and ", ",\n") for part in used), "total", "share"]
    table = FigureTable(headers, f"Peak memory in GB; capacity: {device.memory_bytes / 1e9:.3g}.")
    for stage, processes in found.memory.items():
        for process, uses in processes.items():
            total = sum(uses.values())
            cells = [f"{uses[part] / 1e9:.3g}" if uses.get(part) else "" for part in used]
            share = f"{total / device.memory_bytes:.0%}"
            table.add_row(f"{stage}: {process}", *cells, f"{total / 1e9:.3g}", share)
    return table


def _build_times_table(found: ClusterPlan, caption: str) -> FigureTable:
    headers = ["sampling", "training", "weights", "per step", "steps", "total", "bottleneck"]
    table = FigureTable(headers, caption)
    for time in found.stage_times:
        table.add_row(
            time.name,
            *(
                _format_seconds(seconds)
                for seconds in (
                    time.sampling_seconds,
                    time.training_seconds,
                    time.broadcast_seconds,
                    time.step_seconds,
                )
            ),
            "?" if time.steps is None else str(time.steps),
            "?" if time.total_seconds is None else _format_duration(time.total_seconds),
            time.bottleneck,
        )
    return table


def _describe_device(device: Device) -> str:
    return (
        f"{device.name} ({device.memory_bytes / 1e9:.3g} GB, {device.flops_per_second / 1e12:.3g}"
        f" TFLOP/s, {device.memory_bandwidth / 1e9:.4g} GB/s)"
    )


def _format_seconds(seconds: float) -> str:
    return f"{seconds:.3g}" if seconds else ""


def _format_duration(seconds: float) -> str:
    if seconds < 600:
        return f"{seconds:.3g} s"
    return f"{seconds / 3600:.1f} h" if seconds >= 7200 else f"{seconds / 60:.0f} min"
