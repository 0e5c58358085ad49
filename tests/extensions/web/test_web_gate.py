"""The waiting times of the rate limiter, without actual waiting."""

import asyncio
import threading

import pytest

from fieldcraft.extensions.web.rate_limit import HostRateLimiter


@pytest.fixture
def waits(monkeypatch):
    """Record the waits of a rate limiter, which return at once. A server of another test may still
    wait in its own thread."""
    noted, wait, thread = [], asyncio.sleep, threading.get_ident()

    async def sleep(seconds):
        if threading.get_ident() == thread:
            noted.append(max(seconds, 0.0))
        else:
            await wait(seconds)

    monkeypatch.setattr("fieldcraft.extensions.web.rate_limit.asyncio.sleep", sleep)
    return noted


async def visit(gate, *hosts):
    for host in hosts:
        async with gate.slot(host):
            pass


def test_a_host_waits_and_others_do_not(waits):
    asyncio.run(visit(HostRateLimiter(1, 100.0), "a", "b", "a", "a", "b"))
    assert [round(wait, -1) for wait in waits] == [0, 0, 100, 100, 100]


def test_hosts_with_several_places_wait_from_start_to_start(waits):
    asyncio.run(visit(HostRateLimiter(3, 100.0), "a", "a", "a"))
    assert [round(wait, -1) for wait in waits] == [0, 100, 200]


def test_a_failed_request_gives_its_place_back(waits):
    gate = HostRateLimiter(1, 0.0)

    async def fails():
        with pytest.raises(ValueError, match="no page"):
            async with gate.slot("a"):
                raise ValueError("no page")
        await asyncio.wait_for(visit(gate, "a"), 300)

    asyncio.run(fails())
