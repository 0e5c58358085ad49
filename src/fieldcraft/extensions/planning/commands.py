"""The command `fieldcraft plan`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fieldcraft.cli.app import AllowOption, OverridesArgument, RecipeArgument, announce_imports, app
from fieldcraft.config.recipe import Recipe
from fieldcraft.config.rules import RUN_RULES
from fieldcraft.recipes.loading import load_recipe
from fieldcraft.terminal.console import CleanConsole, print_line
from fieldcraft.terminal.figure_table import FigureTable

if TYPE_CHECKING:
    from fieldcraft.extensions.planning.devices import Device
    from fieldcraft.extensions.planning.plan import ClusterPlan


@app.command()
def plan(
    recipe: RecipeArgument,
    overrides: OverridesArgument = None,
    gpus: Annotated[int, typer.Option(help="Number of devices.")] = 1,
    gpu: Annotated[
        str,
        typer.Option(help="Name of the devices, for example h100; cpu is a core of this machine."),
    ] = "h100",
    allow: AllowOption = None,
) -> None:
    """Show whether a recipe fits on given devices: the placement and the memory of each process."""
    from fieldcraft.extensions.planning.devices import find_device, require_device_count

    require_device_count(gpus)
    device = find_device(gpu)
    settings = load_recipe(recipe, overrides or [], rules=RUN_RULES)
    with announce_imports():
        from fieldcraft.extensions.planning.plan import (
            load_model_sizes,
            make_plan,
            render_placement,
        )
    sizes = load_model_sizes(settings)
    found = make_plan(sizes, device, gpus)
    capacity = f"{device.memory_bytes / 1e9:.3g} GB"
    print_line(
        f"{settings.name}: {sizes.parameters:,} parameters on {gpus} {device.name} ({capacity})"
    )
    if found.is_auto_split:
        print_line(
            f"The recipe sets no processes; these fit: {_format_cluster_keys(found, settings)}"
        )
    for line in render_placement(found):
        print_line(line)
    CleanConsole().print(_build_memory_table(found, device))
    fullest, needed = found.fullest_process
    share = needed / device.memory_bytes
    print_line(
        f"All stages fit; the largest process uses {share:.0%} of its device ({fullest})."
        " Evaluations are not included."
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
