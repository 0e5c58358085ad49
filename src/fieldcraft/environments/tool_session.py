"""Tool sessions: the open tools of one rollout, and their calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, TypeVar

from fieldcraft.concurrency import ConcurrencyLimiter, run_concurrently
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.dialects.base import BaseDialect
from fieldcraft.environments.guards import (
    BrokenToolError,
    ToolContractError,
    ToolTimeoutError,
    convert_defects,
    record_broken_call,
    run_with_timeout,
    truncate_middle,
)
from fieldcraft.types import (
    AnyTool,
    ArgumentError,
    CallFault,
    CallOutcome,
    CallRecord,
    MalformedCall,
    StatefulTool,
    Task,
    Tool,
    ToolCall,
    ToolError,
    ToolUnavailableError,
    UserError,
)

T = TypeVar("T")

LIMIT_REACHED_MESSAGE = "The limit of calls is reached; answer with what you know."


@dataclass(frozen=True)
class ToolSession:
    """Tool session of one rollout, with open tools. `tools` maps tool names to tools."""

    dialect: BaseDialect
    tools: Mapping[str, Tool]
    schemas: Sequence[dict[str, Any]]
    budget: BudgetConfig
    limiter: ConcurrencyLimiter

    async def run_calls(
        self, calls: Sequence[ToolCall | MalformedCall], calls_before: int
    ) -> list[CallRecord]:
        """Run the calls of one turn concurrently, and return the results in call order.

        A `ToolError` or a timeout becomes text for the model. Every other exception is a defect of
        the tool: it cancels the other calls and is raised as a BrokenToolError. `calls_before`
        counts all earlier attempts, so that a policy that only makes malformed calls also reaches
        the limit.
        """
        if len(calls) == 1:  # a task would let other rollouts run first
            return [await self._run_call(calls[0], calls_before)]
        numbered_calls = [(call, number) for number, call in enumerate(calls, start=calls_before)]
        return await run_concurrently(numbered_calls, self._run_call, limit=len(calls))

    def truncate_observation(self, call: CallRecord) -> CallRecord:
        """Return the call with its observation truncated to the budget."""
        max_tokens = self.budget.max_observation_tokens
        text, cut = truncate_middle(
            call.observation, max_tokens, self.dialect.tokenizer, self.dialect.escape_result
        )
        return replace(call, observation=text, cut=cut)

    async def _run_call(self, call: ToolCall | MalformedCall, calls_before: int) -> CallRecord:
        if calls_before >= self.budget.max_calls:
            return make_refused_call(call, LIMIT_REACHED_MESSAGE)
        if isinstance(call, MalformedCall):
            return self.truncate_observation(
                _make_unexecuted_call(call, call.reason, CallOutcome.MALFORMED, call.fault)
            )
        tool = self.tools.get(call.tool)
        if tool is None:
            names = ", ".join(self.tools) or "none"
            reason = f"There is no tool {call.tool!r}; known: {names}."
            return self.truncate_observation(
                _make_unexecuted_call(call, reason, CallOutcome.MALFORMED, "tool")
            )
        async with self.limiter.slot():
            executed = await execute_call(tool, call, self.budget.call_timeout_seconds)
        return self.truncate_observation(executed)


def make_refused_call(call: ToolCall | MalformedCall, reason: str) -> CallRecord:
    """Return the record of a call over the budget."""
    return _make_unexecuted_call(call, reason, CallOutcome.REFUSED)


def _make_unexecuted_call(
    call: ToolCall | MalformedCall,
    reason: str,
    outcome: CallOutcome,
    fault: CallFault | None = None,
) -> CallRecord:
    arguments = call.arguments if isinstance(call, ToolCall) else {}
    return CallRecord(call.tool, arguments, reason, outcome, 0.0, fault=fault)


async def execute_call(tool: Tool, call: ToolCall, timeout_seconds: float) -> CallRecord:
    """Call a tool, and return the record with its whole observation, which after a `ToolError` or a
    timeout is the message of the error. Every other exception is a defect of the tool.

    Raises BrokenToolError for a defect.
    """
    clock = asyncio.get_running_loop().time
    start = clock()
    with record_broken_call(call.tool, call.arguments):
        text, outcome = await _run_tool(tool, call.arguments, timeout_seconds)
    fault: CallFault | None = "arguments" if outcome is CallOutcome.MALFORMED else None
    return CallRecord(call.tool, call.arguments, text, outcome, clock() - start, fault=fault)


async def _run_tool(
    tool: Tool, arguments: dict[str, Any], timeout_seconds: float
) -> tuple[str, CallOutcome]:
    try:
        text = await run_with_timeout(_call_tool(tool, arguments), timeout_seconds)
    except ArgumentError as error:
        return str(error), CallOutcome.MALFORMED
    except (ToolUnavailableError, ToolTimeoutError) as error:
        return str(error), CallOutcome.UNAVAILABLE
    except ToolError as error:
        return str(error), CallOutcome.FAILED
    if not isinstance(text, str):
        raise ToolContractError(f"the tool '{tool.name}' returned {type(text).__name__}, not text")
    return text, CallOutcome.OK


async def _call_tool(tool: Tool, arguments: dict[str, Any]) -> Any:
    return await tool(**arguments)


# -- opening and closing of tools --------------------------------------------------------------


@asynccontextmanager
async def open_session_tools(
    tools: Sequence[AnyTool], task: Task, timeout_seconds: float
) -> AsyncIterator[dict[str, Tool]]:
    """Yield the tools by name, ready to be called during one rollout of `task`.

    A stateless tool is used directly; a stateful one is opened here and closed at the end of the
    rollout, each within `timeout_seconds`.

    Raises BrokenToolError if a tool raises an unexpected exception on opening or closing, is too
    slow, or opens an object that is not a Tool.
    """
    async with AsyncExitStack() as stack:
        opened = {}
        for tool in tools:
            if isinstance(tool, StatefulTool):
                opened[tool.name] = await stack.enter_async_context(
                    _OpenedTool(tool, task, timeout_seconds)
                )
            else:
                opened[tool.name] = tool
        yield opened


class _OpenedTool(AbstractAsyncContextManager[Tool]):
    """A stateful tool between opening and closing.

    Exceptions of the rollout are always re-raised: a tool can hide neither a cancellation nor any
    other cause.
    """

    def __init__(self, tool: StatefulTool, task: Task, timeout_seconds: float) -> None:
        self.tool = tool
        self.task = task
        self.timeout_seconds = timeout_seconds

    async def __aenter__(self) -> Tool:
        with convert_defects():
            self._context = self.tool.open(self.task)
            opened: object = await self._run(self._context.__aenter__(), "open")
            if isinstance(opened, Tool):
                return opened
            defect = ToolContractError(
                f"the tool '{self.tool.name}' opened an object that is not a Tool"
            )
            await self.__aexit__(ToolContractError, defect, None)
            raise defect

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            with convert_defects():
                await self._run(self._context.__aexit__(kind, raised, trace), "close")
        except (UserError, BrokenToolError):
            if raised is None:
                raise

    async def _run(self, work: Awaitable[T], verb: str) -> T:
        try:
            return await run_with_timeout(work, self.timeout_seconds)
        except ToolTimeoutError as error:
            raise ToolContractError(
                f"the tool '{self.tool.name}' did not {verb} within {self.timeout_seconds:g} s"
            ) from error
