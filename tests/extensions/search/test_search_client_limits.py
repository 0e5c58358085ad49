"""The search client against servers that are slow, endless or broken."""

import asyncio
import json

import pytest

from bad_servers import (
    OF_AN_ANSWER,
    OF_HEADERS,
    Behaviour,
    answers,
    drips,
    is_endless,
    raw_server,
    redirects,
    resets,
)
from fieldcraft.extensions.search.client import RemoteSearchTool
from fieldcraft.tools.http import MAX_RESPONSE_BYTES
from fieldcraft.types import ToolError, ToolUnavailableError, UserError
from virtual_time import Clock

FOUND = json.dumps(
    {"result": [[{"document": {"id": 3, "contents": '"A"\nB'}, "score": 1.0}]]}
).encode()
FOUND_TEXT = 'result 1: "A"\nB'
BUSY = answers(b"starting", "text/plain", 503)
PATIENCE = 300  # seconds, more than any test needs; without a limit some of the servers never end


def ask(tool: RemoteSearchTool) -> str:
    async def search() -> str:
        async with asyncio.timeout(PATIENCE):
            return await tool(query="a")

    return asyncio.run(search())


@pytest.mark.parametrize("beginning", [OF_AN_ANSWER, OF_HEADERS])
def test_a_server_that_drips_is_given_up_however_often_it_sends(beginning: bytes) -> None:
    """A byte comes every 25 s, so each wait between two bytes is shorter than the limit."""
    clock = Clock()
    with raw_server(drips(beginning, lambda: clock.jump(25))) as (url, requests):
        tool = RemoteSearchTool(url, timeout_seconds=100, retries=1, total_seconds=1000)
        with pytest.raises(ToolUnavailableError, match="the server did not answer in time"):
            clock.run(tool(query="a"))
        assert len(requests) == 2


def test_all_attempts_together_have_a_limit() -> None:
    clock = Clock()
    with raw_server(drips(OF_AN_ANSWER, lambda: clock.jump(25))) as (url, requests):
        tool = RemoteSearchTool(url, timeout_seconds=100, retries=5, total_seconds=250)
        with pytest.raises(ToolUnavailableError, match="the server did not answer in time"):
            clock.run(tool(query="a"))
        assert 1 < len(requests) < 6


def test_an_endless_answer_is_not_read_to_its_end() -> None:
    with raw_server(is_endless) as (url, requests):
        tool = RemoteSearchTool(url, timeout_seconds=PATIENCE)
        with pytest.raises(ToolUnavailableError, match="the server's answer is too large"):
            ask(tool)
        assert len(requests) == 1  # a second response would not be shorter


def test_an_answer_may_be_as_long_as_the_limit() -> None:
    def padded(size: int) -> bytes:
        return FOUND + b" " * (size - len(FOUND))

    with raw_server(
        answers(padded(MAX_RESPONSE_BYTES)), answers(padded(MAX_RESPONSE_BYTES + 1))
    ) as (url, _):
        tool = RemoteSearchTool(url, timeout_seconds=PATIENCE)
        assert ask(tool) == FOUND_TEXT
        with pytest.raises(ToolUnavailableError, match="too large"):
            ask(tool)


@pytest.mark.parametrize("first", [BUSY, resets])
def test_one_failure_neither_ends_a_query_nor_refuses_a_run(first: Behaviour) -> None:
    with raw_server(first, answers(FOUND)) as (url, requests):
        assert ask(RemoteSearchTool(url)) == FOUND_TEXT
        assert len(requests) == 2
    with raw_server(first, answers(FOUND)) as (url, requests):
        asyncio.run(RemoteSearchTool(url).check())
        assert len(requests) == 2


def test_a_server_that_is_down_is_tried_beyond_the_retries() -> None:
    with raw_server(BUSY, BUSY, BUSY, answers(FOUND)) as (url, requests):
        tool = RemoteSearchTool(url, retries=0, restart_seconds=PATIENCE)
        assert ask(tool) == FOUND_TEXT
        assert len(requests) == 4
    with raw_server(BUSY, answers(FOUND)) as (url, requests):
        with pytest.raises(UserError, match="status 503"):  # a run does not start without it
            asyncio.run(RemoteSearchTool(url, retries=0, restart_seconds=PATIENCE).check())
        assert len(requests) == 1
    with raw_server(resets, answers(FOUND)) as (url, requests):
        with pytest.raises(ToolUnavailableError, match="cannot be reached"):
            ask(RemoteSearchTool(url, retries=0, restart_seconds=PATIENCE))  # it is up
        assert len(requests) == 1


@pytest.mark.parametrize(
    ("server", "reason"),
    [
        (resets, "the server cannot be reached"),
        (redirects, "the server answered with status 307"),
        (BUSY, "the server answered with status 503"),
        (answers(b"no", status=404), "the server answered with status 404"),
        (answers(b"<html>hello</html>", "text/html"), "is not in the format of /retrieve"),
        (answers(b'{"result": [['), "is not in the format of /retrieve"),
        (answers(b"[" * 100_000), "is not in the format of /retrieve"),
        (answers(b'{"result": {"0": 1}}'), "is not in the format of /retrieve"),
        (answers(b""), "is not in the format of /retrieve"),
        (answers(b"\xff\xfe\x00"), "is not in the format of /retrieve"),
    ],
)
def test_what_no_query_caused_is_an_outage(server: Behaviour, reason: str) -> None:
    with raw_server(server) as (url, _):
        tool = RemoteSearchTool(url, retries=1, restart_seconds=0.0)
        with pytest.raises(ToolUnavailableError, match=reason):
            ask(tool)
        with pytest.raises(UserError, match=reason):
            asyncio.run(tool.check())


@pytest.mark.parametrize("status", [400, 413, 422])
def test_what_the_query_may_have_caused_is_none(status: int) -> None:
    with raw_server(answers(b"too long", status=status)) as (url, _):
        with pytest.raises(ToolError, match=f"status {status}") as failed:
            ask(RemoteSearchTool(url))
        assert not isinstance(failed.value, ToolUnavailableError)
