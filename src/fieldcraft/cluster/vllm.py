"""Servers of vLLM on the nodes of a cluster, one for each engine."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fieldcraft.cluster.ranks import interface_of
from fieldcraft.cluster.remote import Lost, answer, import_ray
from fieldcraft.cluster.session import Session
from fieldcraft.cluster.wired import Wired
from fieldcraft.engine.home import Home
from fieldcraft.engine.vllm.client import Gone, Server
from fieldcraft.engine.vllm.process import Process, find_vllm
from fieldcraft.engine.vllm.servers import MOST_DEATHS, Serving, launch
from fieldcraft.engine.vllm.weights import Weights
from fieldcraft.records.files import make_folder
from fieldcraft.types import UserError


class ServerHost:
    """The process on a node that starts a server there, and ends it."""

    def __init__(self) -> None:
        self._process: Process | None = None

    def check(self, python: Path) -> None:
        """Raise UserError for a Python of this node without vLLM."""
        find_vllm(python)

    def start(
        self, python: Path, options: Sequence[str], variables: Mapping[str, str], log: Path
    ) -> str:
        """Start a server, and return its url."""
        self.stop()
        host = import_ray().util.get_node_ip_address()
        way = {"GLOO_SOCKET_IFNAME": interface_of(host)}  # on which trainers find it
        scratch = Path(tempfile.mkdtemp(prefix="fieldcraft-"))
        self._process = Process(python, options, {**variables, **way}, scratch, log, host)
        return self._process.url

    def alive(self) -> bool:
        """Return whether there is a server. One dies with its host."""
        return self._process is not None and self._process.alive

    def cause(self) -> str:
        """Return the reason why there is no server any more."""
        return "vLLM's node has died" if self._process is None else self._process.cause()

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()


class Hosted(Wired):
    """The servers of a run: one for each engine of `cluster.engines`. One that dies is started
    again when the next weights are published, and until then the others have its sessions.

    Those that it starts with pass through the folder `exchange`, or that of the run: all nodes see
    both.
    """

    def __init__(
        self,
        session: Session,
        python: Path,
        exchange: Path | None,
        settings: Serving,
        home: Home,
    ) -> None:
        super().__init__(settings, home, session.settings.engine_devices)
        self._python = python.absolute()
        self._place = (exchange or home.folder).absolute()
        places = session.of("engine")
        self._hosts = [session.actor(place, ServerHost, max_restarts=-1) for place in places]
        self._servers: list[Server | None] = [None] * len(places)
        self._died = [0] * len(places)  # in a row

    @property
    def place(self) -> Path:
        return self._place

    async def check(self, config: Mapping[str, Any]) -> None:
        await asyncio.gather(*(answer(host.check.remote(self._python)) for host in self._hosts))

    async def close(self) -> None:
        await super().close()
        stops = [answer(host.stop.remote()) for host in self._hosts]
        await asyncio.gather(*stops, return_exceptions=True)
        for host in self._hosts:
            import_ray().kill(host)

    async def _reach(self, weights: Weights, config: Mapping[str, Any]) -> Sequence[Server]:
        numbers = range(len(self._hosts))
        await asyncio.gather(*(self._see_to(number, weights, config) for number in numbers))
        self._live = [server for server in self._servers if server is not None]
        if not self._live:
            raise Gone("no server is left")
        return list(self._live)

    async def _see_to(self, number: int, weights: Weights, config: Mapping[str, Any]) -> None:
        """Start a server unless it lives."""
        host, server = self._hosts[number], self._servers[number]
        try:
            if server in self._live and await answer(host.alive.remote()):
                self._died[number] = 0
                return
            if server is not None:
                await server.close()
                self._servers[number] = None
                self._died[number] += 1
            if self._died[number] >= MOST_DEATHS:
                raise UserError(f"engine {number}: {await answer(host.cause.remote())}.")
            self._servers[number] = await self._start(number, weights, config)
        except Lost:  # the node or its Ray has died: it is tried again with the next weights
            self._servers[number] = None

    async def _start(self, number: int, weights: Weights, config: Mapping[str, Any]) -> Server:
        host = self._hosts[number]
        await answer(host.check.remote(self._python))
        make_folder(self.home.folder)
        log = (self.home.folder / f"vllm-{number}.log").absolute()
        options, variables = launch(self.settings, weights)
        options += ["--weight-transfer-config", json.dumps({"backend": "fieldcraft"})]
        options += ["--tensor-parallel-size", str(self._devices)] if self._devices > 1 else []
        url = await answer(host.start.remote(self._python, options, variables, log))
        self.home.say(f"vLLM starts at {url}, which may take a minute; its log is {log}")

        async def look() -> None:
            if not await answer(host.alive.remote()):
                raise UserError(f"engine {number}: {await answer(host.cause.remote())}.")

        return await self._await(url, log, look, weights, config)
