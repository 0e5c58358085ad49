"""Number of CPU threads with which a small model runs fastest."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

TRAINING_SHAPE = (8, 256)  # rows and tokens of a forward pass as in training
SAMPLING_SHAPE = (128, 1)  # rows and tokens of a forward pass as in sampling
MAX_FORWARDS = 7  # forward passes per number of threads
MAX_MEASURE_SECONDS = (
    1.0  # no further pass is started after this: a large model is slow, and varies little
)
LARGE_MODEL_PARAMETERS = (
    30_000_000  # above this number of parameters, one row of training is measured
)


@dataclass(frozen=True, slots=True)
class ThreadCounts:
    """CPU threads for the large matrices of training and the small ones of sampling."""

    training: int
    sampling: int

    @property
    def training_while_sampling(self) -> int:
        """Threads for training while another thread samples. More threads than cores would block
        each other."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        return max(1, min(self.training, (cores or 1) - self.sampling))


def find_fastest_threads(model: Any) -> ThreadCounts:
    """Return the fastest numbers of threads, measured with 1, 2, 4, ... threads, at most torch's
    current number (OMP_NUM_THREADS, or all cores).

    On two hyperthreads of one core, two threads train a small model a fifth faster and sample from
    it a third slower, and on a busy machine they are five times slower. So the numbers are
    measured. On devices other than a CPU the number is not changed.
    """
    max_threads = torch.get_num_threads()
    if model.device.type != "cpu":
        return ThreadCounts(max_threads, max_threads)
    rows, tokens = TRAINING_SHAPE
    is_large = sum(weight.numel() for weight in model.parameters()) > LARGE_MODEL_PARAMETERS
    training_shape = (1 if is_large else rows, tokens)
    return ThreadCounts(
        _find_fastest(model, training_shape, max_threads),
        _find_fastest(model, SAMPLING_SHAPE, max_threads),
    )


@contextmanager
def limit_threads(count: int | None) -> Iterator[None]:
    """Use `count` threads inside the block; None leaves the number unchanged."""
    previous = torch.get_num_threads()
    torch.set_num_threads(count or previous)
    try:
        yield
    finally:
        torch.set_num_threads(previous)


def _find_fastest(model: Any, shape: tuple[int, int], max_threads: int) -> int:
    times = {}
    for threads in (2**i for i in range(max_threads.bit_length())):
        with limit_threads(threads):
            times[threads] = min(_time_forwards(model, torch.ones(shape).long()))
    return min(times, key=times.__getitem__)


def _time_forwards(model: Any, ids: torch.Tensor) -> list[float]:
    """Return the seconds of several forward passes: at least two, because the first one
    allocates."""
    durations = [time_forward(model, ids), time_forward(model, ids)]
    while len(durations) < MAX_FORWARDS and sum(durations) < MAX_MEASURE_SECONDS:
        durations.append(time_forward(model, ids))
    return durations


def time_forward(model: Any, ids: torch.Tensor) -> float:
    """Return the seconds of one forward pass."""
    start_time = time.perf_counter()
    with torch.inference_mode():
        model(ids)
    return time.perf_counter() - start_time
