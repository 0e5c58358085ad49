"""Devices of a plan, with the memory that their manufacturers state.

docs/lab-notes/scaling.md lists the data sheets.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from difflib import get_close_matches

from fieldcraft.runs.memory_limit import read_memory_limit
from fieldcraft.types import UserError

CPU_NAME = "cpu"
MAX_DEVICES = 100_000  # about as many as the largest clusters have
GPU_BYTES = {"a100-80gb": 80e9, "h100": 80e9, "h200": 141e9, "b200": 180e9, "l40s": 48e9}


@dataclass(frozen=True, slots=True)
class Device:
    """Device with its memory in bytes. A node has `devices_per_node` devices."""

    name: str
    memory_bytes: float
    devices_per_node: int = 8


def find_device(name: str) -> Device:
    """Return a device by name; `cpu` is a core of this machine, with its share of the memory.
    Raises UserError if the name is unknown."""
    if name == CPU_NAME:
        cores = os.cpu_count() or 1
        return Device(CPU_NAME, read_memory_limit() / cores, cores)
    if name in GPU_BYTES:
        return Device(name, GPU_BYTES[name])
    similar = get_close_matches(name, GPU_BYTES, n=1)
    suggestion = f"; did you mean '{similar[0]}'?" if similar else "."
    raise UserError(
        f"there is no device '{name}' in the table: use one of "
        f"{', '.join((*GPU_BYTES, CPU_NAME))}{suggestion}"
    )


def require_device_count(count: int) -> None:
    """Raise UserError unless a cluster can have that many devices."""
    if not 1 <= count <= MAX_DEVICES:
        raise UserError(
            f"--gpus {count} is not a number of devices: set 1 or more, up to {MAX_DEVICES}."
        )


def split_into_nodes(device: Device, count: int) -> list[int]:
    """Return the number of devices on each node for `count` devices: full nodes, and the rest on a
    last one. Raises UserError for a number without a cluster."""
    require_device_count(count)
    full_nodes, rest = divmod(count, device.devices_per_node)
    return [device.devices_per_node] * full_nodes + ([rest] if rest else [])
