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
from weakref import WeakSet

import torch

from fieldcraft.engine.resources import RunResources
from fieldcraft.engine.weights import WeightSnapshot, WeightSource
from fieldcraft.extensions.cluster.ranks import find_interface
from fieldcraft.extensions.cluster.remote import ActorLostError, await_result, import_ray
from fieldcraft.extensions.cluster.session import ClusterSession
from fieldcraft.extensions.cluster.sources import RemoteWeightSnapshot, ShardedWeights
from fieldcraft.extensions.vllm.client import ServerLostError, VllmClient
from fieldcraft.extensions.vllm.process import VllmProcess, require_vllm
from fieldcraft.extensions.vllm.servers import (
    MAX_CONSECUTIVE_FAILURES,
    VllmServerPool,
    VllmServerSettings,
    make_server_command,
)
from fieldcraft.records.files import make_folder
from fieldcraft.types import Tokenizer, UserError

MAX_CHANNEL_FAILURES = 3  # consecutive failures of the channel while all servers are running


class BroadcastServerPool(VllmServerPool):
    """Servers with `devices_per_server` workers each, which receive weights by vLLM's interface for
    weight transfer.

    The weights of a `ShardedWeights` are broadcast to all of them. The weights of a policy in
    this process are transferred as files.
    """

    def __init__(
        self, settings: VllmServerSettings, resources: RunResources, devices_per_server: int
    ) -> None:
        super().__init__(settings, resources)
        self._devices_per_server = devices_per_server
        self._snapshots = WeakSet[RemoteWeightSnapshot]()
        self._channel_ends: tuple[Any, ...] = ()  # sender, and the servers
        self._channel_address = "", 0  # of the sender
        self._broadcast_lock = asyncio.Lock()

    def take_snapshot(
        self, source: WeightSource, tokenizer: Tokenizer, version: int
    ) -> WeightSnapshot:
        if not isinstance(source, ShardedWeights):
            return super().take_snapshot(source, tokenizer, version)
        dtype = getattr(torch, self.settings.dtype)
        retained_labels = [snapshot.label for snapshot in self._snapshots]
        snapshot = RemoteWeightSnapshot(
            source, tokenizer, version, self.exchange_folder, dtype, retained_labels
        )
        self._snapshots.add(snapshot)
        return snapshot

    async def distribute(self, snapshot: WeightSnapshot) -> None:
        """Transfer weights to all servers. Servers that crash during the transfer are marked lost.

        Raises UserError if the channel fails repeatedly although all servers are running.
        """
        if not isinstance(snapshot, RemoteWeightSnapshot):
            return
        async with self._broadcast_lock:
            failures = 0
            while outdated := [
                s
                for s in self._live_servers
                if snapshot.label not in (s.loaded_label, s.received_label)
            ]:
                async with self._paused(outdated):
                    reason = await self._broadcast(snapshot, outdated)
                if not reason:
                    return
                self._channel_ends = ()
                failures = (
                    failures + 1 if all(server in self._live_servers for server in outdated) else 0
                )
                if failures == MAX_CHANNEL_FAILURES:
                    raise UserError(
                        f"broadcasting the weights to the vLLM servers failed ({reason}): check"
                        " that the trainer and engine machines can reach each other on all ports."
                    )

    async def _load(self, server: VllmClient, snapshot: WeightSnapshot) -> None:
        if isinstance(snapshot, RemoteWeightSnapshot):
            await server.apply_received()
        else:
            await super()._load(server, snapshot)

    async def _broadcast(
        self, snapshot: RemoteWeightSnapshot, servers: Sequence[VllmClient]
    ) -> str:
        """Send one broadcast to all servers. Return the reason if it failed, else an empty
        string."""
        world_size = 1 + len(servers) * self._devices_per_server
        ranks = snapshot.source.ranks
        channel_ends = ranks.first_actor, *servers
        if channel_ends != self._channel_ends:
            self._channel_address = await asyncio.to_thread(
                ranks.call_sender, "open_channel", world_size
            )
            self._channel_ends = channel_ends
        host, port = self._channel_address
        init_info = {"host": host, "port": port, "size": world_size, "forms": snapshot.tensor_metas}
        first_ranks = {
            server: 1 + index * self._devices_per_server for index, server in enumerate(servers)
        }
        errors = await self._call_each(
            servers, lambda s: s.begin_receive(init_info | {"first": first_ranks[s]})
        )
        if not any(errors):
            send_error = await asyncio.to_thread(ranks.call_sender, "send", snapshot.label)
            errors = [
                send_error,
                *await self._call_each(servers, lambda s: s.finish_receive(snapshot.label)),
            ]
        return next(filter(None, errors), "")

    @asynccontextmanager
    async def _paused(self, servers: Sequence[VllmClient]) -> AsyncIterator[None]:
        """Pause servers with several devices inside the block: two active NCCL groups on the same
        devices may deadlock."""
        if self._devices_per_server == 1:
            yield
            return
        await self._call_each(servers, VllmClient.pause)
        try:
            yield
        finally:
            await self._call_each(servers, VllmClient.resume)

    async def _call_each(
        self, servers: Sequence[VllmClient], request: Callable[[VllmClient], Awaitable[str | None]]
    ) -> list[str | None]:
        """Send a request to all servers, and return their results. A server that is gone is marked
        lost, and its result is the error."""

        async def call_one(server: VllmClient) -> str | None:
            try:
                return await request(server)
            except ServerLostError as error:
                self._mark_lost(server, error)
                return str(error)

        return await asyncio.gather(*map(call_one, servers))


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


class ClusterServerPool(BroadcastServerPool):
    """Servers of a run: one for each engine of `cluster.engines`. A crashed server is restarted
    when the next weights are published; until then the other servers take its sessions.

    Its initial weights pass through the folder `weight_folder`, or the run folder, which all nodes
    share.
    """

    def __init__(
        self,
        session: ClusterSession,
        python: Path,
        exchange: Path | None,
        settings: VllmServerSettings,
        resources: RunResources,
    ) -> None:
        super().__init__(settings, resources, session.settings.tensor_parallel)
        self._python = python.absolute()
        self._exchange_folder = (exchange or resources.folder).absolute()
        placements = session.select_placements("engine")
        self._actors = [
            session.start_actor(placement, VllmServerActor, max_restarts=-1)
            for placement in placements
        ]
        self._servers: list[VllmClient | None] = [None] * len(placements)
        self._restarts = [0] * len(placements)  # consecutive, per server

    @property
    def exchange_folder(self) -> Path:
        return self._exchange_folder

    async def require_usable(self, config: Mapping[str, Any]) -> None:
        await asyncio.gather(
            *(await_result(actor.require_vllm.remote(self._python)) for actor in self._actors)
        )

    async def close(self) -> None:
        await super().close()
        stops = [await_result(actor.stop.remote()) for actor in self._actors]
        await asyncio.gather(*stops, return_exceptions=True)
        for actor in self._actors:
            import_ray().kill(actor)

    async def _connect(
        self, snapshot: WeightSnapshot, config: Mapping[str, Any]
    ) -> Sequence[VllmClient]:
        numbers = range(len(self._actors))
        await asyncio.gather(
            *(self._ensure_running(number, snapshot, config) for number in numbers)
        )
        self._live_servers = [server for server in self._servers if server is not None]
        if not self._live_servers:
            raise ServerLostError("no server is running")
        return list(self._live_servers)

    async def _ensure_running(
        self, number: int, snapshot: WeightSnapshot, config: Mapping[str, Any]
    ) -> None:
        """Start a server unless it is running."""
        actor, server = self._actors[number], self._servers[number]
        try:
            if server in self._live_servers and await await_result(actor.is_running.remote()):
                self._restarts[number] = 0
                return
            if server is not None:
                await server.close()
                self._servers[number] = None
                self._restarts[number] += 1
            if self._restarts[number] >= MAX_CONSECUTIVE_FAILURES:
                raise UserError(
                    f"engine {number}: {await await_result(actor.describe_exit.remote())}."
                )
            self._servers[number] = await self._start(number, snapshot, config)
        except ActorLostError:  # the node or its Ray has failed: retried with the next weights
            self._servers[number] = None

    async def _start(
        self, number: int, snapshot: WeightSnapshot, config: Mapping[str, Any]
    ) -> VllmClient:
        actor = self._actors[number]
        await await_result(actor.require_vllm.remote(self._python))
        make_folder(self.resources.folder)
        log = (self.resources.folder / f"vllm-{number}.log").absolute()
        options, variables = make_server_command(self.settings, snapshot)
        options += ["--weight-transfer-config", json.dumps({"backend": "fieldcraft"})]
        options += (
            ["--tensor-parallel-size", str(self._devices_per_server)]
            if self._devices_per_server > 1
            else []
        )
        url = await await_result(actor.start.remote(self._python, options, variables, log))
        self.resources.log(f"vLLM starts at {url}, which may take a minute; its log is {log}")

        async def raise_if_exited() -> None:
            if not await await_result(actor.is_running.remote()):
                raise UserError(
                    f"engine {number}: {await await_result(actor.describe_exit.remote())}."
                )

        return await self._wait_until_ready(url, log, raise_if_exited, snapshot, config)
