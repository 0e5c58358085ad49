"""Opening and closing of tools for one rollout."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from types import TracebackType

from fieldcraft.environments.guards import ToolContractError, ToolTimeoutError, run_with_timeout
from fieldcraft.types import AnyTool, StatefulTool, Task, Tool


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
