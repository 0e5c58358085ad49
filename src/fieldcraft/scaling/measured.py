"""The device `cpu`, with rates of one core measured on this machine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import torch

from fieldcraft.runs.memory import read_free_memory
from fieldcraft.scaling.costs import BANDWIDTH_EFFICIENCY, COMPUTE_EFFICIENCY
from fieldcraft.scaling.devices import CPU_NAME, Device

MATRIX_SIZE = 512  # width of the matrices, as in a small model
NUM_MATRICES = 64  # matrices to read: more than fit in a cache
LOOPBACK_BANDWIDTH = 1e9  # bytes per second between processes of a machine; an assumption
NUM_TRIALS = 5


def measure_cpu() -> Device:
    """Measure one core with torch in float32, and its share of the memory. The compute rate is
    measured with matrix products, the bandwidth with products of a vector with many matrices, as in
    sampling. Both are divided by the efficiencies that the cost formulas multiply with."""
    cores = os.cpu_count() or 1
    square, vector = torch.ones(MATRIX_SIZE, MATRIX_SIZE), torch.ones(1, MATRIX_SIZE)
    matrices = torch.ones(NUM_MATRICES, MATRIX_SIZE, MATRIX_SIZE)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    matmul_seconds = min(_time_call(lambda: square @ square) for _ in range(NUM_TRIALS))
    matvec_seconds = min(
        _time_call(lambda: [vector @ matrix for matrix in matrices]) for _ in range(NUM_TRIALS)
    )
    torch.set_num_threads(threads)
    return Device(
        CPU_NAME,
        memory_bytes=read_free_memory(torch.device("cpu")) / cores,
        flops_per_second=2 * MATRIX_SIZE**3 / matmul_seconds / COMPUTE_EFFICIENCY,
        memory_bandwidth=matrices.nbytes / matvec_seconds / BANDWIDTH_EFFICIENCY,
        intra_node_bandwidth=LOOPBACK_BANDWIDTH,
        inter_node_bandwidth=LOOPBACK_BANDWIDTH,
        devices_per_node=cores,
    )


def _time_call(function: Callable[[], object]) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started
