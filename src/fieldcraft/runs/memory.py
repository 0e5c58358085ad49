"""Memory available to this process, and errors of its exhaustion."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fieldcraft.runs.memory_limit import read_memory_limit
from fieldcraft.types import UserError

CPU_OUT_OF_MEMORY = "can't allocate memory"  # error message of torch


@contextmanager
def raise_memory_errors(stage: str) -> Iterator[None]:
    """Raise UserError if a stage runs out of memory."""
    try:
        yield
    except RuntimeError as error:  # a GPU error is a subclass, a CPU error is not
        if not (isinstance(error, torch.OutOfMemoryError) or CPU_OUT_OF_MEMORY in str(error)):
            raise
        raise UserError(
            f"stage '{stage}' needs more memory than available: lower its optim.micro_batch_tokens"
            " or max_num_seqs, or set optim.activation_checkpointing; then run the same command"
            " with this change, which resumes."
        ) from error


def format_gb(size: float) -> str:
    """Format a number of bytes as GB."""
    return f"{size / 1e9:.3g} GB"


def read_free_memory(device: torch.device) -> int:
    """Return the available bytes: free memory of a GPU, or on a CPU the limit of this process."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return read_memory_limit()
