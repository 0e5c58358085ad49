"""Reply cache of a remote model while another process writes to its file."""

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from chat_server import answering, completion
from fieldcraft.records import shared_database
from fieldcraft.tools.chat_client import ChatClient, ChatReply
from fieldcraft.tools.serving import serve_in_thread
from fieldcraft.types import UserError
from waiting import wait_until_async


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[ChatClient]:
    """Yield a client whose cache has one reply."""
    app, _ = answering(completion("one"), completion("two"))
    with serve_in_thread(app) as url:
        client = ChatClient(f"{url}/v1", "m", cache=tmp_path / "replies")
        asyncio.run(ask(client, "first"))
        yield client


async def ask(client: ChatClient, question: str) -> ChatReply:
    return await client.chat([{"role": "user", "content": question}], max_tokens=5)


def test_a_client_that_waits_for_its_cache_does_not_block_other_work(
    endpoint: ChatClient, tmp_path: Path
) -> None:
    async def unlock_meanwhile() -> ChatReply:
        with closing(sqlite3.connect(tmp_path / "replies")) as other:
            other.execute("BEGIN IMMEDIATE")
            asking = asyncio.create_task(ask(endpoint, "second"))
            await wait_until_async(lambda: endpoint.requests == 2)
        return await asking

    assert asyncio.run(unlock_meanwhile()).text == "two"
    assert asyncio.run(ask(endpoint, "second")).text == "two"
    assert endpoint.cached_replies == 1


def test_a_cache_that_stays_locked_is_named(
    endpoint: ChatClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_database, "LOCK_TIMEOUT_SECONDS", 0.01)
    message = r"replies cannot be used as a reply cache \(database is locked\): end other processes"
    with closing(sqlite3.connect(tmp_path / "replies")) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(UserError, match=message):
            asyncio.run(ask(endpoint, "second"))
