"""The client of remote models against servers that are slow, endless or broken."""

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
from chat_server import answering, completion
from fieldcraft.rewards.judge import JudgeReward
from fieldcraft.tools.chat_client import ChatClient, ChatReply, ChatRequestError
from fieldcraft.tools.serving import serve_in_thread
from fieldcraft.types import Status, Task, Trajectory
from virtual_time import Clock

HI = bytes(completion("hi").body)
BUSY = answers(b"starting", "text/plain", 503)
PATIENCE = 300  # seconds, more than any test needs; without a limit some of the servers never end


def ask(endpoint: ChatClient) -> ChatReply:
    async def send() -> ChatReply:
        async with asyncio.timeout(PATIENCE):
            return await endpoint.chat([{"role": "user", "content": "hello"}], max_tokens=5)

    return asyncio.run(send())


def endpoint_at(url: str, retries: int = 0, seconds: float = PATIENCE) -> ChatClient:
    return ChatClient(f"{url}/v1", "m", retries=retries, timeout_seconds=seconds)


def test_half_of_an_emoji_in_a_message_is_replaced() -> None:
    app, requests = answering(completion("hi"))
    with serve_in_thread(app) as url:
        messages = [{"role": "user", "content": "who \ud83d?"}]
        assert asyncio.run(endpoint_at(url).chat(messages, max_tokens=5)).text == "hi"
    assert requests[0]["messages"] == [{"role": "user", "content": "who \ufffd?"}]


@pytest.mark.parametrize("beginning", [OF_AN_ANSWER, OF_HEADERS])
def test_a_server_that_drips_is_given_up_however_often_it_sends(beginning: bytes) -> None:
    """A byte comes every 25 s, so each wait between two bytes is shorter than the limit."""
    clock = Clock()
    with raw_server(drips(beginning, lambda: clock.jump(25))) as (url, requests):
        endpoint = endpoint_at(url, retries=1, seconds=100)
        with pytest.raises(ChatRequestError, match=r"^no answer within 100 s$"):
            clock.run(endpoint.chat([{"role": "user", "content": "hello"}], max_tokens=5))
        assert len(requests) == 2


def test_an_endless_answer_is_not_read_to_its_end() -> None:
    with raw_server(is_endless) as (url, _), pytest.raises(ChatRequestError, match="is too large"):
        ask(endpoint_at(url))


@pytest.mark.parametrize("first", [BUSY, resets])
def test_one_failure_neither_ends_a_request_nor_refuses_a_run(first: Behaviour) -> None:
    with raw_server(first, answers(HI)) as (url, requests):
        assert ask(endpoint_at(url, retries=1)).text == "hi"
        assert len(requests) == 2
    with raw_server(first, answers(HI)) as (url, _):
        asyncio.run(endpoint_at(url, retries=1).require_available())


@pytest.mark.parametrize(
    ("server", "reason"),
    [
        (resets, "the server cannot be reached"),
        (redirects, "the server cannot be reached"),
        (BUSY, r"status 503 \(starting\)"),
        (answers(HI[:-5]), "the response is not a chat completion"),
        (answers(b"<html>hello</html>", "text/html"), "the response is not a chat completion"),
        (answers(b"[" * 100_000), "the response is not a chat completion"),
        (
            answers(json.dumps({"choices": {"0": 1}}).encode()),
            "the response is not a chat completion",
        ),
        (answers(b"\xff\xfe\x00"), "the response is not a chat completion"),
    ],
)
def test_every_other_failure_has_its_sentence(server: Behaviour, reason: str) -> None:
    with raw_server(server) as (url, _), pytest.raises(ChatRequestError, match=reason):
        ask(endpoint_at(url))


def test_a_judge_that_drips_leaves_an_answer_ungraded() -> None:
    answer = Trajectory(Task("1", "Who?", ("Ada",)), answer="Ada L.", status=Status.ANSWERED)
    clock = Clock()
    with raw_server(drips(OF_AN_ANSWER, lambda: clock.jump(25))) as (url, _):
        judge = JudgeReward(endpoint_at(url, seconds=100), votes=2)
        assert clock.run(judge.score_trajectory(answer)) is None
