"""Slots, the queue, time limits, access tokens, disconnecting clients, and shutdown."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest

from fieldcraft.extensions.external_envs.refusals import RequestRejectedError
from fieldcraft.extensions.methods.autocoa import AutoCoADialect
from fieldcraft.extensions.serving.app import create_app
from fieldcraft.extensions.serving.requests import AgentRequest
from fieldcraft.extensions.serving.service import MAX_CHARS_PER_TOKEN
from fieldcraft.tools.serving import serve_in_thread
from serving_parts import client, scripted
from waiting import wait_until

ASK = {"model": "scripted", "messages": [{"role": "user", "content": "Who?"}]}
SECONDS = 300  # timeout of a waiting test


def metric(url: str, line: str) -> float:
    """Return the value of a line of /metrics, or 0 if it is missing."""
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return next((float(text.split()[-1]) for text in lines if text.startswith(line)), 0.0)


def test_who_finds_no_place_is_told_when_to_come_again():
    service, engine = scripted(concurrency=1, queue=1)
    engine.go_on.clear()
    with serve_in_thread(create_app(service)) as url, ThreadPoolExecutor() as pool:
        create = client(url).chat.completions.create
        first = pool.submit(create, **ASK)
        wait_until(lambda: len(engine.open) == 1)
        second = pool.submit(create, **ASK)
        wait_until(lambda: service.active_requests == 2)
        with pytest.raises(openai.RateLimitError) as refused:
            create(**ASK)
        assert refused.value.response.headers["Retry-After"] == "1"
        with pytest.raises(openai.RateLimitError):
            create(**ASK, stream=True)
        assert len(engine.open) == 1  # the second one waits
        engine.go_on.set()
        assert first.result(SECONDS).choices[0].message.content == "Tarkovsky"
        assert second.result(SECONDS).choices[0].message.content == "Tarkovsky"
        assert metric(url, 'fieldcraft_agent_refused_total{status="429"}') == 2
        assert metric(url, "fieldcraft_agent_under_way") == 0


def test_a_client_that_comes_again_finds_a_place():
    service, engine = scripted(concurrency=1, queue=0)
    engine.go_on.clear()
    with serve_in_thread(create_app(service)) as url, ThreadPoolExecutor() as pool:
        create = client(url).with_options(max_retries=8).chat.completions.create
        first = pool.submit(create, **ASK)
        wait_until(lambda: len(engine.open) == 1)
        second = pool.submit(create, **ASK)
        wait_until(lambda: metric(url, 'fieldcraft_agent_refused_total{status="429"}') > 0)
        engine.go_on.set()
        for request in (first, second):
            assert request.result(SECONDS).choices[0].message.content == "Tarkovsky"


def test_a_request_has_its_time_and_no_more():
    service, engine = scripted(timeout_seconds=0.05)
    engine.go_on.clear()
    with serve_in_thread(create_app(service)) as url:
        with pytest.raises(
            openai.InternalServerError, match=r"did not answer within 0\.05 s"
        ) as late:
            client(url).chat.completions.create(**ASK)
        assert late.value.status_code == 504
        with pytest.raises(openai.APIError, match="did not answer"):
            list(client(url).chat.completions.create(**ASK, stream=True))
        wait_until(lambda: not engine.open)
        assert (
            metric(url, 'fieldcraft_agent_requests_total{interface="chatcmpl",outcome="late"}') == 2
        )
        engine.go_on.set()
        service.limits = type(service.limits)(timeout_seconds=SECONDS)
        assert client(url).chat.completions.create(**ASK).choices[0].message.content


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("route", ["chat/completions", "responses"])
def test_a_client_that_hangs_up_is_worked_for_no_more(route, stream):
    service, engine = scripted()
    engine.go_on.clear()
    body = {"model": "scripted", "input": "Who?"} if route == "responses" else ASK

    async def ask_and_leave(url: str) -> None:
        async with httpx.AsyncClient(timeout=SECONDS) as http:
            request = asyncio.create_task(
                http.post(f"{url}/v1/{route}", json={**body, "stream": stream})
            )
            while not engine.open:
                await asyncio.sleep(0.005)
            request.cancel()
            await asyncio.wait([request])

    with serve_in_thread(create_app(service)) as url:
        asyncio.run(ask_and_leave(url))
        wait_until(lambda: not engine.open and service.active_requests == 0)
        interface = {"responses": "resp"}.get(route, "chatcmpl")
        metric_line = f'fieldcraft_agent_requests_total{{interface="{interface}",outcome="left"}}'
        assert metric(url, metric_line) == 1
        engine.go_on.set()
        assert client(url).chat.completions.create(**ASK).choices[0].message.content


def test_without_the_token_nobody_is_let_in():
    service, engine = scripted()
    with serve_in_thread(create_app(service, token="sesame")) as url:
        for path in ("/v1/chat/completions", "/v1/responses", "/v1/feedback", "/mcp"):
            response = httpx.post(f"{url}{path}", json=ASK)
            assert response.status_code == 401
            assert response.json()["error"]["code"] == "invalid_api_key"
        with pytest.raises(openai.AuthenticationError, match="requires a token"):
            client(url, token="wrong").models.list()
        assert engine.prompts == []
        assert httpx.get(f"{url}/health").status_code == 200
        assert metric(url, 'fieldcraft_agent_refused_total{status="401"}') == 5
        assert client(url, token="sesame").chat.completions.create(**ASK)


def test_what_is_under_way_ends_and_what_is_new_is_refused():
    service, engine = scripted()
    engine.go_on.clear()
    with serve_in_thread(create_app(service)) as url, ThreadPoolExecutor() as pool:
        first = pool.submit(client(url).chat.completions.create, **ASK)
        wait_until(lambda: len(engine.open) == 1)
        service.closed = True
        with pytest.raises(openai.InternalServerError, match="shutting down") as refused:
            client(url).chat.completions.create(**ASK)
        assert refused.value.status_code == 503
        assert httpx.get(f"{url}/health").status_code == 503
        engine.go_on.set()
        assert first.result(SECONDS).choices[0].message.content == "Tarkovsky"


def test_a_request_whose_length_is_checked_during_the_shutdown_is_refused(monkeypatch):
    service, engine = scripted()
    encoding, closed = threading.Event(), threading.Event()

    def encode_until_closed(dialect, question, schemas):
        encoding.set()
        closed.wait()
        return [1]

    monkeypatch.setattr(AutoCoADialect, "encode_prompt", encode_until_closed)

    async def close() -> None:
        request = AgentRequest(model="scripted", question="Who?")
        arriving = asyncio.create_task(service.start_request(request, "chatcmpl"))
        await asyncio.to_thread(encoding.wait)
        await service.close(0)
        closed.set()
        with pytest.raises(RequestRejectedError, match="shutting down"):
            await arriving

    asyncio.run(close())
    assert engine.sampled == []


def test_whoever_is_not_done_in_time_is_stopped():
    service, engine = scripted()

    async def close() -> None:
        engine.go_on.clear()
        running = await service.start_request(
            AgentRequest(model="scripted", question="Who?"), "chatcmpl"
        )
        while not engine.open:
            await asyncio.sleep(0)
        await service.close(0.05)
        assert running.task is not None
        assert running.task.cancelled()

    asyncio.run(close())
    assert engine.open == set()


def test_a_queue_that_is_full_encodes_nothing(monkeypatch):
    """A rejected request costs no encoding, and a question that is far too long costs only the
    encoding of its start."""
    service, engine = scripted(concurrency=1, queue=0)
    engine.go_on.clear()
    encoded: list[int] = []
    prompt = AutoCoADialect.encode_prompt

    def counted(dialect, question, schemas):
        encoded.append(len(question))
        return prompt(dialect, question, schemas)

    monkeypatch.setattr(AutoCoADialect, "encode_prompt", counted)

    async def send_requests() -> None:
        long = AgentRequest(model="scripted", question="who " * 10**6)
        with pytest.raises(RequestRejectedError, match="tokens, but the agent's context has"):
            await service.start_request(long, "chatcmpl")
        assert encoded == [service.context_tokens * MAX_CHARS_PER_TOKEN]
        await service.start_request(AgentRequest(model="scripted", question="Who?"), "chatcmpl")
        count = len(encoded)
        with pytest.raises(RequestRejectedError, match="slots and the queue are full"):
            await service.start_request(long, "chatcmpl")
        assert len(encoded) == count
        await service.close(0)

    asyncio.run(send_requests())
