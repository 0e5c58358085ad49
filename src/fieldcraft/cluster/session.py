"""Ray for the length of a run: it is started here or joined, inspected, and left."""

from __future__ import annotations

import logging
import os
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fieldcraft.cluster.placement import Place, Role, place
from fieldcraft.cluster.preflight import Node, look_at_nodes, refuse_port_in_use
from fieldcraft.cluster.remote import import_ray
from fieldcraft.config.cluster import Cluster
from fieldcraft.config.names import first_line
from fieldcraft.records.waits import blocking
from fieldcraft.types import UserError

SECONDS_TO_CONNECT = 10
PATIENCE = 60  # seconds for Ray to reserve what a run needs


@dataclass(frozen=True)
class Session:
    """The nodes of a run, the place of each process on them, and Ray's reservation of these."""

    settings: Cluster
    device: str  # cuda or cpu
    nodes: Sequence[Node]
    places: Sequence[Place]
    group: Any

    def of(self, role: Role) -> list[Place]:
        """Return the places of all processes of a role."""
        return [place for place in self.places if place.role == role]

    @property
    def described(self) -> str:
        """Description of what runs where, for the reader of the run."""
        counts = Counter((self.nodes[place.node].address, place.role) for place in self.places)
        parts = [f"{count} {role}s on {address}" for (address, role), count in counts.items()]
        return f"device {self.device}: {', '.join(parts)}"

    def actor(self, place: Place, kind: type, *args: Any, **options: Any) -> Any:
        """Start a process of a class in its place, and return Ray's handle of it. `options` are
        Ray's."""
        ray = import_ray()
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        guest = self.settings.colocate and place.role == "engine"
        bundle = _hosting(self.places, place) if guest else self.places.index(place)
        taken = 0 if guest else place.devices  # a guest's are counted as those of its trainer
        options |= {
            "num_cpus": 0 if self.device == "cuda" else taken,
            "num_gpus": taken if self.device == "cuda" else 0,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                self.group, placement_group_bundle_index=bundle
            ),
        }
        return ray.remote(**options)(kind).remote(*args)

    def on(self, node: Node, kind: type, *args: Any, **options: Any) -> Any:
        """Start a process on a node that takes none of its devices."""
        ray = import_ray()
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        where = NodeAffinitySchedulingStrategy(node.id, soft=False)
        options |= {"num_cpus": 0, "scheduling_strategy": where}
        return ray.remote(**options)(kind).remote(*args)


def _hosting(places: Sequence[Place], engine: Place) -> int:
    """Return the index of the trainer on whose device an engine begins."""
    return next(
        index
        for index, one in enumerate(places)
        if one.role == "trainer" and (one.node, one.first) == (engine.node, engine.first)
    )


@contextmanager
def joined(settings: Cluster, device: str, folder: Path) -> Iterator[Session]:
    """Start a Ray of this machine or join a cluster, reserve what a run needs, and yield the
    session. `device` is that of the recipe; `auto` takes GPUs if a node has any, this machine or
    another one.

    Raises UserError if Ray is not there or does not start, a cluster does not answer, there are
    fewer devices than the recipe asks for, a node has other versions or does not see `folder`, or
    the port is in use.
    """
    ray = import_ray()
    begun = not ray.is_initialized()
    if begun:
        _begin(settings, device)
    try:
        if device == "auto":
            device = "cuda" if any(node.devices for node in _nodes("cuda")) else "cpu"
        nodes = _nodes(device)
        places = place(settings, [node.devices for node in nodes])
        look_at_nodes(nodes, folder)
        if settings.trainers:
            refuse_port_in_use(nodes[places[0].node], settings.port)
        group = _reserve(settings, device, nodes, places)
        try:
            yield Session(settings, device, nodes, places, group)
        finally:
            if group is not None:
                ray.util.remove_placement_group(group)
    finally:
        if begun:
            ray.shutdown()


def _begin(settings: Cluster, device: str) -> None:
    ray = import_ray()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    address = settings.address or os.environ.get("RAY_ADDRESS") or "local"
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == "local":
        # Without GPUs the processes of a small run share the cores.
        cores = max(os.cpu_count() or 1, settings.devices if device != "cuda" else 1)
        options |= {"num_cpus": cores, "include_dashboard": False}
    try:
        with blocking("the cluster", f"Ray at {address}"):
            _knock(address)
            ray.init(address=address, **options)
    except (OSError, ValueError) as error:  # a wrong name, no connection, or no answer in time
        raise UserError(
            f"no Ray cluster answers at {address} ({first_line(error)[:200]}): start it as"
            " docs/many-gpus.md says, or correct cluster.address or RAY_ADDRESS."
        ) from error
    except RuntimeError as error:
        raise UserError(
            f"the Ray cluster at {address} cannot be joined ({first_line(error)[:200]}): install"
            " the same Python and ray on every node."
        ) from error
    except Exception as error:
        if type(error) is not Exception:  # Ray has no other type for a start that takes too long
            raise
        raise UserError(
            f"Ray did not start in time ({first_line(error)[:200]}): try again when this machine is"
            " less busy, or join a cluster that runs already."
        ) from error


def _knock(address: str) -> None:
    """Raise OSError where nothing listens: Ray would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), SECONDS_TO_CONNECT).close()


def _nodes(device: str) -> list[Node]:
    """Return all nodes that live, this machine first."""
    ray = import_ray()
    kind = "GPU" if device == "cuda" else "CPU"
    here = ray.util.get_node_ip_address()
    found = [
        Node(one["NodeID"], one["NodeManagerAddress"], int(one["Resources"].get(kind, 0)))
        for one in ray.nodes()
        if one["Alive"]
    ]
    return sorted(found, key=lambda node: (node.address != here, node.address, node.id))


def _reserve(settings: Cluster, device: str, nodes: Sequence[Node], places: Sequence[Place]) -> Any:
    """Return Ray's reservation: all of it or nothing, so that two runs do not wait for each
    other."""
    ray = import_ray()
    kind = "GPU" if device == "cuda" else "CPU"
    own = [one for one in places if not (settings.colocate and one.role == "engine")]
    if not own:
        return None
    group = ray.util.placement_group(
        [{kind: one.devices} for one in own],
        bundle_label_selector=[{"ray.io/node-id": nodes[one.node].id} for one in own],
    )
    with blocking("the run", f"the devices of {len(own)} processes on the cluster"):
        given = group.wait(PATIENCE)
    if not given:
        ray.util.remove_placement_group(group)
        raise UserError(
            f"the cluster did not give {len(own)} processes their devices within {PATIENCE} s:"
            " another run may have them, so wait for it or ask for fewer."
        )
    return group
