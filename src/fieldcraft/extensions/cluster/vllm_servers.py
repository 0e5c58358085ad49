"""vLLM servers on the nodes of a cluster, one for each engine, which receive weights by broadcast.

1. The trainer stores the weights and runs the probe; a channel to all workers is opened if needed.
2. Each server receives in a thread (`/init_weight_transfer_engine`), and continues to sample.
3. The server is paused and loads the received weights (`/start_weight_update`, `/update_weights`,
   `/finish_weight_update`). They are checked by the probe.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fieldcraft.concurrency import run_to_the_end
from fieldcraft.engine.resources import RunResources
from fieldcraft.engine.weights import WeightSnapshot
from fieldcraft.extensions.cluster.ranks import RayTrainerGroup, find_interface
from fieldcraft.extensions.cluster.remote import ActorLostError, await_result, import_ray
from fieldcraft.extensions.cluster.session import ClusterSession
from fieldcraft.extensions.vllm.client import ServerLostError, VllmClient
from fieldcraft.extensions.vllm.process import (
    NodeLostError,
    VllmProcess,
    VllmServerSettings,
    require_vllm,
)
from fieldcraft.extensions.vllm.servers import LaunchedServerPool, VllmServerPool
from fieldcraft.types import UserError

MAX_CHANNEL_FAILURES = 3  # consecutive failures of the channel while all servers are running


class BroadcastTransport:
    """`WeightTransport` by vLLM's interface for weight transfer, to servers with
    `devices_per_server` workers each.

    Weights that ranks train are broadcast to all servers. The weights of a policy in the run's
    process are loaded from files.
    """

    def __init__(self, devices_per_server: int) -> None:
        self._devices_per_server = devices_per_server
        self._channel_ends: tuple[Any, ...] = ()  # sender, and the servers
        self._channel_address = "", 0  # of the sender
        self._lock = asyncio.Lock()

    async def distribute(self, snapshot: WeightSnapshot, pool: VllmServerPool) -> None:
        """Send weights to all servers. Servers that crash during the transfer are marked lost.

        Raises UserError if the channel fails repeatedly although all servers are running.
        """
        if not snapshot.metas:
            return
        async with self._lock:
            failures = 0
            while outdated := [
                s
                for s in pool.live_servers
                if snapshot.label not in (s.loaded_label, s.received_label)
            ]:
                async with self._paused(outdated, pool):
                    reason = await self._broadcast(snapshot, outdated, pool)
                if not reason:
                    return
                self._channel_ends = ()
                failures = (
                    failures + 1 if all(server in pool.live_servers for server in outdated) else 0
                )
                if failures == MAX_CHANNEL_FAILURES:
                    raise UserError(
                        f"broadcasting the weights to the vLLM servers failed ({reason}): check"
                        " that the trainer and engine machines can reach each other on all ports."
                    )

    async def _broadcast(
        self, snapshot: WeightSnapshot, servers: Sequence[VllmClient], pool: VllmServerPool
    ) -> str:
        """Send one broadcast to all servers. Return the reason if it failed, else an empty
        string."""
        world_size = 1 + len(servers) * self._devices_per_server
        ranks: RayTrainerGroup = snapshot.handle
        channel_ends = ranks.first_actor, *servers
        if channel_ends != self._channel_ends:
            self._channel_address = await asyncio.to_thread(
                ranks.call_sender, "open_channel", world_size
            )
            self._channel_ends = channel_ends
        host, port = self._channel_address
        init_info = {"host": host, "port": port, "size": world_size, "forms": snapshot.metas}
        first_ranks = {
            server: 1 + index * self._devices_per_server for index, server in enumerate(servers)
        }
        errors = await self._call_each(
            servers, pool, lambda s: s.begin_receive(init_info | {"first": first_ranks[s]})
        )
        if not any(errors):
            send_error = await asyncio.to_thread(ranks.call_sender, "send", snapshot.label)
            errors = [
                send_error,
                *await self._call_each(servers, pool, lambda s: s.finish_receive(snapshot.label)),
            ]
        return next(filter(None, errors), "")

    @asynccontextmanager
    async def _paused(
        self, servers: Sequence[VllmClient], pool: VllmServerPool
    ) -> AsyncIterator[None]:
        """Pause servers with several devices inside the block: two active NCCL groups on the same
        devices may deadlock."""
        if self._devices_per_server == 1:
            yield
            return
        try:
            await self._call_each(servers, pool, VllmClient.pause)
            yield
        finally:
            await run_to_the_end(self._resume(servers, pool))

    async def _resume(self, servers: Sequence[VllmClient], pool: VllmServerPool) -> None:
        await self._call_each(servers, pool, VllmClient.resume)

    async def _call_each(
        self,
        servers: Sequence[VllmClient],
        pool: VllmServerPool,
        request: Callable[[VllmClient], Awaitable[str | None]],
    ) -> list[str | None]:
        """Send a request to all servers, and return their results. A server that is gone is marked
        lost, and its result is the error. Another error is raised after all requests have ended: a
        pause must not arrive after the resumption."""

        async def call_one(server: VllmClient) -> str | None:
            try:
                return await request(server)
            except ServerLostError as error:
                pool.mark_lost(server, error)
                return str(error)

        results = []
        for result in await asyncio.gather(*map(call_one, servers), return_exceptions=True):
            if isinstance(result, BaseException):
                raise result
            results.append(result)
        return results


class VllmServerActor:
    """Actor that starts and stops a server on its node."""

    def __init__(self) -> None:
        self._process: VllmProcess | None = None

    def require_vllm(self, python: Path) -> None:
        """Raise UserError if a Python interpreter of this node lacks vLLM."""
        require_vllm(python)

    def start(
        self, python: Path, options: Sequence[str], variables: Mapping[str, str], log: Path
    ) -> str:
        """Start a server, and return its URL."""
        self.stop()
        host = import_ray().util.get_node_ip_address()
        interface = {"GLOO_SOCKET_IFNAME": find_interface(host)}  # reachable for trainers
        scratch = Path(tempfile.mkdtemp(prefix="fieldcraft-"))
        self._process = VllmProcess(python, options, {**variables, **interface}, scratch, log, host)
        return self._process.url

    def is_running(self) -> bool:
        """Return whether the server is running. It exits with its actor."""
        return self._process is not None and self._process.is_running

    def describe_exit(self) -> str:
        """Return the reason why the server has exited."""
        return "vLLM's node has failed" if self._process is None else self._process.describe_exit()

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()


class RayLauncher:
    """`ServerLauncher` of one server for each engine of `cluster.engines`.

    The weights of a starting server pass through the folder `exchange`, or the run folder, which
    all nodes share.
    """

    def __init__(
        self, session: ClusterSession, python: Path, exchange: Path | None, folder: Path
    ) -> None:
        self._python = python.absolute()
        self._folder = folder.absolute()
        self.exchange_folder = self._folder if exchange is None else exchange.absolute()
        self._options = ["--weight-transfer-config", json.dumps({"backend": "fieldcraft"})]
        if (devices := session.settings.tensor_parallel) > 1:
            self._options += ["--tensor-parallel-size", str(devices)]
        placements = session.select_placements("engine")
        self.num_servers = len(placements)
        self._actors = [
            session.start_actor(placement, VllmServerActor, max_restarts=-1)
            for placement in placements
        ]

    async def require_usable(self, index: int) -> None:
        await _await_node(self._actors[index].require_vllm.remote(self._python))

    async def start(
        self, index: int, options: Sequence[str], variables: Mapping[str, str]
    ) -> tuple[str, Path]:
        log = self._folder / f"vllm-{index}.log"
        start = self._actors[index].start
        options = [*options, *self._options]
        return await _await_node(start.remote(self._python, options, variables, log)), log

    async def is_running(self, index: int) -> bool:
        is_running: bool = await _await_node(self._actors[index].is_running.remote())
        return is_running

    async def describe_exit(self, index: int) -> str:
        reason = await _await_node(self._actors[index].describe_exit.remote())
        return f"engine {index}: {reason}"

    async def close(self) -> None:
        stops = [await_result(actor.stop.remote()) for actor in self._actors]
        await asyncio.gather(*stops, return_exceptions=True)
        for actor in self._actors:
            import_ray().kill(actor)


async def _await_node(pending: Awaitable[Any]) -> Any:
    """Return the result of an actor. Raises NodeLostError if its node or Ray there has failed."""
    try:
        return await await_result(pending)
    except ActorLostError as error:
        raise NodeLostError(str(error)) from error


def make_server_pool(
    session: ClusterSession,
    python: Path,
    exchange: Path | None,
    settings: VllmServerSettings,
    resources: RunResources,
) -> LaunchedServerPool:
    """Return the pool of a run's servers on the nodes of its cluster."""
    launcher = RayLauncher(session, python, exchange, resources.folder)
    transport = BroadcastTransport(session.settings.tensor_parallel)
    return LaunchedServerPool(launcher, settings, resources, transport)
