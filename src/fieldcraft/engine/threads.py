"""The number of CPU threads with which a small model runs fastest."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

TRAINING = (8, 256)  # rows and tokens of a forward like those of training
SAMPLING = (128, 1)  # and of one like those of sampling
ROUNDS = 7  # forwards with each number of threads
SECONDS = 1.0  # after which no further one is begun: a large model takes long, and differs little
LARGE = 30_000_000  # parameters of a model that one row of training is measured with


@dataclass(frozen=True, slots=True)
class Threads:
    """CPU threads for training's large matrices and for the small ones of sampling."""

    training: int
    sampling: int

    @property
    def beside(self) -> int:
        """Threads for training while another thread samples. More threads than cores would wait for
        each other."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        return max(1, min(self.training, (cores or 1) - self.sampling))


def fastest_threads(model: Any) -> Threads:
    """Return the fastest numbers of threads, measured with 1, 2, 4, ... threads, at most as many as
    torch has now (OMP_NUM_THREADS, or all cores).

    On two hyperthreads of one core two threads train a small model faster by a fifth and sample
    with it slower by a third, and on a busy machine they lose a factor of five, so only measuring
    tells. On other devices than a CPU the number is left as it is.
    """
    most = torch.get_num_threads()
    if model.device.type != "cpu":
        return Threads(most, most)
    rows, tokens = TRAINING
    large = sum(weight.numel() for weight in model.parameters()) > LARGE
    training = (1 if large else rows, tokens)
    return Threads(_fastest(model, training, most), _fastest(model, SAMPLING, most))


@contextmanager
def using_threads(count: int | None) -> Iterator[None]:
    """Use so many threads inside the block; None: as many as outside."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _fastest(model: Any, shape: tuple[int, int], most: int) -> int:
    times = {}
    for threads in (2**i for i in range(most.bit_length())):
        with using_threads(threads):
            times[threads] = min(_rounds(model, torch.ones(shape).long()))
    return min(times, key=times.__getitem__)


def _rounds(model: Any, ids: torch.Tensor) -> list[float]:
    """Return the seconds of several forwards, at least two, because the first one allocates."""
    taken = [_seconds(model, ids), _seconds(model, ids)]
    while len(taken) < ROUNDS and sum(taken) < SECONDS:
        taken.append(_seconds(model, ids))
    return taken


def _seconds(model: Any, ids: torch.Tensor) -> float:
    began = time.perf_counter()
    with torch.inference_mode():
        model(ids)
    return time.perf_counter() - began
