"""Served agents for tests: a script, or a tiny model."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any, Literal

from openai import AsyncOpenAI, OpenAI

from checkpoints import tiny_tokenizer
from fieldcraft.config.sections import BudgetConfig as Budget
from fieldcraft.engine.scripted import ScriptedEngine
from fieldcraft.environments.tool_environment import ToolEnvironment
from fieldcraft.extensions.methods.autocoa import AutoCoADialect
from fieldcraft.extensions.serving.service import AgentService, RequestLog, ServiceLimits
from fieldcraft.sampling import SamplingParams
from fieldcraft.tools.base import tool
from fieldcraft.types import ToolError

SEARCHES = (
    "I need the director.\n<begin_search> Solaris </end_search>",
    "It is he & nobody else.\n</think>\n\n\\boxed{Tarkovsky}",
)
THOUGHTS = "I need the director.\n\nIt is he & nobody else."


@tool
def search(query: str) -> str:
    """Search.

    Args:
        query: what for.
    """
    if query == "nothing":
        raise ToolError("found nothing")
    return f"{query} is a film by Tarkovsky"


class TypingEngine(ScriptedEngine):
    """Engine that writes its script token by token and yields to other tasks between two tokens.

    If `held` is set, it pauses until `go_on`. `open` contains its open sessions.
    """

    def __init__(self, turns: Sequence[str]) -> None:
        super().__init__(tiny_tokenizer(), turns)
        self.open: set[str] = set()
        self.go_on = threading.Event()
        self.go_on.set()
        self.max_len = 4096
        self.sampled: list[SamplingParams] = []

    async def generate(self, ids, sampling, session, on_token=None):  # type: ignore[no-untyped-def,override]
        self.open.add(session)
        self.sampled.append(sampling)
        done = await super().generate(ids, sampling, session)
        for token in done.ids:
            while not self.go_on.is_set():
                await asyncio.sleep(0.005)
            if on_token is not None:
                on_token(token)
            await asyncio.sleep(0)
        return done

    def release(self, session: str) -> None:
        self.open.discard(session)
        super().release(session)


def scripted(
    turns: Sequence[str] = SEARCHES,
    recording: RequestLog | None = None,
    most_calls: int = 4,
    at_limit: Literal["answer", "end", "tell"] = "tell",
    **limits: Any,
) -> tuple[AgentService, TypingEngine]:
    """Return a service whose agent plays a script for each question."""
    engine = TypingEngine(turns)
    budget = Budget(
        max_calls=most_calls, max_context_tokens=400, max_turn_tokens=200, at_limit=at_limit
    )
    env = ToolEnvironment(AutoCoADialect(engine.tokenizer, instruction=""), [search], budget)
    service = AgentService(
        name="scripted",
        env=env,
        engine=engine,
        limits=ServiceLimits(**limits),
        context_tokens=budget.max_context_tokens,
        request_log=recording,
    )
    return service, engine


_opened: list[OpenAI] = []


def client(url: str, token: str = "none") -> OpenAI:
    """Provide a client that is closed after the test."""
    _opened.append(OpenAI(base_url=f"{url}/v1", api_key=token, max_retries=0, timeout=300))
    return _opened[-1]


def close_clients() -> None:
    while _opened:
        _opened.pop().close()


def asyncs(url: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=600)
