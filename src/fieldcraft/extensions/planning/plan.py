"""Plan of a recipe on a number of devices, before it runs: placement and memory."""

from __future__ import annotations

import tempfile
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fieldcraft.config.recipe import Recipe
from fieldcraft.config.rl import Rl
from fieldcraft.config.sections import ClusterConfig
from fieldcraft.extensions.cluster.placement import ProcessPlacement, place_processes
from fieldcraft.extensions.planning.devices import Device, split_into_nodes
from fieldcraft.runs.memory import format_gb
from fieldcraft.runs.memory_estimate import (
    MemoryParts,
    ModelSizes,
    estimate_engine_memory,
    estimate_process_memory,
    estimate_rank_memory,
)
from fieldcraft.runs.setup import CheckContext, CheckReport, load_first_model, load_questions
from fieldcraft.types import UserError

# Share of a device's memory that advice fills; the rest is for usage that no formula covers.
USABLE_MEMORY_SHARE = 0.9
POWERS_OF_TWO = tuple(2**power for power in range(8))


@dataclass(frozen=True)
class ClusterPlan:
    """Plan of a run. `is_auto_split` is True if the plan chose the split of devices because the
    recipe does not specify one."""

    cluster: ClusterConfig
    is_auto_split: bool
    devices_per_node: Sequence[int]
    placements: Sequence[ProcessPlacement]
    memory: dict[str, dict[str, MemoryParts]]  # stage, process, purpose: bytes

    @property
    def fullest_process(self) -> tuple[str, int]:
        """Return the process that needs most memory, with its stage, and its bytes."""
        totals = {
            f"{stage}: {process}": sum(parts.values())
            for stage, processes in self.memory.items()
            for process, parts in processes.items()
        }
        return max(totals.items(), key=lambda item: item[1])


def load_model_sizes(recipe: Recipe) -> ModelSizes:
    """Read the model's shapes, without weights. Raises UserError if they cannot be read."""
    report = CheckReport()
    with tempfile.TemporaryDirectory() as draft:
        context = CheckContext(recipe, Path(draft))
        if recipe.model is None:
            load_questions(context, report)
        load_first_model(context, report)
    if report.errors:
        raise UserError(report.errors[0])
    return context.sizes


def make_plan(sizes: ModelSizes, device: Device, count: int) -> ClusterPlan:
    """Plan the run of a recipe on `count` devices.

    Raises UserError, with advice, if `count` is less than 1 or than the recipe requires, if the
    recipe has no stages, or if it does not fit.
    """
    recipe, nodes, cluster = sizes.recipe, split_into_nodes(device, count), sizes.recipe.cluster
    if not recipe.stages:
        raise UserError(f"recipe '{recipe.name}' trains nothing, so there is nothing to plan.")
    is_auto_split = count > 1 and not (cluster.trainers or cluster.engines)
    if is_auto_split:
        cluster = _choose_split(sizes, device, count)
    placements = place_processes(cluster, nodes)
    memory = {
        name: estimate_process_memory(sizes, stage, cluster)
        for name, stage in recipe.stages.items()
    }
    for name, processes in memory.items():
        for process, parts in processes.items():
            if sum(parts.values()) > device.memory_bytes:
                raise UserError(
                    _describe_overflow(sizes, device, count, cluster, name, process, parts)
                )
    return ClusterPlan(cluster, is_auto_split, nodes, placements, memory)


def _choose_split(sizes: ModelSizes, device: Device, count: int) -> ClusterConfig:
    """Return the trainers and engines for a recipe that does not specify them. If all stages are
    synchronous, each device trains and samples alternately. Otherwise half of the devices train,
    or as many as the model needs if these are more."""
    recipe, rest = sizes.recipe, dict(sizes.recipe.cluster)
    stages = [stage for stage in recipe.stages.values() if isinstance(stage, Rl)]
    if not stages:
        return ClusterConfig.model_validate({**rest, "trainers": count})
    tensor_parallel = recipe.cluster.tensor_parallel
    if tensor_parallel > count:
        raise UserError(
            f"an engine needs cluster.tensor_parallel={tensor_parallel} devices and there are"
            f" {count}: use more, or lower this key."
        )
    if not any(stage.asynchronous.max_staleness for stage in stages):
        both = {"trainers": count, "engines": count // tensor_parallel, "colocate": True}
        return ClusterConfig.model_validate({**rest, **both})
    min_trainers = find_min_trainers(sizes, device, range(1, count + 1)) or 1
    max_engines = (count - min_trainers) // tensor_parallel
    if not max_engines:
        raise UserError(
            f"{count} devices are too few for at least {min_trainers} trainers plus an engine: use"
            " more, or set max_staleness to 0, so that each device trains and samples alternately."
        )
    engines = min(max(count // 2 // tensor_parallel, 1), max_engines)
    trainers = count - engines * tensor_parallel
    return ClusterConfig.model_validate({**rest, "trainers": trainers, "engines": engines})


def find_min_trainers(sizes: ModelSizes, device: Device, numbers: Sequence[int]) -> int | None:
    """Return the first of the ascending numbers of trainers with which every stage fits; None if
    there is none. With more trainers, each needs less memory; only a single one gathers nothing."""

    def fits(number: int) -> bool:
        cluster = _update_cluster(sizes.recipe.cluster, trainers=number)
        return _trainers_fit(sizes, device, cluster)

    if numbers and fits(numbers[0]):
        return numbers[0]
    position = bisect_left(numbers, True, lo=min(1, len(numbers)), key=fits)
    return numbers[position] if position < len(numbers) else None


def _trainers_fit(sizes: ModelSizes, device: Device, cluster: ClusterConfig) -> bool:
    return _all_fit(
        device, (estimate_rank_memory(sizes, s, cluster) for s in sizes.recipe.stages.values())
    )


def _engines_fit(sizes: ModelSizes, device: Device, cluster: ClusterConfig) -> bool:
    return _all_fit(
        device, (estimate_engine_memory(sizes, s, cluster) for s in sizes.recipe.stages.values())
    )


def _all_fit(device: Device, processes: Iterable[MemoryParts]) -> bool:
    usable = USABLE_MEMORY_SHARE * device.memory_bytes
    return all(sum(parts.values()) <= usable for parts in processes)


def _update_cluster(cluster: ClusterConfig, **changes: int | bool) -> ClusterConfig:
    """Return the section `cluster` with changed values, without validation."""
    return cluster.model_copy(update=changes)


def _describe_overflow(
    sizes: ModelSizes,
    device: Device,
    count: int,
    cluster: ClusterConfig,
    stage: str,
    process: str,
    parts: MemoryParts,
) -> str:
    largest = max(parts, key=parts.__getitem__)
    return (
        f"stage '{stage}' does not fit: its {process} needs {format_gb(sum(parts.values()))}, of"
        f" which {format_gb(parts[largest])} are for {largest}, and a device ({device.name}) has"
        f" {format_gb(device.memory_bytes)}:"
        f" {_suggest_change(sizes, device, count, cluster, process)}."
    )


def _suggest_change(
    sizes: ModelSizes, device: Device, count: int, cluster: ClusterConfig, process: str
) -> str:
    """Return advice on settings with which the run fits."""
    if process == "engine":
        for devices in POWERS_OF_TWO:
            if _engines_fit(sizes, device, _update_cluster(cluster, tensor_parallel=devices)):
                return f"set cluster.tensor_parallel={devices}, or lower max_num_seqs"
        return "lower max_num_seqs and budget.max_context_tokens"
    if cluster.colocate:
        return "set cluster.colocate=false, or lower max_num_seqs and optim.micro_batch_tokens"
    further = [n for n in POWERS_OF_TWO if cluster.trainers < n]
    if number := find_min_trainers(sizes, device, further):
        lacking = " and use more devices" if number > count else ""
        return f"set cluster.trainers={number}{lacking}"
    for context in POWERS_OF_TWO[1:4]:
        trainers = cluster.trainers // context * context
        split = _update_cluster(cluster, trainers=trainers, context_parallel=context)
        if trainers and _trainers_fit(sizes, device, split):
            return f"set cluster.trainers={trainers} cluster.context_parallel={context}"
    return (
        "lower optim.micro_batch_tokens, or set optim.activation_checkpointing=true,"
        " optim.optimizer_state=8bit or lora.rank=32"
    )


def render_placement(plan: ClusterPlan) -> Iterator[str]:
    """Yield a line for each node with the processes on its devices."""
    by_node: dict[int, list[ProcessPlacement]] = defaultdict(list)
    for placement in plan.placements:
        by_node[placement.node].append(placement)
    for node, devices in enumerate(plan.devices_per_node):
        placements = by_node[node]
        parts = [_render_span(placements, role) for role in ("trainer", "engine")]
        text = "; ".join(part for part in parts if part) or "the run's own process"
        yield f"node {node}, devices {_render_range(0, devices - 1)}: {text}"


def _render_span(placements: Sequence[ProcessPlacement], role: str) -> str:
    processes = [placement for placement in placements if placement.role == role]
    if not processes:
        return ""
    last = processes[-1]
    which = _render_range(processes[0].index, last.index)
    where = _render_range(processes[0].first_device, last.first_device + last.num_devices - 1)
    devices = "device" if "-" not in where else "devices"
    return f"{role}{'s' if len(processes) > 1 else ''} {which} on {devices} {where}"


def _render_range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"
