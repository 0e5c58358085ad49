"""How many CPU threads a small model runs fastest with."""

from __future__ import annotations

import time
from typing import Any

import torch


def use_fastest_threads(model: Any, tokens: int = 256) -> int:
    """Time a forward of `tokens` tokens with 1, 2, 4, ... threads, at most as many as torch has now
    (OMP_NUM_THREADS, or all cores), keep the fastest number and return it.

    Two threads gain a third on an idle machine with two cores and lose a factor of five on a busy
    one, so only measuring tells. On other devices than a CPU the number is left as it is.
    """
    if model.device.type != "cpu":
        return torch.get_num_threads()
    ids = torch.ones(1, tokens, dtype=torch.long)
    most = torch.get_num_threads()
    times = {}
    for threads in (2**i for i in range(most.bit_length())):
        torch.set_num_threads(threads)
        times[threads] = min(_seconds(model, ids) for _ in range(5))
    fastest = min(times, key=times.__getitem__)
    torch.set_num_threads(fastest)
    return fastest


def _seconds(model: Any, ids: torch.Tensor) -> float:
    began = time.perf_counter()
    with torch.inference_mode():
        model(ids)
    return time.perf_counter() - began
