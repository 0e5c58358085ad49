"""Mesh of the processes that train together: ranks in a grid of data x context."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import final

import torch
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh

from fieldcraft.types import UserError

# Allows for slow ranks, such as one that loads a large model after all others of its machine. An
# exited rank is detected immediately, by its lost connection.
COLLECTIVE_TIMEOUT = timedelta(hours=1)


@dataclass(frozen=True, kw_only=True)
class RankPlacement:
    """Placement of a rank. Consecutive ranks hold the shards of one micro-batch.

    Args:
        rank: rank of this process, from 0.
        world_size: number of ranks, a multiple of `context_parallel`.
        context_parallel: number of ranks that share the tokens of a micro-batch.
        address: rendezvous address of torch.distributed: `tcp://HOST:PORT` of rank 0, or
            `file:///PATH` of a new file that all ranks can access.
        device: `cpu`, or the CUDA device of this process, such as `cuda:0`.
        threads: number of CPU threads.
    """

    rank: int
    world_size: int
    context_parallel: int = 1
    address: str
    device: str = "cpu"
    threads: int = 1


@final
class RankMesh:
    """Position of this process among all ranks. All ranks create their mesh at the same time.

    Raises UserError if the other ranks cannot be reached.
    """

    def __init__(self, placement: RankPlacement) -> None:
        self.rank = placement.rank
        self.world_size = placement.world_size
        self.context_parallel = placement.context_parallel
        self.device = torch.device(placement.device)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        else:
            torch.set_num_threads(placement.threads)
        backend = "cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo"
        try:
            distributed.init_process_group(
                backend,
                init_method=placement.address,
                rank=placement.rank,
                world_size=placement.world_size,
                timeout=COLLECTIVE_TIMEOUT,
            )
        except (RuntimeError, ValueError, OSError) as error:
            raise UserError(
                f"rank {placement.rank} of {placement.world_size} cannot connect to the other "
                f"ranks at {placement.address}:"
                " choose an address and a port that all of their machines can reach."
            ) from error
        self.device_mesh = DeviceMesh(self.device.type, list(range(placement.world_size)))
        # Every rank must create every group, including those of other ranks.
        groups = [
            distributed.new_group(
                list(range(first, first + placement.context_parallel)), timeout=COLLECTIVE_TIMEOUT
            )
            for first in range(0, placement.world_size, placement.context_parallel)
        ]
        self.context_group = groups[self.rank // self.context_parallel]  # ranks of one micro-batch
        # for work outside of steps, such as checkpoints, which are written while others train
        self.cpu_group = distributed.new_group(backend="gloo", timeout=COLLECTIVE_TIMEOUT)
        hosts: list[str] = [""] * self.world_size  # to find the ranks on the same machine
        distributed.all_gather_object(hosts, socket.gethostname(), self.cpu_group)
        self.local_rank = hosts[: self.rank].count(hosts[self.rank])
        self.max_local_ranks = max(map(hosts.count, hosts))

    @property
    def context_rank(self) -> int:
        """Index of this rank's shard of a micro-batch."""
        return self.rank % self.context_parallel

    def all_reduce_max(self, number: int) -> int:
        """Return the maximum of the ranks' numbers."""
        largest = torch.tensor(number, device=self.device)
        distributed.all_reduce(largest, distributed.ReduceOp.MAX)
        return int(largest)

    @contextmanager
    def one_rank_at_a_time(self) -> Iterator[None]:
        """Run the block in one rank of a machine after the other, because it temporarily needs a
        lot of memory. All ranks must enter it; a rank may raise."""
        for _ in range(self.local_rank):
            distributed.barrier(self.cpu_group)
        try:
            yield
        finally:
            for _ in range(self.local_rank, self.max_local_ranks):
                distributed.barrier(self.cpu_group)

    def close(self) -> None:
        distributed.destroy_process_group()
