"""The place of each process of a run: a pure function of the recipe and the devices there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fieldcraft.config.cluster import Cluster
from fieldcraft.types import UserError

Role = Literal["trainer", "engine"]


@dataclass(frozen=True, slots=True)
class Place:
    """A process and its devices: `devices` of the node `node`, from the device `first` on."""

    role: Role
    number: int
    node: int
    first: int
    devices: int


def place(cluster: Cluster, nodes: Sequence[int]) -> list[Place]:
    """Return the places of trainers, then of engines, on nodes that have so many devices each.

    Trainers fill the nodes in their order, so that ranks beside each other exchange gradients over
    the fastest wires. Engines take what is left; colocated ones take the devices of the first
    trainers. An engine never lies on two nodes.

    Raises UserError for fewer devices than are asked for.
    """
    if cluster.devices > sum(nodes):
        raise UserError(_too_few(cluster, nodes))
    trainers = _fill("trainer", cluster.trainers, 1, nodes, [0] * len(nodes))
    taken = [0 if cluster.colocate else _taken(trainers, node) for node in range(len(nodes))]
    room = [_taken(trainers, node) for node in range(len(nodes))] if cluster.colocate else nodes
    engines = _fill("engine", cluster.engines, cluster.engine_devices, room, taken)
    if len(engines) < cluster.engines:
        raise UserError(
            f"cluster.engines={cluster.engines} with engine_devices={cluster.engine_devices} do not"
            f" fit beside the trainers, because an engine needs its devices on one node and the"
            f" nodes have {_list(nodes)}: lower one of them."
        )
    return trainers + engines


def _fill(
    role: Role, count: int, devices: int, nodes: Sequence[int], taken: Sequence[int]
) -> list[Place]:
    """Return the places of as many of `count` processes as fit, node by node."""
    places: list[Place] = []
    for node, (has, first) in enumerate(zip(nodes, taken, strict=True)):
        while first + devices <= has and len(places) < count:
            places.append(Place(role, len(places), node, first, devices))
            first += devices
    return places


def _taken(places: Sequence[Place], node: int) -> int:
    return sum(one.devices for one in places if one.node == node)


def _too_few(cluster: Cluster, nodes: Sequence[int]) -> str:
    engines = f"{cluster.engines} engines"
    if cluster.engine_devices > 1:
        engines += f" of {cluster.engine_devices}"
    return (
        f"the recipe asks for {cluster.devices} devices ({cluster.trainers} trainers and {engines})"
        f" and there are {sum(nodes)}: lower cluster.trainers or cluster.engines, or add machines."
    )


def _list(nodes: Sequence[int]) -> str:
    return ", ".join(map(str, nodes))
