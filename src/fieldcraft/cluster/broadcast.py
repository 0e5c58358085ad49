"""Servers that receive weights by broadcast, through vLLM's interface for weight transfer.

1. The trainer stores the weights and runs the probe; a channel to all workers is opened if needed.
2. Each server receives in a thread (`/init_weight_transfer_engine`), and continues to sample.
3. The server is paused and loads the received weights (`/start_weight_update`, `/update_weights`,
   `/finish_weight_update`). They are checked by the probe.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakSet

import torch

from fieldcraft.cluster.remote_weights import RemoteWeightSnapshot, RemoteWeightSource
from fieldcraft.engine.resources import RunResources
from fieldcraft.engine.vllm.client import ServerLostError, VllmClient
from fieldcraft.engine.vllm.servers import VllmServerPool, VllmServerSettings
from fieldcraft.engine.vllm.weights import WeightSnapshot, WeightSource
from fieldcraft.types import Tokenizer, UserError

MAX_CHANNEL_FAILURES = 3  # consecutive failures of the channel while all servers are running


class BroadcastServerPool(VllmServerPool):
    """Servers with `devices_per_server` workers each.

    The weights of a `RemoteWeightSource` are broadcast to all of them. The weights of a policy in
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
        if not isinstance(source, RemoteWeightSource):
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
        channel_ends = snapshot.source.process_handle, *servers
        if channel_ends != self._channel_ends:
            self._channel_address = await asyncio.to_thread(
                snapshot.source.open_channel, world_size
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
            send_error = await asyncio.to_thread(snapshot.source.send_weights, snapshot.label)
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
