"""Long waits are logged with the waiting work and its cause, at most once a minute."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from fieldcraft.records import waits
from fieldcraft.records.waits import (
    REPORT_INTERVAL_SECONDS,
    report_blocking_wait,
    report_wait,
    report_waits_to,
)
from virtual_time import virtually


async def _wait(seconds: float, who: str = "a search", whom: str = "the server") -> None:
    with report_wait(who, whom):
        await asyncio.sleep(seconds)


def wait_lines(work: Callable[[], object]) -> list[str]:
    """Return the log lines about the waits of a coroutine function, in virtual time."""

    async def listen() -> list[str]:
        lines: list[str] = []
        with report_waits_to(lines.append):
            await work()  # type: ignore[misc]
        return lines

    return virtually(listen())


def test_a_wait_of_more_than_two_seconds_is_told():
    assert wait_lines(lambda: _wait(2.1)) == ["a search waits for the server"]


def test_a_shorter_wait_is_not_told():
    assert wait_lines(lambda: _wait(1.9)) == []


def test_a_wait_that_fails_is_not_told_later():
    async def fail() -> None:
        with pytest.raises(ZeroDivisionError), report_wait("a search", "the server"):
            raise ZeroDivisionError
        await asyncio.sleep(3)

    assert wait_lines(fail) == []


def test_waits_side_by_side_have_one_line_of_each_kind():
    async def several() -> None:
        kinds = ("a search", "a search", "a request", "a search")
        await asyncio.gather(*(_wait(10, kind) for kind in kinds))

    assert wait_lines(several) == [
        "a search waits for the server",
        "a request waits for the server",
    ]


def test_a_kind_is_told_again_after_a_minute():
    async def several() -> None:
        for _ in range(5):
            await _wait(REPORT_INTERVAL_SECONDS / 2)

    assert len(wait_lines(several)) == 3


def test_nobody_need_listen():
    virtually(_wait(3))
    with report_blocking_wait("an index", "itself"):
        pass


def test_what_holds_up_its_thread_is_told_from_another_one(monkeypatch):
    monkeypatch.setattr(waits, "REPORT_AFTER_SECONDS", 0.0)
    lines, logged = [], threading.Event()

    def write_line(line: str) -> None:
        lines.append(line)
        logged.set()

    with report_waits_to(write_line), report_blocking_wait("the run", "its index"):
        assert logged.wait()
    assert lines == ["the run waits for its index"]


def test_inside_a_block_its_own_listener_hears():
    outer: list[str] = []
    inner: list[str] = []

    async def nested() -> None:
        with report_waits_to(outer.append):
            with report_waits_to(inner.append):
                await _wait(3)
            await _wait(4)

    virtually(nested())
    assert (len(outer), len(inner)) == (1, 1)
