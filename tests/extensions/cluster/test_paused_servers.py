"""Servers that are paused while weights change: they are resumed, however the change ends."""

import asyncio
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from fieldcraft.engine.resources import RunResources
from fieldcraft.extensions.cluster.vllm_servers import BroadcastTransport
from fieldcraft.extensions.vllm.client import VllmClient
from fieldcraft.extensions.vllm.servers import AttachedServerPool
from fieldcraft.types import UserError
from waiting import wait_until_async

SETTINGS: Any = None  # only started servers and probes have settings


class Snapshot:
    """Stand-in for weights that can be broadcast."""

    label = "new"
    folder = Path("weights")
    metas = ("meta",)


class Owner:
    """Stand-in for an engine that has new weights."""

    def get_latest_snapshot(self) -> Any:
        return Snapshot()


class PausableServer(VllmClient):
    """Server that responds to the routes in `held` only when they are removed."""

    def __init__(self, *held: str) -> None:
        super().__init__("http://server", 60.0)
        self.max_len = 100
        self.held = set(held)
        self.refused = ""  # route that leads to an error
        self.is_paused = False
        self.requests: dict[str, int] = defaultdict(int)  # number of requests by route
        self.replies = 0  # number of requests that it has answered

    async def refresh_loaded_label(self) -> None: ...

    async def _send(self, method: str, path: str, *_: Any, **__: Any) -> Any:
        route = path.split("?")[0]
        self.requests[route] += 1
        if route == self.refused:
            raise UserError("it refuses.")
        if route == "/pause":
            self.is_paused = True
        await wait_until_async(lambda: route not in self.held)
        if route in ("/pause", "/resume"):
            self.is_paused = route == "/pause"
        self.replies += 1


class EndlessBroadcast(BroadcastTransport):
    """Transport whose broadcasts to servers with two devices do not end."""

    def __init__(self) -> None:
        super().__init__(2)
        self.is_sending = False

    async def _broadcast(self, *_: Any) -> str:
        self.is_sending = True
        await asyncio.Event().wait()
        return ""


def make_pool(folder: Path, *servers: PausableServer) -> AttachedServerPool:
    pool = AttachedServerPool([], None, SETTINGS, RunResources(folder))
    pool._servers = pool.live_servers = list(servers)
    return pool


async def interrupt_resumption(task: asyncio.Task[Any], *servers: PausableServer) -> None:
    """Cancel a task that ends by resuming the servers, while it waits for them."""
    await wait_until_async(lambda: all(server.requests["/resume"] for server in servers))
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(0.01)
    for server in servers:
        server.held.clear()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("route", ["/pause", "/collective_rpc"])
def test_a_server_is_resumed_if_its_load_is_cancelled(tmp_path: Path, route: str) -> None:
    async def work() -> None:
        server = PausableServer(route, "/resume")
        pool = make_pool(tmp_path, server)
        sync = asyncio.create_task(pool.sync(Owner(), {}))
        await wait_until_async(lambda: server.requests[route] == 1)
        await interrupt_resumption(asyncio.create_task(pool.close()), server)
        with pytest.raises(asyncio.CancelledError):
            await sync
        assert server.requests["/resume"] == 1
        assert not server.is_paused

    asyncio.run(work())


@pytest.mark.parametrize("held", ["/pause", ""])
def test_servers_are_resumed_if_a_broadcast_is_cancelled(tmp_path: Path, held: str) -> None:
    async def work() -> None:
        servers = [PausableServer("/resume"), PausableServer(held, "/resume")]
        transport = EndlessBroadcast()
        snapshot: Any = Snapshot()
        pool = make_pool(tmp_path, *servers)
        task = asyncio.create_task(transport.distribute(snapshot, pool))
        if held:
            await wait_until_async(lambda: servers[1].requests["/pause"] == 1)
        else:
            await wait_until_async(lambda: transport.is_sending)
        task.cancel()
        await interrupt_resumption(task, *servers)
        assert [server.requests["/resume"] for server in servers] == [1, 1]
        assert not any(server.is_paused for server in servers)

    asyncio.run(work())


def test_servers_are_resumed_after_their_last_pause_if_one_refuses_it(tmp_path: Path) -> None:
    async def work() -> None:
        servers = [PausableServer(), PausableServer("/pause"), PausableServer()]
        servers[0].refused = "/pause"
        snapshot: Any = Snapshot()
        pool = make_pool(tmp_path, *servers)
        task = asyncio.create_task(EndlessBroadcast().distribute(snapshot, pool))
        await wait_until_async(lambda: servers[1].requests["/pause"] == 1)
        await asyncio.sleep(0.01)
        servers[1].held.clear()
        with pytest.raises(UserError, match=r"^it refuses\.$"):
            await task
        await wait_until_async(lambda: [server.replies for server in servers] == [1, 2, 2])
        assert [server.requests["/resume"] for server in servers] == [1, 1, 1]
        assert not any(server.is_paused for server in servers)

    asyncio.run(work())
