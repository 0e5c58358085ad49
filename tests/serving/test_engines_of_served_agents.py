"""Served agents with the engine of their recipe, or another one that is asked for."""

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cli_parts import sentence, status
from engine_parity import TOKENIZER
from fieldcraft.engine.home import Home
from fieldcraft.engine.local.engine import LocalEngine
from fieldcraft.engine.scripted import ScriptedEngine
from fieldcraft.engine.vllm.engine import VllmEngine
from fieldcraft.runs.agent import Agent, find_agent
from fieldcraft.sampling import Sampling
from fieldcraft.serving.app import create_app
from fieldcraft.serving.server import open_service
from fieldcraft.serving.service import Limits, Service
from fieldcraft.tools.serving import serving
from fieldcraft.types import UserError
from serving_parts import client
from vllm_house import House, model_of
from vllm_protocol import Fake

PYTHON = os.environ.get("FIELDCRAFT_VLLM_PYTHON", "")
WISH = {"messages": [{"role": "user", "content": "Who?"}], "model": "tiny", "max_tokens": 30}


class Silent(ScriptedEngine):
    """An engine that tells nobody of its tokens."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(tokenizer, [])

    async def sleep(self) -> None: ...

    async def separate(self) -> None: ...

    async def publish(self, version: int) -> None: ...


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with ExitStack() as stack:
        yield House(tmp_path, stack)


def bare(folder: Path) -> Agent:
    TOKENIZER.save_pretrained(folder)  # type: ignore[attr-defined]
    return find_agent(folder).with_options("hermes", None, None, "cpu")


def with_fake(house: House, fake: Fake) -> Agent:
    url = house.stack.enter_context(serving(fake.app))
    return bare(house.folder / "model").overridden(["engine=vllm", f'engine.urls=["{url}"]'])


def opened(agent: Agent, house: House) -> Service:
    return asyncio.run(open_service(agent, "tiny", Limits(), house.home))


def test_an_agent_answers_alike_with_vllm_and_with_the_local_engine(house: House) -> None:
    """A recipe that names vLLM is what the option makes."""
    fake = house.fake(max_len=400)
    agent = with_fake(house, fake)
    assert agent.recipe.engine.name == "vllm"
    found = []
    for one in (agent, agent.overridden(["engine=local"])):
        service = opened(one, house)
        assert service.room <= service.engine.max_len
        with serving(create_app(service)) as url:
            done = client(url).chat.completions.create(**WISH)
            pieces = list(client(url).chat.completions.create(**WISH, stream=True))
        thoughts = [getattr(p.choices[0].delta, "reasoning_content", "") or "" for p in pieces]
        message = done.choices[0].message
        found.append((message.content, message.reasoning_content, "".join(thoughts)))
        found.append((done.usage.completion_tokens, done.choices[0].finish_reason))
        kind = VllmEngine if one is agent else LocalEngine
        assert isinstance(service.engine, kind)
    assert found[:2] == found[2:]
    asked = [r for r in fake.requests if r["sampling_params"]["max_tokens"] > 1]
    assert asked
    assert all(r["stream"] for r in asked)


def until(true: Callable[[], bool]) -> None:
    """A test that waits for ever is ended from outside."""
    while not true():
        time.sleep(0.01)


def test_a_client_that_hangs_up_ends_the_stream_of_vllm(house: House) -> None:
    fake = house.fake(max_len=400)
    service = opened(with_fake(house, fake), house)
    fake.stalls_at = 4
    with serving(create_app(service)) as url:
        stream = client(url).chat.completions.create(**WISH, stream=True)
        next(iter(stream))
        until(lambda: fake.stalled == 1)
        stream.close()
        until(lambda: fake.dropped == 1)
        until(lambda: service.engine.sessions == 0)


def test_a_server_that_is_not_there_is_a_sentence_at_the_start(house: House) -> None:
    agent = bare(house.folder / "model")
    agent = agent.overridden(["engine=vllm", 'engine.urls=["http://127.0.0.1:9"]'])
    with pytest.raises(UserError, match=r"no server of engine\.urls answers"):
        opened(agent, house)


def test_an_engine_that_tells_no_tokens_is_refused(house: House) -> None:
    agent = bare(house.folder / "model")
    agent = agent.overridden([f"engine={__name__}:Silent"])
    wanted = r"has no max_len, sessions, generate\(\.\.\., follow\).*say engine=local"
    with pytest.raises(UserError, match=wanted):
        opened(agent, house)


def test_mistakes_in_the_keys_are_sentences(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    model = bare(house.folder / "model").model

    def told(key: str) -> str:
        assert status("serve", "agent", "--model", model, "--dialect", "hermes", key) == 2
        return sentence(capsys)

    assert "engine.python" in told("engine=vllm")
    assert "did you mean 'engine'" in told("engin=vllm")
    assert "is not an override" in told("engine")


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON, reason="FIELDCRAFT_VLLM_PYTHON names no Python with vLLM")
def test_an_agent_with_the_real_vllm(tmp_path: Path) -> None:
    """It answers as the local engine does, and tells each token when it is sampled."""
    model_of(tied=False).save_pretrained(tmp_path / "model")
    agent = bare(tmp_path / "model")
    home = Home(tmp_path / "engine")
    found, times = [], list[float]()

    def hear(token: int) -> None:
        times.append(time.perf_counter())

    try:
        for one in (agent.overridden(["engine=vllm", f"engine.python={PYTHON}"]), agent):
            service = asyncio.run(open_service(one, "tiny", Limits(), home))
            with serving(create_app(service)) as url:
                done = client(url).chat.completions.create(**WISH)
                pieces = list(client(url).chat.completions.create(**WISH, stream=True))
            told = [getattr(p.choices[0].delta, "reasoning_content", "") or "" for p in pieces]
            assert "".join(told) == done.choices[0].message.reasoning_content
            turn = asyncio.run(
                service.engine.generate([5, 6, 7], Sampling(40, temperature=0.0), "s", hear)
            )
            found.append((done.choices[0].message, done.usage, turn.ids))
    finally:
        asyncio.run(home.close())
    assert found[0] == found[1]
    assert len({*times}) == len(times) == 80
