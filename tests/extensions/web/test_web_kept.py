"""The cache shared by processes, and runs that are recorded and replayed offline."""

import asyncio
import json
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

import pytest
from starlette.responses import JSONResponse
from test_web_search import HITS, engine
from web_parts import TASK, crawler, failure, searcher, use

from bad_servers import answers, raw_server, resets
from chat_server import answering, completion
from fieldcraft.extensions.web import response_cache
from fieldcraft.extensions.web.response_cache import (
    CachedResponse,
    CacheMode,
    RequestKey,
    ResponseCache,
)
from fieldcraft.records import shared_database
from fieldcraft.tools.serving import serve_in_thread
from fieldcraft.types import UserError

pytest.importorskip("trafilatura", reason="needs the extra web")

PAGE = answers(b"<p>Hello there.</p>", "text/html")
OTHER = answers(b"<p>Something else.</p>", "text/html")
GONE = answers(b"", "text/html", 404)


def test_a_cache_is_used_until_it_is_old(tmp_path, monkeypatch):
    with raw_server(PAGE, OTHER) as (url, requests):
        tool = crawler(cache=str(tmp_path), cache_hours=2)
        first = use(tool, {"url": url})
        assert use(crawler(cache=str(tmp_path), cache_hours=2), {"url": url}) == first
        assert len(requests) == 1
        real = time.time
        monkeypatch.setattr(response_cache.time, "time", lambda: real() + 2 * 3600 + 1)
        assert "Something else." in use(tool, {"url": url})[0]
        assert "Something else." in use(tool, {"url": url})[0]
    assert len(requests) == 2


def test_a_cache_keeps_no_failures(tmp_path):
    with raw_server(GONE, PAGE) as (url, _):
        tool = crawler(cache=str(tmp_path))
        failure(tool, url=url)
        assert "Hello there." in use(tool, {"url": url})[0]


def test_what_is_asked_twice_at_once_is_got_once(tmp_path):
    async def both(tool, url):
        async with tool.open(TASK) as first_tool, tool.open(TASK) as second_tool:
            return await asyncio.gather(first_tool(url=url), second_tool(url=url))

    with raw_server(PAGE, OTHER) as (url, requests):
        first, second = asyncio.run(both(crawler(cache=str(tmp_path)), url))
    assert first == second
    assert len(requests) == 1


def test_processes_share_a_cache(tmp_path):
    """Both write the same answers; the second process keeps the answers of the first."""
    program = """
import asyncio, sys
from pathlib import Path
from fieldcraft.extensions.web.response_cache import CachedResponse, RequestKey
from fieldcraft.extensions.web.response_cache import CacheMode, ResponseCache

async def main():
    store = ResponseCache(Path(sys.argv[1]), CacheMode.RECORD, 1)
    for n in range(12):
        async def ask(): return CachedResponse(content=sys.argv[2].encode(), way=("http://a",))
        answer = await store.get_or_fetch(RequestKey("GET", f"http://a/{n}"), ask)
        print(answer.content.decode())
asyncio.run(main())
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    runs = [subprocess.Popen([*command, name], stdout=subprocess.PIPE, text=True) for name in "ab"]
    first, second = (run.communicate(timeout=300)[0].split() for run in runs)
    assert len(first) == 12
    assert first == second


def test_what_other_settings_allowed_is_checked_again(tmp_path):
    with raw_server(PAGE) as (url, _):
        use(crawler(cache=str(tmp_path)), {"url": url})
        assert "is not on the public internet" in str(
            failure(crawler(cache=str(tmp_path), allow_hosts=[]), url=url)
        )
        blocked = crawler(cache=str(tmp_path), block=["127.0.0.1"])
        assert str(failure(blocked, url=url)) == "The page may not be read here."
        small = crawler(cache=str(tmp_path), max_mb=2**-17)
        assert "is larger than 7.62939e-06 MiB" in str(failure(small, url=url))


def a_run(tool_search, tool_crawl, pages):
    """Return all texts that a rollout reads, including failures."""
    read = use(tool_search, {"query": "ada"}, {"query": "bo"})
    read += use(tool_crawl, {"url": pages[0]})
    return read + [str(failure(tool_crawl, url=page)) for page in pages[1:]]


def test_a_recorded_run_is_repeated_offline_byte_for_byte(tmp_path, monkeypatch):
    monkeypatch.setenv("TAVILY_API_KEY", "secret")
    folder = str(tmp_path / "record")
    search_app, _ = engine(JSONResponse({"results": HITS}))
    model_app, _ = answering(completion("A summary."))
    with (
        serve_in_thread(search_app) as search_url,
        serve_in_thread(model_app) as model_url,
        raw_server(PAGE) as (good, _),
        raw_server(GONE) as (gone, _),
        raw_server(resets) as (broken, _),
    ):
        summary = {"url": f"{model_url}/v1", "model": "m"}
        recorded = a_run(
            searcher(search_url, provider="tavily", record=folder),
            crawler(record=folder, summary=summary),
            [good, gone, broken],
        )
    monkeypatch.delenv("TAVILY_API_KEY")

    def no_network(*_, **__):
        raise AssertionError("the network is used")

    monkeypatch.setattr("socket.getaddrinfo", no_network)
    monkeypatch.setattr("httpx.AsyncClient.send", no_network)
    tool_search = searcher(search_url, provider="tavily", replay=folder)
    tool_crawl = crawler(replay=folder, summary=summary)
    assert a_run(tool_search, tool_crawl, [good, gone, broken]) == recorded
    assert recorded[2] == f"Summary of {good}\n\nA summary."
    for tool, call, request in (
        (tool_search, {"query": "cy"}, f'POST {search_url}/search {{"query": "cy", '),
        (tool_crawl, {"url": f"{good}/more"}, f"GET {good}/more: record the run again, or"),
    ):
        with pytest.raises(UserError) as error:
            use(tool, call)
        assert f"{folder} has no answer to {request}" in str(error.value)
    stored = (tmp_path / "record" / "web.sqlite").read_bytes()
    assert b"secret" not in stored


def test_a_record_keeps_the_first_answer_for_good(tmp_path):
    with raw_server(GONE, PAGE) as (url, requests):
        tool = crawler(record=str(tmp_path))
        assert str(failure(tool, url=url)) == str(failure(tool, url=url))
    assert len(requests) == 1


@pytest.mark.parametrize("keeping", ["cache", "record", "replay"])
def test_a_folder_that_cannot_keep_answers_is_a_sentence(tmp_path, keeping):
    (tmp_path / "web.sqlite").write_text("This is no database, but a text that is long enough.")
    with pytest.raises(UserError, match=r"cannot store answers .*: give another folder"):
        crawler(**{keeping: str(tmp_path)})
    with pytest.raises(UserError, match=r"(cannot store|contains no recorded) answers"):
        crawler(**{keeping: "/dev/null/a"})


def test_a_file_that_another_process_keeps_locked_is_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(shared_database, "LOCK_TIMEOUT_SECONDS", 0.01)
    store = ResponseCache(tmp_path, CacheMode.CACHE, 1)

    async def get() -> CachedResponse:
        other.execute("BEGIN EXCLUSIVE")
        return CachedResponse(status=200)

    with (
        closing(sqlite3.connect(tmp_path / "web.sqlite")) as other,
        pytest.raises(UserError, match=r"cannot store answers \(database is locked\)"),
    ):
        asyncio.run(store.get_or_fetch(RequestKey("GET", "http://a"), get))


def test_answers_survive_their_way_to_the_disk(tmp_path):
    reply = CachedResponse(status=200, kind="a", content=bytes(range(256)), way=("http://a",))

    async def get() -> CachedResponse:
        return reply

    query = RequestKey("POST", "http://a", {"b": 1, "a": "ü"})
    store = ResponseCache(tmp_path, CacheMode.RECORD, 1)
    assert asyncio.run(store.get_or_fetch(query, get)) == reply
    assert query.key == RequestKey("POST", "http://a", json.loads('{"a": "ü", "b": 1}')).key
    assert (
        asyncio.run(ResponseCache(tmp_path, CacheMode.REPLAY, 1).get_or_fetch(query, get)) == reply
    )
