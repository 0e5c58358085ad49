"""Ranks in local processes, over gloo, for the tests of sharded training."""

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fieldcraft.extensions.cluster.sharding.mesh import RankPlacement
from fieldcraft.extensions.cluster.sharding.rank import TrainerRank


def serve(pipe: Connection) -> None:
    """Run a process that serves as one rank after another."""
    rank: Any = None
    while (request := pipe.recv()) is not None:
        method, arguments = request
        try:
            if method == "open":
                rank, answer = TrainerRank(*arguments), None
            else:
                answer = getattr(rank, method)(*arguments)
            pipe.send((answer, None))
        except Exception as error:  # noqa: BLE001 - the driver raises it
            pipe.send((None, error))


class Pool:
    """Processes that wait to become ranks: starting one takes longer than training in it."""

    def __init__(self, size: int) -> None:
        context = get_context("forkserver")
        context.set_forkserver_preload(
            ["fieldcraft.extensions.cluster.sharding.rank", "rank_processes"]
        )
        self.pipes: list[Connection] = []
        self.processes = []
        for _ in range(size):
            mine, its = context.Pipe()
            process = context.Process(target=serve, args=(its,), daemon=True)
            process.start()
            its.close()
            self.pipes.append(mine)
            self.processes.append(process)

    @contextmanager
    def ranks(self, folder: Path, data: int, context: int = 1) -> Iterator["ProcessRanks"]:
        """Return some of them as `data` x `context` ranks."""
        ranks = ProcessRanks(self.pipes[: data * context], context)
        address = f"file://{folder}/{uuid.uuid4().hex}"
        count = ranks.world_size
        places = [
            RankPlacement(rank=r, world_size=count, context_parallel=context, address=address)
            for r in range(count)
        ]
        ranks.call("open", [(place,) for place in places])
        try:
            yield ranks
        finally:
            ranks.call("close", [()] * count)

    def close(self) -> None:
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            pipe.send(None)
            process.join()


class ProcessRanks:
    """Group of rank processes; implements `train.sharding.trainer.TrainerGroup`."""

    def __init__(self, pipes: Sequence[Connection], context: int) -> None:
        self.pipes = pipes
        self.world_size = len(pipes)
        self.context_parallel = context

    def call(self, method: str, shares: Sequence[tuple[Any, ...]]) -> list[Any]:
        for pipe, share in zip(self.pipes, shares, strict=True):
            pipe.send((method, share))
        answers = [pipe.recv() for pipe in self.pipes]
        for _, error in answers:
            if error is not None:
                raise error
        return [answer for answer, _ in answers]
