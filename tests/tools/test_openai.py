"""The client of remote models against real servers on the loopback interface."""

import asyncio
import gc
import json
import socket
import sqlite3
import subprocess
import sys
import traceback
import warnings
from dataclasses import asdict

import openai
import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from chat_server import answering, completion
from fieldcraft.sampling import Truncation
from fieldcraft.tools.chat_client import ChatClient, ChatRequestError, TokenUsage
from fieldcraft.tools.serving import serve_in_thread
from fieldcraft.types import UserError
from virtual_time import ROUNDS, Clock

HELLO = [{"role": "user", "content": "hello"}]
KEY = "sk-very-secret-0123456789"
AT_ONCE = {"retry-after-ms": "1"}  # time before the client's next attempt
BUSY = PlainTextResponse("overloaded", 500, headers=AT_ONCE)


def ask(endpoint, *, times=1, run=asyncio.run, **settings):
    """Return the replies to `times` equal, concurrent requests in a separate event loop."""

    async def send_all():
        chats = (endpoint.chat(HELLO, **{"max_tokens": 5} | settings) for _ in range(times))
        return await asyncio.gather(*chats)

    return run(send_all())


@pytest.fixture(autouse=True)
def no_key(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def test_a_request_and_its_reply(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    app, requests = answering(completion("hi", reasoning_content="so"), completion(reasoning="hm"))
    with serve_in_thread(app) as url:
        endpoint = ChatClient(f"{url}/v1/", "m", prices=(1.0, 4.0))
        [first] = ask(endpoint, stop=["</a>"], seed=7, temperature=0.5)
        [second] = ask(endpoint)
    assert requests == [
        {
            "key": f"Bearer {KEY}",
            "model": "m",
            "messages": HELLO,
            "temperature": 0.5,
            "max_tokens": 5,
            "stop": ["</a>"],
            "seed": 7,
        },
        {
            "key": f"Bearer {KEY}",
            "model": "m",
            "messages": HELLO,
            "temperature": 0.0,
            "max_tokens": 5,
        },
    ]
    assert (first.text, first.reasoning, first.finish_reason) == ("hi", "so", "stop")
    assert second.reasoning == "hm"
    # (10 x 1 + 2 x 4) / a million, twice
    assert first.usage == TokenUsage(10, 2, pytest.approx(18e-6))
    assert endpoint.usage == TokenUsage(20, 4, pytest.approx(36e-6))
    assert endpoint.cached_replies == 0


def test_without_prices_there_is_no_cost():
    assert TokenUsage(1, 2, 0.5) + TokenUsage(3, 4, 0.25) == TokenUsage(4, 6, 0.75)
    assert TokenUsage(1, 2, 0.5) + TokenUsage(3, 4, None) == TokenUsage(4, 6, None)
    with serve_in_thread(answering(completion())[0]) as url:
        endpoint = ChatClient(f"{url}/v1", "m")
        ask(endpoint, times=2)
    assert endpoint.usage == TokenUsage(20, 4, None)


def test_a_reply_may_lack_everything_but_a_message():
    bare = JSONResponse({"choices": [{"message": {"role": "assistant", "content": None}}]})
    with serve_in_thread(answering(bare)[0]) as url:
        endpoint = ChatClient(f"{url}/v1", "m")
        [reply] = ask(endpoint)
    assert (reply.text, reply.reasoning, reply.finish_reason) == ("", "", "")
    assert reply.usage == endpoint.usage == TokenUsage(0, 0, None)


def test_openai_itself_is_given_its_new_name_of_the_limit(monkeypatch):
    app, requests = answering(completion())
    real = openai.AsyncOpenAI
    with serve_in_thread(app) as url:
        monkeypatch.setattr(
            openai, "AsyncOpenAI", lambda **s: real(**s | {"base_url": f"{url}/v1"})
        )
        ask(ChatClient("https://api.openai.com/v1", "m"))
    assert requests[0]["max_completion_tokens"] == 5
    assert "max_tokens" not in requests[0]


def test_limits_are_sent_where_they_are_understood():
    app, requests = answering(completion())
    cut = Truncation(top_k=20, top_p=0.9, min_p=0.1)
    with serve_in_thread(app) as url:
        endpoint = ChatClient(f"{url}/v1", "m")
        asyncio.run(endpoint.chat([], max_tokens=5, temperature=1.0, truncation=cut))
        asyncio.run(endpoint.chat([], max_tokens=5, temperature=1.0))
        asyncio.run(endpoint.require_available(cut))
    keys = ("top_k", "top_p", "min_p")
    assert [{k: r[k] for k in keys if k in r} for r in requests] == [asdict(cut), {}, asdict(cut)]
    openai_itself = ChatClient("https://api.openai.com/v1", "m")
    with pytest.raises(UserError, match="do not support top_k"):
        asyncio.run(openai_itself.chat([], max_tokens=5, truncation=cut))


@pytest.mark.parametrize("header", [{"retry-after": "0.01"}, AT_ONCE])
def test_a_busy_server_is_asked_again_when_it_says_so(header):
    app, requests = answering(PlainTextResponse("slower", 429, headers=header), BUSY, completion())
    with serve_in_thread(app) as url:
        endpoint = ChatClient(f"{url}/v1", "m", retries=2)
        assert ask(endpoint)[0].text == "hi"
    assert len(requests) == 3
    assert endpoint.usage == TokenUsage(10, 2, None)


def test_a_server_that_stays_busy_is_given_up():
    app, requests = answering(BUSY)
    with (
        serve_in_thread(app) as url,
        pytest.raises(ChatRequestError, match=r"^status 500 \(overloaded\)$"),
    ):
        ask(ChatClient(f"{url}/v1", "m", retries=2))
    assert len(requests) == 3


def test_a_refusal_is_not_repeated():
    app, requests = answering(JSONResponse({"error": {"message": "too long"}}, 400))
    with (
        serve_in_thread(app) as url,
        pytest.raises(ChatRequestError, match=r"status 400 .*too long"),
    ):
        ask(ChatClient(f"{url}/v1", "m"))
    assert len(requests) == 1


def test_a_server_that_hangs_is_given_up():
    with socket.create_server(("127.0.0.1", 0)) as listener:  # accepts, and never answers
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        endpoint = ChatClient(url, "m", timeout_seconds=0.2, retries=0)
        with pytest.raises(ChatRequestError, match=r"^no answer within 0\.2 s$"):
            ask(endpoint)


@pytest.mark.parametrize(
    "garbage",
    [
        PlainTextResponse("<html>"),
        Response("{", media_type="application/json"),
        JSONResponse({"error": {"message": "out of credit"}}),
        JSONResponse({"choices": []}),
        JSONResponse({"choices": [{"message": {"content": ["text"]}}]}),
        PlainTextResponse(""),
    ],
)
def test_garbage_is_told_apart_from_an_answer(garbage, tmp_path):
    with serve_in_thread(answering(garbage, completion())[0]) as url:
        endpoint = ChatClient(f"{url}/v1", "m", cache=tmp_path / "replies")
        with pytest.raises(
            ChatRequestError, match=r"^the response is not a chat completion \(.+\)$"
        ):
            ask(endpoint)
        assert ask(endpoint)[0].text == "hi"  # failures are not cached


def format_error(error):
    """Return all texts that a log could contain about an error."""
    return repr(error) + "".join(traceback.format_exception(error))


@pytest.mark.parametrize("status", [401, 403, 404, 500, 200])
def test_the_key_is_never_repeated(status, monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("MY_KEY", KEY)
    caplog.set_level("DEBUG")
    echo = JSONResponse({"error": {"message": f"what is {KEY}?"}}, status)
    with serve_in_thread(answering(echo)[0]) as url:
        endpoint = ChatClient(
            f"{url}/v1", "m", api_key_env="MY_KEY", retries=0, cache=tmp_path / "replies"
        )
        with pytest.raises(ChatRequestError, match=r"what is \*\*\*\?") as failed:
            ask(endpoint)
        with pytest.raises(UserError, match=r"what is \*\*\*\?") as refused:
            asyncio.run(endpoint.require_available())
    texts = format_error(failed.value) + format_error(refused.value) + caplog.text + repr(endpoint)
    assert KEY not in texts
    assert all(KEY.encode() not in path.read_bytes() for path in tmp_path.iterdir())


@pytest.mark.parametrize("key", [None, KEY, f"{KEY}\r\n"])
def test_a_wrong_key_is_told_apart_from_none(key, monkeypatch):
    if key:
        monkeypatch.setenv("OPENAI_API_KEY", key)
    state = "is refused" if key else "is not set"
    with serve_in_thread(answering(PlainTextResponse("no", 401))[0]) as url:
        endpoint = ChatClient(f"{url}/v1", "m")
        with pytest.raises(
            UserError, match=rf"'m' does not answer at {url}/v1: .*OPENAI_API_KEY {state} \(no\)\.$"
        ):
            asyncio.run(endpoint.require_available())


def test_a_check_names_an_unknown_model_and_a_server_that_is_not_there():
    unknown = JSONResponse({"error": {"message": "no model x"}}, 404)
    with serve_in_thread(answering(unknown)[0]) as url:
        with pytest.raises(UserError, match=r"model or the url is unknown there .*no model x"):
            asyncio.run(ChatClient(f"{url}/v1", "x").require_available())
        app, requests = answering(completion())
        with serve_in_thread(app) as other:
            endpoint = ChatClient(f"{other}/v1", "m")
            asyncio.run(endpoint.require_available())
            assert (requests[0]["max_tokens"], endpoint.usage.completion_tokens) == (16, 2)
    with pytest.raises(UserError, match=r"the server cannot be reached\.$"):
        asyncio.run(ChatClient(f"{other}/v1", "m", retries=0).require_available())


def test_no_more_requests_than_allowed_are_on_their_way():
    """The server holds requests until three have arrived, so a client that sends fewer would
    wait endlessly. More than three would be counted, as the client has time to send them."""
    running, peak = 0, 0
    gate, clock = asyncio.Barrier(3), Clock()

    async def chat(request):
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await gate.wait()
        await asyncio.to_thread(clock.jump, 0)
        for _ in range(ROUNDS):
            await asyncio.sleep(0)
        running -= 1
        return completion()

    app = Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])
    with serve_in_thread(app) as url:
        ask(ChatClient(f"{url}/v1", "m", concurrency=3), times=12, run=clock.run)
    assert peak == 3


def test_an_endpoint_outlives_the_event_loop_it_was_first_used_in():
    with serve_in_thread(answering(completion())[0]) as url:
        endpoint = ChatClient(f"{url}/v1", "m", concurrency=1)
        assert len(ask(endpoint, times=2)) == len(ask(endpoint, times=2)) == 2
        del endpoint
        gc.collect()  # an open connection would emit a warning here


def test_connections_are_closed_though_the_endpoint_is_dropped_as_its_loop_ends():
    async def send_three(url):
        endpoint = ChatClient(f"{url}/v1", "m")
        await asyncio.gather(*(endpoint.chat(HELLO, max_tokens=5) for _ in range(3)))
        del endpoint
        gc.collect()
        await asyncio.sleep(0)  # as a run does at its end

    with (
        serve_in_thread(answering(completion())[0]) as url,
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        asyncio.run(send_three(url))
        gc.collect()
    assert not caught


# -- the cache ---------------------------------------------------------------------------------


def test_nothing_is_paid_twice(tmp_path):
    app, requests = answering(completion("first"), completion("second"))
    file = tmp_path / "new" / "replies"
    with serve_in_thread(app) as url:
        endpoint = ChatClient(f"{url}/v1", "m", cache=file)
        assert {reply.text for reply in ask(endpoint, times=5)} == {"first"}
        assert (len(requests), endpoint.cached_replies) == (1, 4)
        later = ChatClient(f"{url}/v1/chat/completions", "m", cache=file, prices=(1.0, 1.0))
        [reply] = ask(later)
        assert (reply.text, reply.finish_reason) == ("first", "stop")
        assert reply.usage == TokenUsage(
            10, 2, pytest.approx(12e-6)
        )  # its cost when it was requested
        assert (later.usage, later.cached_replies) == (TokenUsage(0, 0, 0.0), 1)
        assert len(requests) == 1


@pytest.mark.parametrize(
    "other", [{"max_tokens": 6}, {"temperature": 1}, {"seed": 1}, {"stop": "a"}]
)
def test_the_whole_request_is_the_key(other, tmp_path):
    app, requests = answering(completion("first"), completion("second"))
    with serve_in_thread(app) as url:
        endpoint = ChatClient(f"{url}/v1", "m", cache=tmp_path / "replies")
        assert ask(endpoint)[0].text == "first"
        assert ask(endpoint, **other)[0].text == "second"
        assert ask(endpoint)[0].text == "first"
        ask(ChatClient(f"{url}/v1", "n", cache=tmp_path / "replies"))
    assert len(requests) == 3


def test_a_run_that_is_stopped_keeps_what_it_paid_for(tmp_path):
    """The run is stopped after the first reply, while the second request is in flight."""
    stopped = []

    async def chat(request):
        if (await request.json()).get("seed") == 1 and not stopped:
            stopped.append(True)
            while not await request.is_disconnected():
                await asyncio.sleep(0.005)
        return completion()

    async def run(endpoint):
        await endpoint.chat(HELLO, max_tokens=1, seed=0)
        late = asyncio.create_task(endpoint.chat(HELLO, max_tokens=1, seed=1))
        while not stopped:
            await asyncio.sleep(0.001)
        late.cancel()
        await asyncio.wait([late])

    app = Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])
    with serve_in_thread(app) as url:
        endpoint = ChatClient(f"{url}/v1", "m", cache=tmp_path / "replies")
        asyncio.run(run(endpoint))
        ask(endpoint, seed=0, max_tokens=1)
        ask(endpoint, seed=1, max_tokens=1)
    assert (endpoint.cached_replies, endpoint.usage.prompt_tokens) == (1, 20)


def test_the_cache_is_readable_json(tmp_path):
    with serve_in_thread(answering(completion("hi"))[0]) as url:
        ask(ChatClient(f"{url}/v1", "m", cache=tmp_path / "replies"))
    file = sqlite3.connect(tmp_path / "replies")
    [(body,)] = file.execute("SELECT body FROM replies").fetchall()
    file.close()
    assert json.loads(body)["choices"][0]["message"]["content"] == "hi"


# -- mistakes ----------------------------------------------------------------------------------


def test_a_file_that_is_no_cache_is_named(tmp_path):
    other = tmp_path / "notes.txt"
    other.write_text("do not overwrite me, I am more than a hundred bytes long" * 3)
    with pytest.raises(UserError, match=r"notes\.txt cannot be used as a reply cache"):
        ChatClient("http://host/v1", "m", cache=other)
    assert other.read_text().startswith("do not overwrite me")


BAD_PARTS = ["http://[::1", "http://host:port/v1", "http://host:99999/v1", "http://xn--a/v1"]


@pytest.mark.parametrize("url", ["localhost:8000", "", "ftp://host", "http://", *BAD_PARTS])
def test_a_bad_url_is_named(url):
    with pytest.raises(UserError, match="is not an endpoint URL"):
        ChatClient(url, "m")


@pytest.mark.parametrize("url", ["http://me:hunter2@host/v1", "http://host/v1?key=hunter2"])
def test_a_url_with_a_secret_is_refused(url):
    with pytest.raises(UserError, match=r"^The url of host must not contain a user") as refused:
        ChatClient(url, "m")
    assert "hunter2" not in format_error(refused.value)


def test_bad_numbers_are_named():
    with pytest.raises(UserError, match=r"concurrency=0, timeout_seconds=0 and retries=-1\.$"):
        ChatClient("http://host/v1", "m", concurrency=0, timeout_seconds=0, retries=-1)


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(UserError, match=r"pip install 'fieldcraft\[openai\]'"):
        ChatClient("http://host/v1", "m")


def test_the_module_itself_needs_no_extra():
    program = "import sys, fieldcraft.tools.chat_client; assert 'openai' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
