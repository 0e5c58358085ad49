"""The plan of a recipe on so many devices, before anything starts: places, memory and time."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fieldcraft.cluster.placement import Place, place
from fieldcraft.config.cluster import Cluster
from fieldcraft.config.recipe import Recipe
from fieldcraft.config.rl import Rl
from fieldcraft.config.stages import Pairs, Stage, Supervised
from fieldcraft.runs.memory import Sizes
from fieldcraft.runs.setup import Setup
from fieldcraft.scaling.devices import Device, nodes_of
from fieldcraft.scaling.memory import Parts, engine_parts, process_parts, rank_parts
from fieldcraft.scaling.steps import best_split
from fieldcraft.scaling.times import StageTime, Timing, Usual
from fieldcraft.types import UserError

ROOM = 0.9  # of a device's memory; the rest is for what no formula knows
POWERS = tuple(2**power for power in range(8))


@dataclass(frozen=True)
class Plan:
    """A plan of a run. `chosen` says whether it split the devices itself, as the recipe does
    not."""

    cluster: Cluster
    chosen: bool
    nodes: Sequence[int]
    places: Sequence[Place]
    memory: dict[str, dict[str, Parts]]  # stage, process, what for: bytes
    times: Sequence[StageTime]

    @property
    def seconds(self) -> float:
        """Seconds of all stages whose steps are known."""
        return sum(time.seconds or 0.0 for time in self.times)

    @property
    def longest(self) -> StageTime:
        return max(self.times, key=lambda time: (time.seconds or 0.0, time.step))

    @property
    def unknown(self) -> list[str]:
        """The stages whose steps are not."""
        return [time.name for time in self.times if time.steps is None]


def read_model(recipe: Recipe) -> Setup:
    """Read the model's shapes, without weights. Raises UserError where there is none to be read."""
    with tempfile.TemporaryDirectory() as draft:
        setup = Setup(recipe, Path(draft))
        problems: list[str] = []
        if recipe.model is None:
            problems += setup.find_questions([])
        problems += setup.find_model([])
    if problems:
        raise UserError(problems[0])
    return setup


def make_plan(setup: Sizes, device: Device, count: int, usual: Usual) -> Plan:
    """Plan the run of a recipe on `count` devices.

    Raises UserError for no devices, for fewer than the recipe asks for, for a recipe without
    stages, and for one that does not fit, with what to change.
    """
    recipe, nodes = setup.recipe, nodes_of(device, count)
    if not recipe.stages:
        raise UserError(f"recipe '{recipe.recipe}' trains nothing, so there is nothing to plan.")
    timing = Timing(setup, device, usual, partial(_examples, recipe))
    cluster, chosen = recipe.cluster, not (recipe.cluster.trainers or recipe.cluster.engines)
    places = place(cluster, nodes)  # before all else: it may ask for more than there is
    if chosen and count > 1:
        cluster = _split(setup, device, timing, count)
        places = place(cluster, nodes)
    memory = {name: process_parts(setup, stage, cluster) for name, stage in recipe.stages.items()}
    for name, processes in memory.items():
        for process, parts in processes.items():
            if sum(parts.values()) > device.memory:
                raise UserError(_too_large(setup, device, count, cluster, name, process, parts))
    times = [t for name, stage in recipe.stages.items() for t in timing.each(name, stage, cluster)]
    return Plan(cluster, chosen and count > 1, nodes, places, memory, times)


def _split(setup: Sizes, device: Device, timing: Timing, count: int) -> Cluster:
    """Return the trainers and engines for a recipe that names none: those with which its longest
    stage is fastest. In turns each device does both."""
    recipe, rest = setup.recipe, dict(setup.recipe.cluster)
    stages = [stage for stage in recipe.stages.values() if isinstance(stage, Rl)]
    if not stages:
        return Cluster.model_validate({**rest, "trainers": count})
    longest = max(stages, key=lambda s: s.steps * s.questions * s.group)
    each = recipe.cluster.engine_devices
    if not longest.asynchronous.max_staleness:
        both = {"trainers": count, "engines": count // each, "colocate": True}
        return Cluster.model_validate({**rest, **both})

    timing = timing.at_longest(longest)

    def of(trainers: int = 1, engines: int = 1) -> Cluster:
        return Cluster(trainers=trainers, engines=engines, engine_devices=each)

    fewest = _fewest_trainers(setup, device, range(1, count + 1)) or 1
    found = best_split(
        count,
        each,
        lambda trainers: timing.of("", longest, of(trainers)).training,
        lambda engines: timing.sampling(longest, of(engines=engines)),
        fewest,
    )
    if found is None:
        raise UserError(
            f"{count} devices are too few for the trainers, of which there must be {fewest}, and an"
            " engine beside them: give more, or set max_staleness to 0, so that they take turns."
        )
    return Cluster.model_validate({**rest, "trainers": found.trainers, "engines": found.engines})


def _fewest_trainers(setup: Sizes, device: Device, numbers: Sequence[int]) -> int | None:
    """Return the first of some numbers of trainers with which every stage fits; None where no
    number does."""
    clusters = (replace_cluster(setup.recipe.cluster, trainers=n) for n in numbers)
    return next((c.trainers for c in clusters if _trainers_fit(setup, device, c)), None)


def _trainers_fit(setup: Sizes, device: Device, cluster: Cluster) -> bool:
    parts = [rank_parts(setup, stage, cluster) for stage in setup.recipe.stages.values()]
    return all(sum(part.values()) <= ROOM * device.memory for part in parts)


def replace_cluster(cluster: Cluster, **changes: int | bool) -> Cluster:
    """Return the section `cluster` with other values, unchecked."""
    return cluster.model_copy(update=changes)


def _too_large(
    setup: Sizes,
    device: Device,
    count: int,
    cluster: Cluster,
    stage: str,
    process: str,
    parts: Parts,
) -> str:
    most = max(parts, key=parts.__getitem__)
    return (
        f"stage '{stage}' does not fit: its {process} needs {giga(sum(parts.values()))}, of which"
        f" {giga(parts[most])} are for {most}, and a device ({device.name}) has"
        f" {giga(device.memory)}: {_advice(setup, device, count, cluster, process)}."
    )


def _advice(setup: Sizes, device: Device, count: int, cluster: Cluster, process: str) -> str:
    """Return advice on what to set, so that it fits."""
    recipe = setup.recipe
    if process == "engine":
        for devices in POWERS:
            wider = replace_cluster(cluster, engine_devices=devices)
            parts = [engine_parts(setup, stage, wider) for stage in recipe.stages.values()]
            if all(sum(part.values()) <= ROOM * device.memory for part in parts):
                return f"set cluster.engine_devices={devices}, or lower max_rows"
        return "lower max_rows and budget.total_tokens"
    if cluster.colocate:
        return "set cluster.colocate=false, or lower max_rows and optim.micro_tokens"
    further = [n for n in POWERS if cluster.trainers < n]
    if number := _fewest_trainers(setup, device, further):
        lacking = " and give more devices" if number > count else ""
        return f"set cluster.trainers={number}{lacking}"
    for context in POWERS[1:4]:
        trainers = cluster.trainers // context * context
        parted = replace_cluster(cluster, trainers=trainers, context=context)
        if trainers and _trainers_fit(setup, device, parted):
            return f"set cluster.trainers={trainers} cluster.context={context}"
    return (
        "lower optim.micro_tokens, or set optim.activation_checkpointing=true,"
        " optim.moments=8bit or lora.rank=32"
    )


def _examples(recipe: Recipe, stage: Stage) -> int | None:
    """Return the number of examples that a supervised stage has, where a file of lines says so."""
    if not isinstance(stage, Supervised):
        return None
    file = recipe.pairs if isinstance(stage, Pairs) else recipe.demonstrations
    if file is None or file.suffix != ".jsonl":
        return stage.examples
    with file.open("rb") as lines:
        found = sum(1 for line in lines if line.strip())
    return min(found, stage.examples or found)


def giga(size: float) -> str:
    """Format a number of bytes for a reader."""
    return f"{size / 1e9:.3g} GB"


def placed(plan: Plan) -> Iterator[str]:
    """Yield a line for each node: which processes are on which of its devices."""
    for node, devices in enumerate(plan.nodes):
        here = [one for one in plan.places if one.node == node]
        parts = [_span(here, role) for role in ("trainer", "engine")]
        said = "; ".join(part for part in parts if part) or "the run's own process"
        yield f"node {node}, devices {_range(0, devices - 1)}: {said}"


def _span(places: Sequence[Place], role: str) -> str:
    of = [one for one in places if one.role == role]
    if not of:
        return ""
    last = of[-1]
    which = _range(of[0].number, last.number)
    where = _range(of[0].first, last.first + last.devices - 1)
    devices = "device" if "-" not in where else "devices"
    return f"{role}{'s' if len(of) > 1 else ''} {which} on {devices} {where}"


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"
