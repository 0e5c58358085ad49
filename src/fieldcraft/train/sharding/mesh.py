"""The processes that train together: ranks in a grid of data x context."""

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

# With a rank that is slower, such as one that loads a large model after all others of its machine.
# One that has died is noticed at once, by its lost connection.
PATIENCE = timedelta(hours=1)


@dataclass(frozen=True, kw_only=True)
class Place:
    """The rank of a process. Ranks that follow one another hold the parts of one micro-batch.

    Args:
        rank: of this process, from 0.
        count: of all of them, a multiple of `context`.
        context: ranks that share the tokens of a micro-batch.
        address: where they find each other, as torch.distributed takes it: `tcp://HOST:PORT` of
            rank 0, or `file:///PATH` of a new file that all of them see.
        device: `cpu`, or the CUDA device of this process, such as `cuda:0`.
        threads: of a CPU.
    """

    rank: int
    count: int
    context: int = 1
    address: str
    device: str = "cpu"
    threads: int = 1


@final
class Mesh:
    """Place of this process among the others. All of them make one at the same time.

    Raises UserError if the others cannot be reached.
    """

    def __init__(self, place: Place) -> None:
        self.rank = place.rank
        self.count = place.count
        self.context = place.context
        self.device = torch.device(place.device)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        else:
            torch.set_num_threads(place.threads)
        backend = "cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo"
        try:
            distributed.init_process_group(
                backend,
                init_method=place.address,
                rank=place.rank,
                world_size=place.count,
                timeout=PATIENCE,
            )
        except (RuntimeError, ValueError, OSError) as error:
            raise UserError(
                f"rank {place.rank} of {place.count} does not reach the others at {place.address}:"
                " choose an address and a port that all of their machines reach."
            ) from error
        self.shards = DeviceMesh(self.device.type, list(range(place.count)))
        # Every rank makes every group, its own or not.
        groups = [
            distributed.new_group(list(range(first, first + place.context)), timeout=PATIENCE)
            for first in range(0, place.count, place.context)
        ]
        self.together = groups[self.rank // self.context]  # the ranks of one micro-batch
        # for what is no part of a step, such as checkpoints, which are written while others train
        self.beside = distributed.new_group(backend="gloo", timeout=PATIENCE)
        hosts: list[str] = [""] * self.count  # this rank is one of those of its machine
        distributed.all_gather_object(hosts, socket.gethostname(), self.beside)
        self.turn = hosts[: self.rank].count(hosts[self.rank])
        self.turns = max(map(hosts.count, hosts))

    @property
    def part(self) -> int:
        """Part of a micro-batch that this rank holds."""
        return self.rank % self.context

    def most(self, number: int) -> int:
        """Return the largest of the numbers that the ranks give."""
        found = torch.tensor(number, device=self.device)
        distributed.all_reduce(found, distributed.ReduceOp.MAX)
        return int(found)

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """Run the block in one rank of a machine after the other, because it needs memory that is
        free behind it. All ranks enter it; one of them may raise."""
        for _ in range(self.turn):
            distributed.barrier(self.beside)
        try:
            yield
        finally:
            for _ in range(self.turn, self.turns):
                distributed.barrier(self.beside)

    def close(self) -> None:
        distributed.destroy_process_group()
