"""Tool sessions: the open tools of one rollout, and their calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from fieldcraft.concurrency import ConcurrencyLimiter, run_concurrently
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.dialects.base import BaseDialect
from fieldcraft.environments.guards import (
    ToolContractError,
    ToolTimeoutError,
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
)

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
        tool, arguments = self.tools.get(call.tool), call.arguments
        if tool is None:
            names = ", ".join(self.tools) or "none"
            reason = f"There is no tool {call.tool!r}; known: {names}."
            return self.truncate_observation(
                _make_unexecuted_call(call, reason, CallOutcome.MALFORMED, "tool")
            )
        async with self.limiter.slot():
            clock = asyncio.get_running_loop().time
            start = clock()
            with record_broken_call(call.tool, arguments):
                text, outcome = await self._run_tool(tool, arguments)
            seconds = clock() - start
        fault: CallFault | None = "arguments" if outcome is CallOutcome.MALFORMED else None
        return self.truncate_observation(
            CallRecord(call.tool, arguments, text, outcome, seconds, fault=fault)
        )

    async def _run_tool(self, tool: Tool, arguments: dict[str, Any]) -> tuple[str, CallOutcome]:
        try:
            text = await run_with_timeout(
                _call_tool(tool, arguments), self.budget.call_timeout_seconds
            )
        except ArgumentError as error:
            return str(error), CallOutcome.MALFORMED
        except (ToolUnavailableError, ToolTimeoutError) as error:
            return str(error), CallOutcome.UNAVAILABLE
        except ToolError as error:
            return str(error), CallOutcome.FAILED
        if not isinstance(text, str):
            raise ToolContractError(
                f"the tool '{tool.name}' returned {type(text).__name__}, not text"
            )
        return text, CallOutcome.OK


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

    Raises:
        ToolContractError: a tool is too slow, or opens an object that is not a Tool.
        Exception: exception of a tool on opening or closing.
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
        try:
            self._context = self.tool.open(self.task)
            opened: object = await run_with_timeout(
                self._context.__aenter__(), self.timeout_seconds
            )
        except ToolTimeoutError as error:
            raise ToolContractError(
                f"the tool '{self.tool.name}' did not open within {self.timeout_seconds:g} s"
            ) from error
        if not isinstance(opened, Tool):
            defect = ToolContractError(
                f"the tool '{self.tool.name}' opened an object that is not a Tool"
            )
            await self.__aexit__(ToolContractError, defect, None)
            raise defect
        return opened

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await run_with_timeout(
                self._context.__aexit__(kind, raised, trace), self.timeout_seconds
            )
        except ToolTimeoutError as error:
            if raised is None:
                raise ToolContractError(
                    f"the tool '{self.tool.name}' did not close within {self.timeout_seconds:g} s"
                ) from error
        except Exception:
            if raised is None:
                raise
