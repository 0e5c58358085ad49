"""Plan of a recipe on a number of devices, before it runs: placement, memory and time."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fieldcraft.cluster.placement import ProcessPlacement, place_processes
from fieldcraft.config.cluster import ClusterConfig
from fieldcraft.config.recipe import Recipe
from fieldcraft.config.rl import Rl
from fieldcraft.config.stages import Contrastive, Stage, SupervisedConfig
from fieldcraft.runs.memory import ModelSizes
from fieldcraft.runs.setup import CheckContext
from fieldcraft.scaling.devices import Device, split_into_nodes
from fieldcraft.scaling.memory import (
    MemoryParts,
    estimate_engine_memory,
    estimate_process_memory,
    estimate_rank_memory,
)
from fieldcraft.scaling.steps import find_best_split
from fieldcraft.scaling.times import StageTime, StageTimeEstimator, TypicalText
from fieldcraft.types import UserError

USABLE_MEMORY_SHARE = (
    0.9  # share of a device's memory; the rest is for usage that no formula covers
)
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
    stage_times: Sequence[StageTime]

    @property
    def total_seconds(self) -> float:
        """Seconds of all stages whose number of steps is known."""
        return sum(time.total_seconds or 0.0 for time in self.stage_times)

    @property
    def slowest_stage(self) -> StageTime:
        return max(
            self.stage_times, key=lambda time: (time.total_seconds or 0.0, time.step_seconds)
        )

    @property
    def stages_without_steps(self) -> list[str]:
        """Names of the stages whose number of steps is unknown."""
        return [time.name for time in self.stage_times if time.steps is None]


def load_model_sizes(recipe: Recipe) -> CheckContext:
    """Read the model's shapes, without weights. Raises UserError if they cannot be read."""
    with tempfile.TemporaryDirectory() as draft:
        sizes = CheckContext(recipe, Path(draft))
        problems: list[str] = []
        if recipe.model is None:
            problems += sizes.load_questions([])
        problems += sizes.load_first_model([])
    if problems:
        raise UserError(problems[0])
    return sizes


def make_plan(
    sizes: ModelSizes, device: Device, count: int, typical_text: TypicalText
) -> ClusterPlan:
    """Plan the run of a recipe on `count` devices.

    Raises UserError, with advice, if `count` is less than 1 or than the recipe requires, if the
    recipe has no stages, or if it does not fit.
    """
    recipe, nodes = sizes.recipe, split_into_nodes(device, count)
    if not recipe.stages:
        raise UserError(f"recipe '{recipe.name}' trains nothing, so there is nothing to plan.")
    estimator = StageTimeEstimator(sizes, device, typical_text, partial(_count_examples, recipe))
    cluster, is_auto_split = recipe.cluster, not (recipe.cluster.trainers or recipe.cluster.engines)
    placements = place_processes(
        cluster, nodes
    )  # first, because it may require more devices than available
    if is_auto_split and count > 1:
        cluster = _choose_split(sizes, device, estimator, count)
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
    times = [
        t
        for name, stage in recipe.stages.items()
        for t in estimator.estimate_periods(name, stage, cluster)
    ]
    return ClusterPlan(cluster, is_auto_split and count > 1, nodes, placements, memory, times)


def _choose_split(
    sizes: ModelSizes, device: Device, estimator: StageTimeEstimator, count: int
) -> ClusterConfig:
    """Return the trainers and engines for a recipe that does not specify them, which minimise the
    time of its longest stage. In a synchronous stage each device does both."""
    recipe, rest = sizes.recipe, dict(sizes.recipe.cluster)
    stages = [stage for stage in recipe.stages.values() if isinstance(stage, Rl)]
    if not stages:
        return ClusterConfig.model_validate({**rest, "trainers": count})
    longest = max(stages, key=lambda s: s.steps * s.questions_per_step * s.group_size)
    tensor_parallel = recipe.cluster.tensor_parallel
    if not longest.asynchronous.max_staleness:
        both = {"trainers": count, "engines": count // tensor_parallel, "colocate": True}
        return ClusterConfig.model_validate({**rest, **both})

    estimator = estimator.with_longest_budget(longest)

    def make_cluster(trainers: int = 1, engines: int = 1) -> ClusterConfig:
        return ClusterConfig(trainers=trainers, engines=engines, tensor_parallel=tensor_parallel)

    min_trainers = _find_min_trainers(sizes, device, range(1, count + 1)) or 1
    found = find_best_split(
        count,
        tensor_parallel,
        lambda trainers: estimator.estimate("", longest, make_cluster(trainers)).training_seconds,
        lambda engines: estimator.estimate_sampling(longest, make_cluster(engines=engines)),
        min_trainers,
    )
    if found is None:
        raise UserError(
            f"{count} devices are too few for at least {min_trainers} trainers plus an engine: use"
            " more, or set max_staleness to 0, so that each device trains and samples alternately."
        )
    return ClusterConfig.model_validate(
        {**rest, "trainers": found.trainers, "engines": found.engines}
    )


def _find_min_trainers(sizes: ModelSizes, device: Device, numbers: Sequence[int]) -> int | None:
    """Return the first of the numbers of trainers with which every stage fits; None if there is
    none."""
    clusters = (update_cluster(sizes.recipe.cluster, trainers=n) for n in numbers)
    return next((c.trainers for c in clusters if _trainers_fit(sizes, device, c)), None)


def _trainers_fit(sizes: ModelSizes, device: Device, cluster: ClusterConfig) -> bool:
    parts = [estimate_rank_memory(sizes, stage, cluster) for stage in sizes.recipe.stages.values()]
    return all(sum(part.values()) <= USABLE_MEMORY_SHARE * device.memory_bytes for part in parts)


def update_cluster(cluster: ClusterConfig, **changes: int | bool) -> ClusterConfig:
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
    recipe = sizes.recipe
    if process == "engine":
        for devices in POWERS_OF_TWO:
            wider = update_cluster(cluster, tensor_parallel=devices)
            parts = [
                estimate_engine_memory(sizes, stage, wider) for stage in recipe.stages.values()
            ]
            if all(
                sum(part.values()) <= USABLE_MEMORY_SHARE * device.memory_bytes for part in parts
            ):
                return f"set cluster.tensor_parallel={devices}, or lower max_num_seqs"
        return "lower max_num_seqs and budget.max_context_tokens"
    if cluster.colocate:
        return "set cluster.colocate=false, or lower max_num_seqs and optim.micro_batch_tokens"
    further = [n for n in POWERS_OF_TWO if cluster.trainers < n]
    if number := _find_min_trainers(sizes, device, further):
        lacking = " and use more devices" if number > count else ""
        return f"set cluster.trainers={number}{lacking}"
    for context in POWERS_OF_TWO[1:4]:
        trainers = cluster.trainers // context * context
        split = update_cluster(cluster, trainers=trainers, context_parallel=context)
        if trainers and _trainers_fit(sizes, device, split):
            return f"set cluster.trainers={trainers} cluster.context_parallel={context}"
    return (
        "lower optim.micro_batch_tokens, or set optim.activation_checkpointing=true,"
        " optim.optimizer_state=8bit or lora.rank=32"
    )


def _count_examples(recipe: Recipe, stage: Stage) -> int | None:
    """Return the number of examples of a supervised stage, counted in a JSON Lines file if there is
    one. None if unknown."""
    if not isinstance(stage, SupervisedConfig):
        return None
    file = recipe.pairs if isinstance(stage, Contrastive) else recipe.demonstrations
    if file is None or file.suffix != ".jsonl":
        return stage.max_examples
    with file.open("rb") as lines:
        found = sum(1 for line in lines if line.strip())
    return min(found, stage.max_examples or found)


def format_gb(size: float) -> str:
    """Format a number of bytes as GB."""
    return f"{size / 1e9:.3g} GB"


def render_placement(plan: ClusterPlan) -> Iterator[str]:
    """Yield a line for each node with the processes on its devices."""
    for node, devices in enumerate(plan.devices_per_node):
        placements = [placement for placement in plan.placements if placement.node == node]
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
