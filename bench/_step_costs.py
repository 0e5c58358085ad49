"""CPU time and peak memory of training steps."""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch

LIBC = ctypes.CDLL("libc.so.6")
CLEAR = Path("/proc/self/clear_refs")


@dataclass
class StepCosts:
    """Seconds of each step, and its peak memory above the memory in use before it, in bytes."""

    seconds: list[float] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)

    def begin(self) -> None:
        LIBC.malloc_trim(0)  # returns free memory to the system
        CLEAR.write_text("5")  # resets the peak
        self.held, self.began = memory("VmRSS"), clock()

    def end(self) -> None:
        self.seconds.append(clock() - self.began)
        self.bytes.append(memory("VmHWM") - self.held)


def memory(name: str) -> int:
    status = Path("/proc/self/status").read_text()
    return next(1024 * int(line.split()[1]) for line in status.splitlines() if name in line)


def clock() -> float:
    if not torch.cuda.is_available():
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()
