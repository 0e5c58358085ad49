"""Requests of an agent that arrive while its rollout ends, or afterwards."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import nullcontext

import httpx
import pytest
from blackbox_parts import TASK, TOKENIZER, InOrder

from fieldcraft.config.sections import BudgetConfig
from fieldcraft.dialects import make_dialect
from fieldcraft.environments.turns import Policy
from fieldcraft.extensions.external_envs.agent_runner import AgentResult, AgentRunner
from fieldcraft.extensions.external_envs.conversation_renderer import ConversationRenderer
from fieldcraft.extensions.external_envs.conversations import AgentConversation
from fieldcraft.extensions.external_envs.gateway import create_gateway_app
from fieldcraft.extensions.external_envs.messages import TurnRequest
from fieldcraft.extensions.external_envs.refusals import RequestRejectedError
from fieldcraft.sampling import Completion, SamplingParams
from fieldcraft.types import Task, Trajectory

BODY = {"model": "policy", "messages": [{"role": "user", "content": "Who?"}]}
RENDERER = ConversationRenderer(make_dialect("hermes", TOKENIZER))
LIMITS = BudgetConfig(max_context_tokens=600)


@pytest.mark.parametrize(
    ("path", "content"), [("v1/chat/completions", BODY), ("reward", {"reward": 1.0})]
)
def test_a_body_that_arrives_after_the_rollout_is_refused(path: str, content: object) -> None:
    engine = InOrder(["Ada"], TOKENIZER)

    async def story() -> httpx.Response:
        reading, over = asyncio.Event(), asyncio.Event()
        requests = list[asyncio.Task[httpx.Response]]()

        async def send_slowly() -> AsyncIterator[bytes]:
            reading.set()
            await over.wait()
            yield json.dumps(content).encode()

        async def leave(task: Task, base_url: str) -> AgentResult:
            url = f"{base_url.removesuffix('v1')}{path}"
            requests.append(asyncio.create_task(client.post(url, content=send_slowly())))
            await reading.wait()
            return AgentResult()

        runner = AgentRunner(leave, RENDERER, LIMITS, 5, 600, nullcontext(), "http://gateway")
        transport = httpx.ASGITransport(create_gateway_app(runner.conversations))
        async with httpx.AsyncClient(transport=transport) as client:
            done = await runner.run_rollout(TASK, Policy(engine=engine), "k")
            over.set()
            response = await requests[0]
        assert (done.segments, done.rewards) == ([], {})
        return response

    response = asyncio.run(story())
    assert response.status_code == 404
    assert response.json()["error"]["message"] == "the rollout is over."
    assert (engine.prompts, engine.sessions) == ([], set())


class EndsSlowly(InOrder):
    """An engine whose cancelled generation continues until it is allowed to end."""

    def __init__(self) -> None:
        super().__init__([], TOKENIZER)
        self.begun, self.cancelled, self.allowed = (asyncio.Event() for _ in range(3))

    async def generate(
        self, ids: Sequence[int], sampling: SamplingParams, session: str
    ) -> Completion:
        self.sessions.add(session)
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()
            await self.allowed.wait()
        raise AssertionError


def test_a_turn_requested_while_the_rollout_ends_is_refused() -> None:
    request = TurnRequest.model_validate(BODY)

    async def story() -> None:
        engine = EndsSlowly()
        policy = Policy(engine=engine)
        conversation = AgentConversation(TASK, policy, RENDERER, LIMITS, 5, "s", "k")
        first = asyncio.create_task(conversation.request_turn(request))
        await engine.begun.wait()
        ending = asyncio.create_task(conversation.finish(Trajectory(TASK)))
        await engine.cancelled.wait()
        second = asyncio.create_task(conversation.request_turn(request))
        await asyncio.sleep(0)
        is_refused = second.done()
        engine.allowed.set()
        assert is_refused
        await ending
        assert engine.sessions == set()
        for turn in (first, second):
            with pytest.raises(RequestRejectedError, match="the rollout is over"):
                await turn
        assert len(conversation.branches) == 1

    asyncio.run(story())


def test_turns_that_are_being_sampled_count_for_their_limit() -> None:
    request = TurnRequest.model_validate(BODY)

    async def story() -> None:
        engine = EndsSlowly()
        engine.allowed.set()
        conversation = AgentConversation(TASK, Policy(engine=engine), RENDERER, LIMITS, 2, "s", "k")
        turns = [asyncio.create_task(conversation.request_turn(request)) for _ in range(3)]
        for _ in range(10):  # more than a request without a turn needs
            await asyncio.sleep(0)
        assert [turn.done() for turn in turns] == [False, False, True]
        with pytest.raises(RequestRejectedError, match="has used all of its 2 turns"):
            await turns[2]
        await conversation.finish(Trajectory(TASK))
        await asyncio.wait(turns)
        assert [isinstance(turn.exception(), RequestRejectedError) for turn in turns] == [True] * 3
        assert conversation.budget_exhausted
        assert len(conversation.branches) == 2

    asyncio.run(story())
