"""Log messages that name the reason of a long wait. Here waits of any length count as long."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from bad_servers import answers, raw_server
from chat_server import completion
from fieldcraft.cli import main as command_line
from fieldcraft.extensions.sandbox.sandbox import Sandbox
from fieldcraft.extensions.search import index
from fieldcraft.extensions.search.client import RemoteSearchTool
from fieldcraft.extensions.web.rate_limit import HostRateLimiter
from fieldcraft.records import waits
from fieldcraft.records.waits import report_wait, report_waits_to
from fieldcraft.tools.chat_client import ChatClient
from virtual_time import virtually


@pytest.fixture
def wait_lines(monkeypatch: pytest.MonkeyPatch) -> Callable[[Awaitable[object]], list[str]]:
    """Return the log lines about waits during some work."""
    monkeypatch.setattr(waits, "REPORT_AFTER_SECONDS", 0.0)

    def collect_lines(work: Awaitable[object]) -> list[str]:
        lines: list[str] = []

        async def all_of_it() -> None:
            with report_waits_to(lines.append):
                await work

        asyncio.run(all_of_it())
        return lines

    return collect_lines


def test_a_request_to_a_model(wait_lines):
    with raw_server(answers(bytes(completion("hi").body))) as (url, _):
        endpoint = ChatClient(f"{url}/v1", "gold", retries=0)
        lines = wait_lines(endpoint.chat([{"role": "user", "content": "hello"}], max_tokens=5))
    assert lines == [f"a request to gold waits for {url}/v1"]


def test_a_search(wait_lines):
    found = b'{"result": [[{"document": {"id": 3, "contents": "\\"A\\"\\nB"}, "score": 1.0}]]}'
    with raw_server(answers(found)) as (url, _):
        lines = wait_lines(RemoteSearchTool(url)(query="a"))
    assert lines == [f"a search waits for the server {url}"]


def test_the_turn_of_a_request_at_a_host():
    """A request that only waits for the interval between two requests is included."""
    gate, lines = HostRateLimiter(1, 5.0), []

    async def visit() -> None:
        with report_waits_to(lines.append):
            for _ in range(2):
                async with gate.slot("a.test"):
                    await asyncio.sleep(100)  # not a wait for a turn

    virtually(visit())
    assert lines == ["a request of the web waits for its turn at a.test"]


def test_a_place_in_the_sandbox():
    """Only the places are checked, so that no program has to run."""
    sandbox = object.__new__(Sandbox)
    sandbox.concurrent, lines = 1, []

    async def two() -> None:
        sandbox._slots = asyncio.Semaphore(1)
        with report_waits_to(lines.append):
            await sandbox._acquire_slot()
            asyncio.get_running_loop().call_later(3, sandbox._slots.release)
            await sandbox._acquire_slot()

    virtually(two())
    assert lines == ["a program waits for one of the 1 places of the sandbox"]


def test_an_index_that_is_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Building blocks the whole thread, so the line comes from a different one."""
    monkeypatch.setattr(waits, "REPORT_AFTER_SECONDS", 0.0)
    lines, logged, write = [], threading.Event(), index.write_index

    def write_line(line: str) -> None:
        lines.append(line)
        logged.set()

    def write_after_log(*arguments: Any) -> int:
        assert logged.wait()
        return write(*arguments)

    monkeypatch.setattr(index, "write_index", write_after_log)
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"id": "1", "contents": "\\"A\\"\\nB"}\n')
    with report_waits_to(write_line):
        index.build_index(corpus, tmp_path / "index")
    assert lines == [f"a search waits for the index {tmp_path / 'index'}, which is being built"]


def test_a_command_says_it_beside_its_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    async def wait() -> None:
        with report_wait("a request to gold", "http://there"):
            await asyncio.sleep(3)

    monkeypatch.setattr(command_line, "app", lambda **_: virtually(wait()))
    command_line.main([])
    assert capsys.readouterr() == ("", "a request to gold waits for http://there\n")
