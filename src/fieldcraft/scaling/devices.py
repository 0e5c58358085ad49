"""Device properties for plans, from the manufacturers' data sheets.

docs/lab-notes/scaling.md lists the data sheets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from difflib import get_close_matches

from fieldcraft.types import UserError

CPU_NAME = "cpu"


@dataclass(frozen=True, slots=True)
class Device:
    """Device and its links, in bytes and operations per second.

    `flops_per_second` is the rate of dense matrix products in bfloat16. `intra_node_bandwidth` is
    the bandwidth from one device to the others of its node, and `inter_node_bandwidth` its share of
    the links between nodes, both one-way. A node has `devices_per_node` devices.
    """

    name: str
    memory_bytes: float
    flops_per_second: float
    memory_bandwidth: float
    intra_node_bandwidth: float
    inter_node_bandwidth: float
    devices_per_node: int = 8


DEVICES = {
    device.name: device
    for device in (
        Device("a100-80gb", 80e9, 312e12, 2.039e12, 300e9, 25e9),
        Device("h100", 80e9, 989e12, 3.35e12, 450e9, 50e9),
        Device("h200", 141e9, 989e12, 4.8e12, 450e9, 50e9),
        Device("b200", 180e9, 2250e12, 8e12, 900e9, 50e9),
        Device("l40s", 48e9, 362e12, 0.864e12, 32e9, 12.5e9),
    )
}


def find_device(name: str) -> Device:
    """Return a device of the table by name. Raises UserError if the name is unknown."""
    if name in DEVICES:
        return DEVICES[name]
    similar = get_close_matches(name, DEVICES, n=1)
    suggestion = f"; did you mean '{similar[0]}'?" if similar else "."
    raise UserError(
        f"there is no device '{name}' in the table: use one of "
        f"{', '.join((*DEVICES, CPU_NAME))}{suggestion}"
    )


def split_into_nodes(device: Device, count: int) -> list[int]:
    """Return the number of devices on each node for `count` devices: full nodes, and the rest on a
    last one.

    Raises UserError if `count` is less than 1.
    """
    if count < 1:
        raise UserError(f"--gpus {count} is not a number of devices: set 1 or more.")
    full_nodes, rest = divmod(count, device.devices_per_node)
    return [device.devices_per_node] * full_nodes + ([rest] if rest else [])


def get_link_bandwidth(device: Device, ranks: int) -> float:
    """Return the bytes per second that each of `ranks` ranks can send, which the slowest link
    between them limits."""
    if ranks == 1:
        return math.inf
    return (
        device.intra_node_bandwidth
        if ranks <= device.devices_per_node
        else device.inter_node_bandwidth
    )
