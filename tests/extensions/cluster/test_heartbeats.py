"""Heartbeats of actors that respond or hang, in virtual time and without Ray's processes."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from fieldcraft.extensions.cluster import remote
from fieldcraft.extensions.cluster.engine_pool import RayEngineClient
from fieldcraft.extensions.cluster.remote import ActorLostError, MonitoredActor
from virtual_time import virtually

TIMEOUT = 10.0  # seconds


class CrashError(Exception):
    """Ray's error for a call of an actor whose process has exited."""


class FakeMethod:
    """Remote method of an actor."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.remote = call

    def options(self, **_: Any) -> "FakeMethod":
        return self


class HangingActor:
    """Actor that responds at once, until it begins to load weights. Then it hangs for ever."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.killed_at: float | None = None  # seconds
        self._is_hanging = False
        self.heartbeats: list[float] = []  # their times in seconds
        self._pending: list[asyncio.Future[Any]] = []
        self.get_process_id = FakeMethod(self._get_process_id)
        self.load_snapshot = FakeMethod(self._hang)

    def kill(self) -> None:
        self.killed_at = self.loop.time()
        for reply in self._pending:
            if not reply.done():
                reply.set_exception(CrashError())

    def _get_process_id(self) -> asyncio.Future[Any]:
        self.heartbeats.append(self.loop.time())
        return self._reply(1234)

    def _reply(self, value: Any) -> asyncio.Future[Any]:
        reply = self.loop.create_future()
        if self._is_hanging:
            self._pending.append(reply)
        else:
            reply.set_result(value)
        return reply

    def _hang(self, *_: Any) -> asyncio.Future[Any]:
        self._is_hanging = True
        return self._reply(None)


@pytest.fixture(autouse=True)
def _fake_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = SimpleNamespace(RayActorError=CrashError, RayTaskError=ZeroDivisionError)
    ray = SimpleNamespace(exceptions=errors, kill=lambda actor, no_restart: actor.kill())
    monkeypatch.setattr(remote, "import_ray", lambda: ray)


@pytest.mark.parametrize("pause", [0.0, 60.0])
def test_an_engine_that_hangs_in_the_next_call_is_killed(pause: float) -> None:
    """Without a pause, the heartbeats of the first call have not ended when the next one begins."""

    async def push_weights() -> float | None:
        actor = HangingActor()
        spec: Any = None
        client = RayEngineClient(MonitoredActor(actor, TIMEOUT), 0, "model 0", spec)
        snapshot: Any = SimpleNamespace(version=0, handle=None)
        await client.wait_until_ready()
        if pause:
            await asyncio.sleep(pause)
        with pytest.raises(ActorLostError, match="no heartbeat for 10 s"):
            async with asyncio.timeout(1000):
                await client.load_snapshot(snapshot)
        return actor.killed_at

    assert virtually(push_weights()) == pytest.approx(pause + TIMEOUT)


def test_heartbeats_last_from_the_first_call_to_the_end_of_the_last_one() -> None:
    async def call_twice() -> list[float]:
        loop = asyncio.get_running_loop()
        actor = HangingActor()
        monitored = MonitoredActor(actor, TIMEOUT)
        replies = [loop.create_future() for _ in range(2)]
        calls = [asyncio.create_task(monitored.await_result(reply)) for reply in replies]
        for reply, call in zip(replies, calls, strict=True):
            await asyncio.sleep(3.25)
            reply.set_result(None)
            await call
        await asyncio.sleep(60)
        return actor.heartbeats

    assert virtually(call_twice()) == [0, 1, 2, 3, 4, 5, 6]  # ten intervals in the timeout
