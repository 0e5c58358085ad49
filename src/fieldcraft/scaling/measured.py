"""The device `cpu`: what a core of this machine reaches, measured on the spot."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import torch

from fieldcraft.runs.memory import free_memory
from fieldcraft.scaling.costs import BANDWIDTH, COMPUTE
from fieldcraft.scaling.devices import CPU, Device

WIDTH = 512  # of the matrices: as wide as a small model's
NUMBERS = 2**24  # that are copied
LOOPBACK = 1e9  # bytes a second between processes of a machine; an assumption
TRIES = 5


def measure_cpu() -> Device:
    """One core with torch in float32, and its part of the memory. Products and copies are measured
    as they come, so the rates are those that formulas come to with their shares of a peak."""
    cores = os.cpu_count() or 1
    one, other = torch.ones(WIDTH, WIDTH), torch.ones(WIDTH, WIDTH)
    source, target = torch.ones(NUMBERS), torch.empty(NUMBERS)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    products = min(_seconds(lambda: one @ other) for _ in range(TRIES))
    copies = min(_seconds(lambda: target.copy_(source)) for _ in range(TRIES))
    torch.set_num_threads(threads)
    return Device(
        CPU,
        memory=free_memory(torch.device("cpu")) / cores,
        rate=2 * WIDTH**3 / products / COMPUTE,
        bandwidth=2 * 4 * NUMBERS / copies / BANDWIDTH,
        link=LOOPBACK,
        network=LOOPBACK,
        of_node=cores,
    )


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
