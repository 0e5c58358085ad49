"""Servers that get weights by broadcast, through vLLM's interface for weight transfer.

1. The trainer keeps the weights and proves them; a wire to all workers is opened if need be.
2. Each server receives in a thread (`/init_weight_transfer_engine`), and samples on.
3. What has arrived is loaded, while the server is paused (`/start_weight_update`,
   `/update_weights`, `/finish_weight_update`), and proved.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakSet

import torch

from fieldcraft.cluster.parcels import Keeper, Parcel
from fieldcraft.engine.home import Home
from fieldcraft.engine.vllm.client import Gone, Server
from fieldcraft.engine.vllm.servers import Servers, Serving
from fieldcraft.engine.vllm.weights import Origin, Weights
from fieldcraft.types import Tokenizer, UserError

MOST_BREAKS = 3  # of the wire in a row, while all servers live


class Wired(Servers):
    """Servers with `devices` workers each. The weights of a `Keeper` are broadcast to all of them,
    those of a policy in this process go as files."""

    def __init__(self, settings: Serving, home: Home, devices: int) -> None:
        super().__init__(settings, home)
        self._devices = devices
        self._parcels = WeakSet[Parcel]()
        self._ends: tuple[Any, ...] = ()  # of the wire: who sends, and the servers
        self._at = "", 0  # its address
        self._travelling = asyncio.Lock()

    def publish(self, origin: Origin, tokenizer: Tokenizer, version: int) -> Weights:
        if not isinstance(origin, Keeper):
            return super().publish(origin, tokenizer, version)
        dtype = getattr(torch, self.settings.dtype)
        others = [parcel.label for parcel in self._parcels]
        parcel = Parcel(origin, tokenizer, version, self.place, dtype, others)
        self._parcels.add(parcel)
        return parcel

    async def bring(self, weights: Weights) -> None:
        """Bring weights to all servers. Those that die meanwhile are lost. Raises UserError if the
        wire breaks again and again though all live."""
        if not isinstance(weights, Parcel):
            return
        async with self._travelling:
            breaks = 0
            while late := [s for s in self._live if weights.label not in (s.holds, s.brought)]:
                async with self._still(late):
                    why = await self._travel(weights, late)
                if not why:
                    return
                self._ends = ()
                breaks = breaks + 1 if all(server in self._live for server in late) else 0
                if breaks == MOST_BREAKS:
                    raise UserError(
                        f"the weights do not reach the servers of vLLM ({why}): look whether the"
                        " machines of trainers and engines reach each other at all ports."
                    )

    async def _load(self, server: Server, weights: Weights) -> None:
        if isinstance(weights, Parcel):
            await server.take_over()
        else:
            await super()._load(server, weights)

    async def _travel(self, parcel: Parcel, servers: Sequence[Server]) -> str:
        """Send one broadcast to all servers. Returns the reason if it failed, else an empty
        string."""
        size = 1 + len(servers) * self._devices
        ends = parcel.keeper.process, *servers
        if ends != self._ends:
            self._at = await asyncio.to_thread(parcel.keeper.open, size)
            self._ends = ends
        host, port = self._at
        coming = {"host": host, "port": port, "size": size, "forms": parcel.forms}
        first = {server: 1 + place * self._devices for place, server in enumerate(servers)}
        told = await self._each(servers, lambda s: s.expect(coming | {"first": first[s]}))
        if not any(told):
            sent = await asyncio.to_thread(parcel.keeper.send, parcel.label)
            told = [sent, *await self._each(servers, lambda s: s.arrived(parcel.label))]
        return next(filter(None, told), "")

    @asynccontextmanager
    async def _still(self, servers: Sequence[Server]) -> AsyncIterator[None]:
        """Pause servers of several devices inside the block: two groups of NCCL at work on the same
        devices may wait for each other."""
        if self._devices == 1:
            yield
            return
        await self._each(servers, Server.pause)
        try:
            yield
        finally:
            await self._each(servers, Server.resume)

    async def _each(
        self, servers: Sequence[Server], ask: Callable[[Server], Awaitable[str | None]]
    ) -> list[str | None]:
        """Ask all servers, and return their answers. A server that is gone is lost, which is its
        answer."""

        async def one(server: Server) -> str | None:
            try:
                return await ask(server)
            except Gone as gone:
                self._lose(server, gone)
                return str(gone)

        return await asyncio.gather(*map(one, servers))
