"""The device `cpu`: the rates that a core of this machine reaches, measured on the spot."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import torch

from fieldcraft.runs.memory import free_memory
from fieldcraft.scaling.costs import BANDWIDTH, COMPUTE
from fieldcraft.scaling.devices import CPU, Device

WIDTH = 512  # of the matrices: as wide as a small model's
MATRICES = 64  # that are read: more than a cache holds
LOOPBACK = 1e9  # bytes a second between processes of a machine; an assumption
TRIES = 5


def measure_cpu() -> Device:
    """Measure one core with torch in float32, and its part of the memory. The rate is that of
    products of matrices, the bandwidth that of products of a vector with many matrices, as rows are
    sampled. Both are divided by the shares of a peak that formulas count with."""
    cores = os.cpu_count() or 1
    one, vector = torch.ones(WIDTH, WIDTH), torch.ones(1, WIDTH)
    many = torch.ones(MATRICES, WIDTH, WIDTH)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    products = min(_seconds(lambda: one @ one) for _ in range(TRIES))
    reads = min(_seconds(lambda: [vector @ matrix for matrix in many]) for _ in range(TRIES))
    torch.set_num_threads(threads)
    return Device(
        CPU,
        memory=free_memory(torch.device("cpu")) / cores,
        rate=2 * WIDTH**3 / products / COMPUTE,
        bandwidth=many.nbytes / reads / BANDWIDTH,
        link=LOOPBACK,
        network=LOOPBACK,
        of_node=cores,
    )


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
