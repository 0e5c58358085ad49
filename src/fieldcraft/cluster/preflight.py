"""Conditions that must hold on every node before a run begins; each failure is a sentence."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fieldcraft.cluster import probe
from fieldcraft.cluster.remote import import_ray
from fieldcraft.types import UserError

PATIENCE = 120  # seconds for a node to answer
TOKEN = ".seen-by-all-nodes"


@dataclass(frozen=True, slots=True)
class Node:
    """A machine of the cluster: its id and address, and how many devices it has."""

    id: str
    address: str
    devices: int


def look_at_nodes(nodes: Sequence[Node], folder: Path) -> None:
    """Raise UserError where a node has other versions than this process, or does not see the run
    folder."""
    here, _ = probe.look("")
    token = folder / TOKEN
    written = uuid.uuid4().hex
    token.write_text(written, "utf-8")
    try:
        found = _ask(nodes, probe.look, str(token.absolute()))
    finally:
        token.unlink()
    for node, (versions, read) in zip(nodes, found, strict=True):
        refuse_other_versions(here, versions, node.address)
        if read != written:
            raise UserError(
                f"the node {node.address} does not see the run folder {folder.absolute()}: choose"
                " with --out a folder that all nodes share, at the same path."
            )


def refuse_other_versions(here: Mapping[str, str], there: Mapping[str, str], address: str) -> None:
    """Raise UserError for the first package whose versions differ."""
    for package, version in here.items():
        if there[package] != version:
            raise UserError(
                f"the node {address} has {package} {there[package]} and this machine has"
                f" {version}: install the same versions on every node."
            )


def refuse_port_in_use(node: Node, port: int) -> None:
    """Raise UserError if something listens at a port of a node; 0 is any free one."""
    [free] = _ask([node], probe.free, node.address, port)
    if not free:
        raise UserError(
            f"cluster.port={port} is in use on the node {node.address}: choose another one, or 0"
            " for any that is free."
        )


def _ask(nodes: Sequence[Node], question: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Return the answer of each node. Raises UserError if one does not."""
    ray = import_ray()
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray.cloudpickle.register_pickle_by_value(probe)
    asking = ray.remote(question)
    asked = [
        asking.options(
            num_cpus=0,
            max_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
        ).remote(*arguments)
        for node in nodes
    ]
    answers = []
    for node, reply in zip(nodes, asked, strict=True):
        try:
            answers.append(ray.get(reply, timeout=PATIENCE))
        except ray.exceptions.RayError as error:
            raise UserError(
                f"the node {node.address} of the cluster does not answer"
                f" ({type(error).__name__}): look whether its Ray runs, with 'ray status'."
            ) from error
    return answers
