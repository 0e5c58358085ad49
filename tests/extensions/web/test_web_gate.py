"""The starts of requests that a rate limiter permits, in virtual time."""

import asyncio
from contextlib import suppress

import pytest

from fieldcraft.extensions.web.rate_limit import HostRateLimiter
from virtual_time import virtually


class Visits:
    """Requests to hosts, and the times at which they start."""

    def __init__(self, concurrent: int, interval_seconds: float) -> None:
        self.limiter = HostRateLimiter(concurrent, interval_seconds)
        self.starts: list[tuple[str, float]] = []

    async def visit(self, host: str, duration: float = 0.0, limit: float | None = None) -> None:
        """Visit a host for `duration` seconds, which takes at most `limit` seconds in total."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limit), self.limiter.slot(host):
                self.starts.append((host, asyncio.get_running_loop().time()))
                await asyncio.sleep(duration)


def test_a_host_waits_and_others_do_not() -> None:
    visits = Visits(1, 100.0)

    async def visit_all() -> None:
        for host in "abaab":
            await visits.visit(host)

    virtually(visit_all())
    assert visits.starts == [("a", 0), ("b", 0), ("a", 100), ("a", 200), ("b", 200)]


def test_a_host_with_one_place_waits_from_the_end_to_the_start() -> None:
    visits = Visits(1, 100.0)

    async def visit_all() -> None:
        await asyncio.gather(*(visits.visit("a", duration=30) for _ in range(3)))

    virtually(visit_all())
    assert visits.starts == [("a", 0), ("a", 130), ("a", 260)]


def test_hosts_with_several_places_wait_from_start_to_start() -> None:
    visits = Visits(3, 100.0)

    async def visit_all() -> None:
        await asyncio.gather(*(visits.visit("a", duration=350) for _ in range(4)))

    virtually(visit_all())
    assert visits.starts == [("a", 0), ("a", 100), ("a", 200), ("a", 350)]


@pytest.mark.parametrize("concurrent", [1, 3])
def test_a_request_that_gives_up_while_it_waits_does_not_delay_later_ones(concurrent: int) -> None:
    visits = Visits(concurrent, 100.0)

    async def visit_all() -> None:
        await visits.visit("a")
        for _ in range(9):
            await visits.visit("a", limit=10)
        await visits.visit("a")
        await visits.visit("a")

    virtually(visit_all())
    assert visits.starts == [("a", 0), ("a", 100), ("a", 200)]


@pytest.mark.parametrize("concurrent", [1, 3])
def test_requests_with_a_time_limit_use_every_start(concurrent: int) -> None:
    visits = Visits(concurrent, 100.0)

    async def visit_repeatedly(limit: float) -> None:
        while asyncio.get_running_loop().time() < 1000:
            await visits.visit("a", duration=0.5, limit=limit)

    async def visit_all() -> None:
        await asyncio.gather(*(visit_repeatedly(limit) for limit in range(110, 190, 10)))

    virtually(visit_all())
    step = 100.5 if concurrent == 1 else 100  # seconds
    starts = [time for _, time in visits.starts if time < 1000]
    assert starts == [number * step for number in range(10)]


def test_a_failed_request_gives_its_place_back() -> None:
    visits = Visits(1, 0.0)

    async def fail() -> None:
        with pytest.raises(ValueError, match="no page"):
            async with visits.limiter.slot("a"):
                raise ValueError("no page")
        await visits.visit("a")

    virtually(fail())
    assert visits.starts == [("a", 0)]
