"""Placement of the processes of a run: a pure function of the recipe and the available devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fieldcraft.config.sections import ClusterConfig
from fieldcraft.types import UserError

ProcessRole = Literal["trainer", "engine"]


@dataclass(frozen=True, slots=True)
class ProcessPlacement:
    """Process and its devices: `num_devices` of the node `node`, starting at `first_device`."""

    role: ProcessRole
    index: int
    node: int
    first_device: int
    num_devices: int


def place_processes(cluster: ClusterConfig, nodes: Sequence[int]) -> list[ProcessPlacement]:
    """Return the placements of trainers, then of engines. `nodes` has the devices of each node.

    Trainers fill the nodes in order, so that neighbouring ranks exchange gradients over the fastest
    links. Engines use the remaining devices; colocated engines use the devices of the first
    trainers. An engine never spans two nodes.

    Raises UserError if there are not enough devices.
    """
    if cluster.num_devices > sum(nodes):
        raise UserError(_describe_shortage(cluster, nodes))
    trainers = _fill_nodes("trainer", cluster.trainers, 1, nodes, [0] * len(nodes))
    used = _count_taken(trainers, len(nodes))
    taken, capacity = ([0] * len(nodes), used) if cluster.colocate else (used, nodes)
    engines = _fill_nodes("engine", cluster.engines, cluster.tensor_parallel, capacity, taken)
    if len(engines) < cluster.engines:
        raise UserError(
            f"cluster.engines={cluster.engines} with tensor_parallel={cluster.tensor_parallel} do"
            " not fit next to the trainers: an engine needs all its devices on one node, and the"
            f" nodes have {_format_counts(nodes)}; lower one of the two keys."
        )
    return trainers + engines


def _fill_nodes(
    role: ProcessRole, count: int, devices: int, nodes: Sequence[int], taken: Sequence[int]
) -> list[ProcessPlacement]:
    """Return the placements of as many of `count` processes as fit, node by node."""
    placements: list[ProcessPlacement] = []
    for node, (capacity, first) in enumerate(zip(nodes, taken, strict=True)):
        while first + devices <= capacity and len(placements) < count:
            placements.append(ProcessPlacement(role, len(placements), node, first, devices))
            first += devices
    return placements


def _count_taken(placements: Sequence[ProcessPlacement], num_nodes: int) -> list[int]:
    """Return the number of used devices of each node."""
    counts = [0] * num_nodes
    for placement in placements:
        counts[placement.node] += placement.num_devices
    return counts


def _describe_shortage(cluster: ClusterConfig, nodes: Sequence[int]) -> str:
    engines = f"{cluster.engines} engines"
    if cluster.tensor_parallel > 1:
        engines += f" of {cluster.tensor_parallel}"
    return (
        f"the recipe requires {cluster.num_devices} devices ({cluster.trainers} trainers and"
        f" {engines}), but the cluster has {sum(nodes)}: lower cluster.trainers or cluster.engines,"
        " or add machines."
    )


def _format_counts(nodes: Sequence[int]) -> str:
    return ", ".join(map(str, nodes))
