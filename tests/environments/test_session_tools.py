"""Stateful tools are opened with a rollout and always closed with it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import pytest

from checkpoints import tiny_tokenizer
from fieldcraft.concurrency import run_concurrently
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.dialects import make_dialect
from fieldcraft.engine.scripted import ScriptedEngine
from fieldcraft.environments.tool_environment import ToolEnvironment, run_rollout
from fieldcraft.environments.turns import Policy
from fieldcraft.extensions.search.workflows import rag
from fieldcraft.types import Author, StatefulTool, Status, Task, Tool, Trajectory, UserError
from virtual_time import virtually

TOKENIZER = tiny_tokenizer()
TASK = Task("t", "How often?", ("2",))
SCHEMA: dict[str, Any] = {
    "type": "function",
    "function": {"name": "count", "description": "Count.", "parameters": {}},
}
CALL = '<tool_call>\n{"name": "count", "arguments": {}}\n</tool_call>'


class Counter:
    """A counter of the calls of one rollout."""

    name = "count"
    schema = SCHEMA

    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self, **arguments: Any) -> str:
        self.calls += 1
        return str(self.calls)


async def nothing() -> None:
    """Do nothing."""


async def defect() -> None:
    raise ZeroDivisionError("a defect")


@dataclass
class Counting:
    """A tool that makes a counter for every rollout, and records which were opened and closed."""

    on_open: Callable[[], Awaitable[None]] = nothing
    on_close: Callable[[], Awaitable[None]] = nothing
    name: str = "count"
    schema: dict[str, Any] = field(default_factory=lambda: SCHEMA)
    opened: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)

    @asynccontextmanager
    async def open(self, task: Task) -> AsyncIterator[Tool]:
        await self.on_open()
        self.opened.append(task.id)
        try:
            yield Counter()
        finally:
            self.closed.append(task.id)
            await self.on_close()


def environment(*tools: Any, **budget: Any) -> ToolEnvironment:
    return ToolEnvironment(make_dialect("hermes", TOKENIZER, ""), tools, BudgetConfig(**budget))


def run_scripted(env: ToolEnvironment, *turns: str) -> Trajectory:
    policy = Policy(engine=ScriptedEngine(TOKENIZER, turns))
    return virtually(run_rollout(TASK, policy, env, "key"))


def test_a_stateful_tool_is_told_apart_from_a_plain_one() -> None:
    assert isinstance(Counting(), StatefulTool)
    assert not isinstance(Counter(), StatefulTool)
    assert isinstance(Counter(), Tool)


def test_state_lasts_for_one_rollout() -> None:
    tool = Counting()
    env = environment(tool)

    async def run(task: Task, key: str) -> Trajectory:
        policy = Policy(engine=ScriptedEngine(TOKENIZER, [CALL, CALL, "2"]))
        return await run_rollout(task, policy, env, key)

    jobs = [(Task(str(i), "How often?", ("2",)), str(i)) for i in range(3)]
    done = asyncio.run(run_concurrently(jobs, run, 3))
    assert [[call.observation for call in t.calls] for t in done] == [["1", "2"]] * 3
    assert sorted(tool.opened) == sorted(tool.closed) == ["0", "1", "2"]


@pytest.mark.parametrize("turns", [[CALL, "2"], [CALL], ["<think>"], []])
def test_it_is_closed_however_the_rollout_ends(turns: list[str]) -> None:
    tool = Counting()
    run_scripted(
        environment(tool), *turns
    )  # an answer, the end of the script, no answer, an engine's defect
    assert (tool.opened, tool.closed) == (["t"], ["t"])


def test_workflows_open_it_too() -> None:
    tool = Counting(name="search")
    policy = Policy(engine=ScriptedEngine(TOKENIZER, ["2"]))
    found = asyncio.run(rag(TASK, policy, environment(tool), "key"))
    assert [call.observation for call in found.calls] == ["1"]
    assert tool.closed == ["t"]


@pytest.mark.parametrize(
    ("tool", "error"),
    [
        (Counting(on_open=defect), "ZeroDivisionError: a defect"),
        (Counting(on_close=defect), "ZeroDivisionError: a defect"),
        (
            Counting(on_open=lambda: asyncio.Event().wait()),
            "ToolContractError: the tool 'count' did not open within 0.05 s",
        ),
        (
            Counting(on_close=lambda: asyncio.Event().wait()),
            "ToolContractError: the tool 'count' did not close within 0.05 s",
        ),
    ],
)
def test_a_failure_to_open_or_close_ends_that_trajectory(tool: Counting, error: str) -> None:
    other = Counting(name="other")
    found = run_scripted(environment(other, tool, call_timeout_seconds=0.05), CALL, "2")
    assert found.status is Status.ERROR
    assert found.error.startswith(f"{error} (tests/environments/test_session_tools.py:")
    assert found.segments[0].author is Author.PROMPT
    assert (other.opened, other.closed) == (["t"], ["t"])  # the other tool is closed


def test_what_the_rollout_raised_is_the_cause() -> None:
    found = run_scripted(environment(Counting(on_close=defect)), CALL)
    assert found.error.startswith("IndexError: the script has 1 turns")

    async def mistaken() -> None:
        raise UserError("the index is not there")

    with pytest.raises(UserError, match="the index is not there"):
        run_scripted(environment(Counting(on_close=defect), Counting(mistaken, name="other")), "2")


class Swallowing(AbstractAsyncContextManager[Tool]):
    """A context manager that suppresses every exception."""

    async def __aenter__(self) -> Tool:
        return Counter()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        return True


class Hiding:
    name = "count"
    schema = SCHEMA

    def open(self, task: Task) -> AbstractAsyncContextManager[Tool]:
        return Swallowing()


def test_a_tool_hides_neither_a_defect_nor_a_cancellation() -> None:
    assert run_scripted(environment(Hiding()), CALL).error.startswith("IndexError")
    assert asyncio.run(cancelled(environment(Hiding())))


async def cancelled(env: ToolEnvironment) -> bool:
    """Return whether a rollout that waits for its engine ends as cancelled when it is cancelled."""
    waits = asyncio.Event()

    class Waiting(ScriptedEngine):
        async def generate(self, *arguments: Any) -> Any:
            waits.set()
            await asyncio.Event().wait()

    policy = Policy(engine=Waiting(TOKENIZER, []))
    task = asyncio.create_task(run_rollout(TASK, policy, env, "key"))
    await waits.wait()
    task.cancel()
    await asyncio.wait([task])
    return task.cancelled()


@pytest.mark.parametrize("on_close", [nothing, defect, lambda: asyncio.Event().wait()])
def test_a_cancelled_rollout_closes_its_tools(on_close: Callable[[], Awaitable[None]]) -> None:
    tools = [Counting(on_close=on_close), Counting(name="other")]
    assert virtually(cancelled(environment(*tools, call_timeout_seconds=0.05)))
    assert [tool.closed for tool in tools] == [["t"], ["t"]]


def test_an_interrupt_closes_the_tools() -> None:
    class Interrupted(ScriptedEngine):
        async def generate(self, *arguments: Any) -> Any:
            raise KeyboardInterrupt

    tool = Counting()
    policy = Policy(engine=Interrupted(TOKENIZER, []))
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(run_rollout(TASK, policy, environment(tool), "key"))
    assert tool.closed == ["t"]


def test_siblings_of_a_failed_rollout_continue() -> None:
    class Sometimes(Counting):
        def open(self, task: Task) -> AbstractAsyncContextManager[Tool]:
            if task.id == "bad":
                raise ZeroDivisionError("a defect")
            return super().open(task)

    env = environment(Sometimes())

    async def run(task: Task, key: str) -> Trajectory:
        return await run_rollout(task, Policy(engine=ScriptedEngine(TOKENIZER, ["2"])), env, key)

    jobs: Sequence[tuple[Task, str]] = [(Task(key, "?", ()), key) for key in ("a", "bad", "b")]
    done = asyncio.run(run_concurrently(jobs, run, 3))
    assert [t.status for t in done] == [Status.ANSWERED, Status.ERROR, Status.ANSWERED]


def test_what_cannot_be_called_is_closed_and_told() -> None:
    closed = []

    class Empty(Counting):
        @asynccontextmanager
        async def open(self, task: Task) -> AsyncIterator[Any]:
            yield None
            closed.append(task.id)

    found = run_scripted(environment(Empty()), "2")
    assert found.error == "ToolContractError: the tool 'count' opened an object that is not a Tool"


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(UserError, match="2 tools have the name 'count'"):
        environment(Counter(), Counting())
