"""Search servers and sandbox workers of a cluster that are killed during requests."""

import asyncio
import json
import os
import random
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster_runs import list_processes
from fieldcraft.cluster.services import FailoverTool, ServicePool
from fieldcraft.cluster.session import ClusterSession, open_cluster
from fieldcraft.config.cluster import ClusterConfig
from fieldcraft.engine.resources import RunResources
from fieldcraft.tools.python.tool import make_python
from fieldcraft.tools.search.client import RemoteSearchTool
from fieldcraft.tools.search.index import SearchIndex, build_index
from fieldcraft.tools.search.tool import SearchTool
from fieldcraft.types import Tool, ToolUnavailableError, UserError


@pytest.fixture
def session(ray: Any, tmp_path: Path) -> Iterator[ClusterSession]:
    with open_cluster(ClusterConfig(search_servers=2), "cpu", tmp_path) as session:
        yield session


def run(services: ServicePool, work: Callable[[], Awaitable[Any]]) -> Any:
    async def run_and_stop() -> Any:
        try:
            async with asyncio.timeout(300):
                await services.start()
                return await work()
        finally:
            await services.close()

    return asyncio.run(run_and_stop())


async def wait_for_message(messages: list[Any]) -> None:
    """Wait for Ray's report of a crash, which may come after the server answers again."""
    while not messages:
        await asyncio.sleep(0.05)


async def kill_one(services: ServicePool, number: int) -> None:
    process = await services.actors[number].get_process_id.remote()
    os.kill(process, signal.SIGKILL)


@pytest.mark.long
def test_a_search_server_may_be_killed(session: ClusterSession, tmp_path: Path) -> None:
    names = ["Arden", "Borla", "Cassin", "Delve"]
    corpus = tmp_path / "corpus.jsonl"
    lines = [json.dumps({"id": n, "contents": f'"{n}"\n{n} is a town by the sea.'}) for n in names]
    corpus.write_text("\n".join(lines), "utf-8")
    build_index(corpus, tmp_path / "index")
    messages: list[Any] = []
    resources = RunResources(tmp_path, messages.append)
    services = ServicePool(session, resources, "search", 2, tmp_path / "index")

    async def work() -> None:
        tools = [RemoteSearchTool(url, 1, retries=0) for url in services.urls]
        search = FailoverTool(tools, 200.0)
        local = SearchTool(SearchIndex.load(tmp_path / "index"), 1)
        expected = {name: await local(query=name) for name in names}
        await kill_one(services, random.Random(1).randrange(2))
        for _ in range(3):
            found = await asyncio.gather(*(search(query=name) for name in names))
            assert found == list(expected.values())
        for tool in tools:  # the server has its address again
            await FailoverTool([tool], 200.0)(query="Arden")
        await wait_for_message(messages)

    run(services, work)
    assert [message.text.partition(" crashed")[0] for message in messages] == ["search server 0"]


@pytest.mark.long
def test_a_sandbox_worker_may_be_killed(session: ClusterSession, tmp_path: Path) -> None:
    messages: list[Any] = []
    services = ServicePool(session, RunResources(tmp_path, messages.append), "sandbox", 1)

    async def work() -> list[str]:
        python = make_python(url=services.urls[0])
        tool = FailoverTool([python], 200.0)  # type: ignore[list-item]
        first = await tool(code="print(6 * 7)")
        await kill_one(services, 0)
        second = await tool(code="print(6 * 8)")
        await wait_for_message(messages)
        return [first, second]

    assert [text.strip() for text in run(services, work)] == ["42", "48"]
    assert [message.text.partition(" crashed")[0] for message in messages] == ["sandbox server 0"]


@pytest.mark.long
def test_a_server_may_be_killed_before_it_listens(session: ClusterSession, tmp_path: Path) -> None:
    services = ServicePool(session, RunResources(tmp_path), "sandbox", 1)
    others = {*list_processes("ServiceActor", os.getpid())}  # of other tests, which still end

    async def start() -> str:
        try:
            async with asyncio.timeout(300):
                starting = asyncio.create_task(services.start())
                while not (new := {*list_processes("ServiceActor", os.getpid())} - others):
                    await asyncio.sleep(0.01)
                os.kill(new.pop(), signal.SIGKILL)
                await starting
                python = make_python(url=services.urls[0])
                tool = FailoverTool([python], 200.0)  # type: ignore[list-item]
                return await tool(code="print(6 * 7)")
        finally:
            await services.close()

    assert asyncio.run(start()).strip() == "42"


@pytest.mark.slow
def test_a_server_that_hangs_is_ended(ray: Any, tmp_path: Path) -> None:
    with open_cluster(
        ClusterConfig(sandbox_workers=1, heartbeat_timeout_seconds=2.0), "cpu", tmp_path
    ) as session:
        messages: list[Any] = []
        services = ServicePool(session, RunResources(tmp_path, messages.append), "sandbox", 1)

        async def work() -> str:
            os.kill(await services.actors[0].get_process_id.remote(), signal.SIGSTOP)
            python = make_python(url=services.urls[0], limits={"wall_seconds": 1.0})
            text = await FailoverTool([python], 200.0)(code="print(6 * 8)")  # type: ignore[list-item]
            await wait_for_message(messages)
            return text

        assert run(services, work).strip() == "48"
    assert "sandbox server 0 crashed" in messages[0].text


def test_an_index_that_is_none_is_a_sentence(session: ClusterSession, tmp_path: Path) -> None:
    services = ServicePool(session, RunResources(tmp_path), "search", 1, tmp_path / "index")
    with pytest.raises(UserError, match="holds no search index"):
        run(services, lambda: asyncio.sleep(0))


def test_servers_that_stay_away_count_as_unavailable(tmp_path: Path) -> None:
    class Away:
        name = "search"

        def __init__(self) -> None:
            self.schema: dict[str, Any] = {}

        async def __call__(self, **arguments: Any) -> str:
            raise ToolUnavailableError("no answer")

    tools: list[Tool] = [Away(), Away()]
    with pytest.raises(ToolUnavailableError, match="no answer"):
        asyncio.run(FailoverTool(tools, 0.01)(query="x"))
