"""Checks of every node before a run starts."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fieldcraft.cluster import probe
from fieldcraft.cluster.remote import import_ray
from fieldcraft.types import UserError

NODE_TIMEOUT_SECONDS = 120  # seconds for a node to answer
TOKEN_FILE = ".seen-by-all-nodes"


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """Machine of the cluster: its id, address and number of devices."""

    id: str
    address: str
    num_devices: int


def require_usable_nodes(nodes: Sequence[ClusterNode], folder: Path) -> None:
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


def require_free_port(node: ClusterNode, port: int) -> None:
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
