"""Served agents with the engine of their recipe, or with a requested one."""

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cli_parts import sentence, status
from engine_parity import TOKENIZER
from fieldcraft.engine.local.engine import LocalEngine
from fieldcraft.engine.resources import RunResources
from fieldcraft.engine.scripted import ScriptedEngine
from fieldcraft.extensions.serving.app import create_app
from fieldcraft.extensions.serving.server import open_service
from fieldcraft.extensions.serving.service import AgentService, ServiceLimits
from fieldcraft.extensions.vllm.engine import VllmEngine
from fieldcraft.runs.agent import Agent, find_agent
from fieldcraft.sampling import SamplingParams
from fieldcraft.tools.serving import serve_in_thread
from fieldcraft.types import UserError
from serving_parts import client
from vllm_protocol import Fake
from vllm_rig import VllmRig, model_of
from waiting import wait_until

PYTHON = os.environ.get("FIELDCRAFT_VLLM_PYTHON", "")
WISH = {"messages": [{"role": "user", "content": "Who?"}], "model": "tiny", "max_tokens": 30}


class Silent(ScriptedEngine):
    """An engine without a token callback."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(tokenizer, [])

    async def sleep(self) -> None: ...

    async def snapshot_weights(self) -> None: ...

    async def update_weights(self, version: int) -> None: ...


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[VllmRig]:
    with ExitStack() as stack:
        yield VllmRig(tmp_path, stack)


def bare(folder: Path) -> Agent:
    TOKENIZER.save_pretrained(folder)  # type: ignore[attr-defined]
    return find_agent(folder).with_options("hermes", None, None, "cpu")


def with_fake(rig: VllmRig, fake: Fake) -> Agent:
    url = rig.stack.enter_context(serve_in_thread(fake.app))
    return bare(rig.folder / "model").with_overrides(["engine=vllm", f'engine.urls=["{url}"]'])


def opened(agent: Agent, rig: VllmRig) -> AgentService:
    return asyncio.run(open_service(agent, "tiny", ServiceLimits(), rig.resources))


def test_an_agent_answers_alike_with_vllm_and_with_the_local_engine(rig: VllmRig) -> None:
    """A recipe that names vLLM is equivalent to the option."""
    fake = rig.fake(max_len=400)
    agent = with_fake(rig, fake)
    assert agent.recipe.engine.name == "vllm"
    found = []
    for variant in (agent, agent.with_overrides(["engine=local"])):
        service = opened(variant, rig)
        assert service.context_tokens <= service.engine.max_len
        with serve_in_thread(create_app(service)) as url:
            done = client(url).chat.completions.create(**WISH)
            pieces = list(client(url).chat.completions.create(**WISH, stream=True))
        thoughts = [getattr(p.choices[0].delta, "reasoning_content", "") or "" for p in pieces]
        message = done.choices[0].message
        found.append((message.content, message.reasoning_content, "".join(thoughts)))
        found.append((done.usage.completion_tokens, done.choices[0].finish_reason))
        kind = VllmEngine if variant is agent else LocalEngine
        assert isinstance(service.engine, kind)
    assert found[:2] == found[2:]
    requests = [r for r in fake.requests if r["sampling_params"]["max_tokens"] > 1]
    assert requests
    assert all(r["stream"] for r in requests)


def test_a_client_that_hangs_up_ends_the_stream_of_vllm(rig: VllmRig) -> None:
    fake = rig.fake(max_len=400)
    service = opened(with_fake(rig, fake), rig)
    fake.stalls_at = 4
    with serve_in_thread(create_app(service)) as url:
        stream = client(url).chat.completions.create(**WISH, stream=True)
        next(iter(stream))
        wait_until(lambda: fake.stalled == 1)
        stream.close()
        wait_until(lambda: fake.dropped == 1)
        wait_until(lambda: service.engine.num_sessions == 0)


def test_a_server_that_is_not_there_is_a_sentence_at_the_start(rig: VllmRig) -> None:
    agent = bare(rig.folder / "model")
    agent = agent.with_overrides(["engine=vllm", 'engine.urls=["http://127.0.0.1:9"]'])
    with pytest.raises(UserError, match=r"no server in engine\.urls responds"):
        opened(agent, rig)


def test_an_engine_that_tells_no_tokens_is_refused(rig: VllmRig) -> None:
    agent = bare(rig.folder / "model")
    agent = agent.with_overrides([f"engine={__name__}:Silent"])
    expected = r"has no max_len, num_sessions, generate\(\.\.\., on_token\).*set engine=local"
    with pytest.raises(UserError, match=expected):
        opened(agent, rig)


def test_mistakes_in_the_keys_are_sentences(
    rig: VllmRig, capsys: pytest.CaptureFixture[str]
) -> None:
    model = bare(rig.folder / "model").model

    def refused(key: str) -> str:
        assert status("serve", "agent", "--model", model, "--dialect", "hermes", key) == 2
        return sentence(capsys)

    assert "engine.python" in refused("engine=vllm")
    assert "did you mean 'engine'" in refused("engin=vllm")
    assert "is not an override" in refused("engine")


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON, reason="FIELDCRAFT_VLLM_PYTHON names no Python with vLLM")
def test_an_agent_with_the_real_vllm(tmp_path: Path) -> None:
    """The answers equal the local engine's, and each token is reported when it is sampled."""
    model_of(tied=False).save_pretrained(tmp_path / "model")
    agent = bare(tmp_path / "model")
    resources = RunResources(tmp_path / "engine")
    found, times = [], list[float]()

    def note(token: int) -> None:
        times.append(time.perf_counter())

    try:
        for variant in (agent.with_overrides(["engine=vllm", f"engine.python={PYTHON}"]), agent):
            service = asyncio.run(open_service(variant, "tiny", ServiceLimits(), resources))
            with serve_in_thread(create_app(service)) as url:
                done = client(url).chat.completions.create(**WISH)
                pieces = list(client(url).chat.completions.create(**WISH, stream=True))
            refused = [getattr(p.choices[0].delta, "reasoning_content", "") or "" for p in pieces]
            assert "".join(refused) == done.choices[0].message.reasoning_content
            turn = asyncio.run(
                service.engine.generate([5, 6, 7], SamplingParams(40, temperature=0.0), "s", note)
            )
            found.append((done.choices[0].message, done.usage, turn.ids))
    finally:
        asyncio.run(resources.close())
    assert found[0] == found[1]
    assert len({*times}) == len(times) == 80
