"""Ray session of a run: Ray is started or joined, checked, and left at the end."""

from __future__ import annotations

import logging
import os
import socket
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fieldcraft.config.names import get_first_line
from fieldcraft.config.sections import ClusterConfig
from fieldcraft.extensions.cluster import probe
from fieldcraft.extensions.cluster.placement import ProcessPlacement, ProcessRole, place_processes
from fieldcraft.extensions.cluster.remote import import_ray
from fieldcraft.records.waits import report_blocking_wait
from fieldcraft.types import UserError

CONNECT_TIMEOUT_SECONDS = 10
NODE_TIMEOUT_SECONDS = 120  # seconds for a node to answer
RESERVE_TIMEOUT_SECONDS = 60  # seconds for Ray to reserve what a run needs
TOKEN_FILE = ".seen-by-all-nodes"


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """Machine of the cluster: its id, address and number of devices."""

    id: str
    address: str
    num_devices: int


@dataclass(frozen=True)
class ClusterSession:
    """Nodes of a run, the placement of its processes, and Ray's placement group."""

    settings: ClusterConfig
    device: str  # cuda or cpu
    nodes: Sequence[ClusterNode]
    placements: Sequence[ProcessPlacement]
    placement_group: Any

    def select_placements(self, role: ProcessRole) -> list[ProcessPlacement]:
        """Return the placements of all processes of a role."""
        return [placement for placement in self.placements if placement.role == role]

    @property
    def summary(self) -> str:
        """Log message with the number of processes on each node."""
        counts = Counter(
            (self.nodes[placement.node].address, placement.role) for placement in self.placements
        )
        parts = [f"{count} {role}s on {address}" for (address, role), count in counts.items()]
        return f"device {self.device}: {', '.join(parts)}"

    def start_actor(
        self, placement: ProcessPlacement, actor_class: type, *args: Any, **options: Any
    ) -> Any:
        """Start an actor at its placement, and return its handle. `options` are passed to Ray."""
        ray = import_ray()
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        is_colocated = self.settings.colocate and placement.role == "engine"
        bundle = (
            _find_host_index(self.placements, placement)
            if is_colocated
            else self.placements.index(placement)
        )
        num_devices = (
            0 if is_colocated else placement.num_devices
        )  # devices of a colocated engine are counted for its trainer
        options |= {
            "num_cpus": 0 if self.device == "cuda" else num_devices,
            "num_gpus": num_devices if self.device == "cuda" else 0,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                self.placement_group, placement_group_bundle_index=bundle
            ),
        }
        return ray.remote(**options)(actor_class).remote(*args)


def _find_host_index(placements: Sequence[ProcessPlacement], engine: ProcessPlacement) -> int:
    """Return the index of the trainer on whose device a colocated engine starts."""
    return next(
        index
        for index, placement in enumerate(placements)
        if placement.role == "trainer"
        and (placement.node, placement.first_device) == (engine.node, engine.first_device)
    )


@contextmanager
def open_cluster(settings: ClusterConfig, device: str, folder: Path) -> Iterator[ClusterSession]:
    """Start Ray on this machine or join a cluster, reserve the devices of a run, and yield the
    session. `device` comes from the recipe; `auto` selects GPUs if any node has one.

    Raises UserError if Ray is not installed or does not start, a cluster does not respond, there
    are fewer devices than requested, a node has other versions or cannot access `folder`, or the
    port is in use.
    """
    ray = import_ray()
    started_here = not ray.is_initialized()
    if started_here:
        _start_ray(settings, device)
    try:
        if device == "auto":
            device = "cuda" if any(node.num_devices for node in _list_nodes("cuda")) else "cpu"
        nodes = _list_nodes(device)
        placements = place_processes(settings, [node.num_devices for node in nodes])
        _require_usable_nodes(nodes, folder)
        if settings.trainers:
            _require_free_port(nodes[placements[0].node], settings.rendezvous_port)
        placement_group = _reserve(settings, device, nodes, placements)
        try:
            yield ClusterSession(settings, device, nodes, placements, placement_group)
        finally:
            ray.util.remove_placement_group(placement_group)
    finally:
        if started_here:
            ray.shutdown()


def _start_ray(settings: ClusterConfig, device: str) -> None:
    ray = import_ray()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    address = settings.ray_address or os.environ.get("RAY_ADDRESS") or "local"
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == "local":
        # Without GPUs the processes of a small run share the cores.
        cores = max(os.cpu_count() or 1, settings.num_devices if device != "cuda" else 1)
        options |= {"num_cpus": cores, "include_dashboard": False}
    try:
        with report_blocking_wait("the cluster", f"Ray at {address}"):
            _require_listening(address)
            ray.init(address=address, **options)
    except (OSError, ValueError) as error:  # wrong name, no connection, or no response in time
        raise UserError(
            f"no Ray cluster responds at {address} ({get_first_line(error)[:200]}): start it as"
            " described in docs/many-gpus.md, or correct cluster.ray_address or RAY_ADDRESS."
        ) from error
    except RuntimeError as error:
        raise UserError(
            f"the Ray cluster at {address} cannot be joined ({get_first_line(error)[:200]}):"
            " install the same Python and ray on every node."
        ) from error
    except Exception as error:
        if type(error) is not Exception:  # Ray has no specific type for a start that takes too long
            raise
        raise UserError(
            f"Ray did not start in time ({get_first_line(error)[:200]}): try again when this"
            " machine is less busy, or join a running cluster."
        ) from error


def _require_listening(address: str) -> None:
    """Raise OSError if nothing listens at the address: Ray would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), CONNECT_TIMEOUT_SECONDS).close()


def _list_nodes(device: str) -> list[ClusterNode]:
    """Return all running nodes, this machine first."""
    ray = import_ray()
    resource = "GPU" if device == "cuda" else "CPU"
    own_address = ray.util.get_node_ip_address()
    found = [
        ClusterNode(
            info["NodeID"], info["NodeManagerAddress"], int(info["Resources"].get(resource, 0))
        )
        for info in ray.nodes()
        if info["Alive"]
    ]
    return sorted(found, key=lambda node: (node.address != own_address, node.address, node.id))


def _reserve(
    settings: ClusterConfig,
    device: str,
    nodes: Sequence[ClusterNode],
    placements: Sequence[ProcessPlacement],
) -> Any:
    """Return Ray's placement group: it is reserved atomically, so that two runs do not wait for
    each other."""
    ray = import_ray()
    resource = "GPU" if device == "cuda" else "CPU"
    reserved = [
        placement
        for placement in placements
        if not (settings.colocate and placement.role == "engine")
    ]
    group = ray.util.placement_group(
        [{resource: placement.num_devices} for placement in reserved],
        bundle_label_selector=[
            {"ray.io/node-id": nodes[placement.node].id} for placement in reserved
        ],
    )
    with report_blocking_wait(
        "the run", f"the devices of {len(reserved)} processes on the cluster"
    ):
        is_ready = group.wait(RESERVE_TIMEOUT_SECONDS)
    if not is_ready:
        ray.util.remove_placement_group(group)
        raise UserError(
            f"the cluster did not allocate devices for {len(reserved)} processes within "
            f"{RESERVE_TIMEOUT_SECONDS} s:"
            " another run may hold them; wait for it or request fewer."
        )
    return group


# -- checks of the nodes ---------------------------------------------------------------------------


def _require_usable_nodes(nodes: Sequence[ClusterNode], folder: Path) -> None:
    """Raise UserError if a node has other versions than this process, or cannot access the run
    folder."""
    own_versions, _ = probe.collect_node_report("")
    token = folder / TOKEN_FILE
    nonce = uuid.uuid4().hex
    token.write_text(nonce, "utf-8")
    try:
        reports = _run_on_nodes(nodes, probe.collect_node_report, str(token.absolute()))
    finally:
        token.unlink()
    for node, (versions, read_nonce) in zip(nodes, reports, strict=True):
        require_same_versions(own_versions, versions, node.address)
        if read_nonce != nonce:
            raise UserError(
                f"the node {node.address} cannot access the run folder {folder.absolute()}:"
                " choose a folder with --out that all nodes share at the same path."
            )


def require_same_versions(
    own_versions: Mapping[str, str], node_versions: Mapping[str, str], address: str
) -> None:
    """Raise UserError for the first package whose versions differ."""
    for package, version in own_versions.items():
        if node_versions[package] != version:
            raise UserError(
                f"the node {address} has {package} {node_versions[package]} and this machine has"
                f" {version}: install the same versions on every node."
            )


def _require_free_port(node: ClusterNode, port: int) -> None:
    """Raise UserError if a port of a node is in use; 0 stands for any free port."""
    [is_free] = _run_on_nodes([node], probe.is_port_free, node.address, port)
    if not is_free:
        raise UserError(
            f"cluster.rendezvous_port={port} is in use on the node {node.address}: choose another"
            " one, or 0 for any that is free."
        )


def _run_on_nodes(
    nodes: Sequence[ClusterNode], function: Callable[..., Any], *arguments: Any
) -> list[Any]:
    """Return the result of each node. Raises UserError if a node does not respond."""
    ray = import_ray()
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray.cloudpickle.register_pickle_by_value(probe)
    remote_function = ray.remote(function)
    references = [
        remote_function.options(
            num_cpus=0,
            max_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
        ).remote(*arguments)
        for node in nodes
    ]
    answers = []
    for node, reference in zip(nodes, references, strict=True):
        try:
            answers.append(ray.get(reference, timeout=NODE_TIMEOUT_SECONDS))
        except ray.exceptions.RayError as error:
            raise UserError(
                f"the node {node.address} of the cluster does not respond"
                f" ({type(error).__name__}): check with 'ray status' that Ray is running there."
            ) from error
    return answers
