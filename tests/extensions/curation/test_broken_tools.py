"""Attempts of teachers whose tools are broken: the defect is data, as in rollouts."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from fieldcraft.extensions.curation.react_agent import AgentAttempt, AttemptStatus, PromptedAgent
from fieldcraft.extensions.curation.teacher_evaluation import make_model_teacher
from fieldcraft.extensions.curation.team import Blackboard, Team, TeamAgent, TeamMember
from fieldcraft.tools.base import tool
from fieldcraft.tools.chat_client import ChatReply, TokenUsage
from fieldcraft.types import (
    Answer,
    Observation,
    Task,
    Thought,
    Tool,
    ToolCall,
    ToolUnavailableError,
    Trajectory,
    UserError,
)

TASK = Task("t", "Where was Ada born?", ("Oslo",))
CALL = ToolCall("search", {"query": "Ada"})
ACTION = 'Thought: I search.\nAction: search {"query": "Ada"}'
USAGE = TokenUsage(10, 5, None)
Work = Callable[[], Awaitable[None]]


async def nothing() -> None:
    pass


async def defect() -> None:
    raise KeyError("city")


async def unavailable() -> None:
    raise ToolUnavailableError("The server is gone.")


async def mistake() -> None:
    raise UserError("the index is not there")


async def interrupt() -> None:
    raise KeyboardInterrupt


async def wait() -> None:
    await asyncio.Event().wait()


@dataclass
class Search:
    """Search that works when it is opened, called and closed."""

    on_open: Work = nothing
    on_call: Work = nothing
    on_close: Work = nothing
    name: str = "search"

    @property
    def schema(self) -> dict[str, Any]:
        return self._make_tool().schema

    def _make_tool(self) -> Tool:
        @tool
        async def search(query: str) -> str:
            """Search.

            Args:
                query: what to look for.
            """
            await self.on_call()
            return f"about {query}"

        return search

    @asynccontextmanager
    async def open(self, task: Task) -> AsyncIterator[Tool]:
        await self.on_open()
        yield self._make_tool()
        await self.on_close()


class Chat:
    """Chat that plays its replies, and counts its requests."""

    def __init__(self, *replies: str) -> None:
        self.replies = iter(replies)
        self.requests = 0

    async def chat(self, messages: Sequence[Any], **options: Any) -> ChatReply:
        self.requests += 1
        return ChatReply(next(self.replies), "", "stop", USAGE)


def make_agent(chat: Chat, search: Search) -> PromptedAgent:
    return PromptedAgent(
        model=chat, tools=[search], max_calls=3, turn_tokens=9, call_seconds=9, temperature=1.0
    )


def attempt_alone(search: Search) -> Awaitable[AgentAttempt]:
    return make_agent(Chat(ACTION, "Answer: Oslo"), search).attempt(TASK, "key")


async def search_and_answer(board: Blackboard) -> None:
    await board.use("search")
    board.answer("Oslo")


def attempt_as_team(search: Search) -> Awaitable[AgentAttempt]:
    team = Team({}, search_and_answer)
    chat = Chat("Thought: I search.\nQuery: Ada")
    agent = TeamAgent(
        team=team,
        members={"search": TeamMember(chat, "", 1.0)},
        tools=[search],
        max_calls=2,
        turn_tokens=9,
        call_seconds=9,
    )
    return agent.attempt(TASK, "key")


teachers = pytest.mark.parametrize("attempt", [attempt_alone, attempt_as_team])


async def await_attempt(attempt: Awaitable[AgentAttempt]) -> AgentAttempt:
    return await attempt


@teachers
@pytest.mark.parametrize(
    ("search", "cause", "steps"),
    [
        (Search(on_open=defect), "KeyError: 'city' (", ()),
        (Search(on_open=unavailable), "ToolUnavailableError: The server is gone. (", ()),
        (Search(on_call=defect), "KeyError: 'city' (", (Thought("I search."), CALL)),
        (Search(on_call=unavailable), "The server is gone.", (Thought("I search."), CALL)),
        (
            Search(on_close=defect),
            "KeyError: 'city' (",
            (Thought("I search."), CALL, Observation("about Ada"), Answer("Oslo")),
        ),
    ],
)
def test_a_broken_tool_ends_its_attempt(
    attempt: Callable[[Search], Awaitable[AgentAttempt]],
    search: Search,
    cause: str,
    steps: tuple[object, ...],
) -> None:
    """The steps and the usage so far are kept, because the requests were paid for."""
    found = asyncio.run(await_attempt(attempt(search)))
    assert (found.status, found.steps, found.failed) == (AttemptStatus.TOOL_FAILED, steps, True)
    assert found.detail.startswith(cause)
    assert (found.usage.prompt_tokens > 0) is bool(steps)


@teachers
def test_the_end_of_a_run_is_no_defect_of_a_tool(
    attempt: Callable[[Search], Awaitable[AgentAttempt]],
) -> None:
    with pytest.raises(UserError, match="the index is not there"):
        asyncio.run(await_attempt(attempt(Search(on_call=mistake))))
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(await_attempt(attempt(Search(on_call=interrupt))))

    async def cancel() -> None:
        task = asyncio.create_task(await_attempt(attempt(Search(on_call=wait))))
        await asyncio.sleep(0)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancel())


@pytest.mark.parametrize(
    ("search", "replies"),
    [
        (Search(), [ACTION, "Answer: Oslo"]),
        (Search(), [ACTION, "It is Oslo."]),
        (Search(), [ACTION] * 4),  # one more than allowed
        (Search(on_open=defect), []),
        (Search(on_call=defect), [ACTION]),
        (Search(on_close=defect), [ACTION, "Answer: Oslo"]),
    ],
)
def test_the_cost_of_an_attempt_counts_its_requests(search: Search, replies: list[str]) -> None:
    chat = Chat(*replies)
    answer = make_model_teacher(make_agent(chat, search))
    trajectory = asyncio.run(await_trajectory(answer(TASK, "key")))
    assert trajectory.task.meta["spent"]["requests"] == chat.requests == len(replies)


async def await_trajectory(answer: Awaitable[Trajectory]) -> Trajectory:
    return await answer
