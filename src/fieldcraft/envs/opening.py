"""The opening of tools for one rollout, and their closing after it, whatever happens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from types import TracebackType

from fieldcraft.envs.guards import ToolDefect, TooSlow, guarded
from fieldcraft.types import AnyTool, StatefulTool, Task, Tool


@asynccontextmanager
async def open_tools(
    tools: Sequence[AnyTool], task: Task, seconds: float
) -> AsyncIterator[dict[str, Tool]]:
    """Yield the tools by name, ready to be called during one rollout of `task`.

    A plain tool is ready; a stateful one is opened here and closed when the rollout ends, each
    within `seconds`.

    Raises:
        ToolDefect: a tool is too slow, or opens what cannot be called.
        Exception: of a tool that fails to open or close.
    """
    async with AsyncExitStack() as stack:
        ready = {}
        for tool in tools:
            if isinstance(tool, StatefulTool):
                ready[tool.name] = await stack.enter_async_context(_Opening(tool, task, seconds))
            else:
                ready[tool.name] = tool
        yield ready


class _Opening(AbstractAsyncContextManager[Tool]):
    """One stateful tool between its opening and its closing.

    What the rollout raised is raised again, whatever the tool does about it: a tool may neither
    hide a cancellation nor another cause.
    """

    def __init__(self, tool: StatefulTool, task: Task, seconds: float) -> None:
        self.tool = tool
        self.task = task
        self.seconds = seconds

    async def __aenter__(self) -> Tool:
        try:
            self._state = self.tool.open(self.task)
            opened: object = await guarded(self._state.__aenter__(), self.seconds)
        except TooSlow as error:
            raise ToolDefect(
                f"the tool '{self.tool.name}' did not open within {self.seconds:g} s"
            ) from error
        if not isinstance(opened, Tool):
            defect = ToolDefect(f"the tool '{self.tool.name}' opened what cannot be called")
            await self.__aexit__(ToolDefect, defect, None)
            raise defect
        return opened

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await guarded(self._state.__aexit__(kind, raised, trace), self.seconds)
        except TooSlow as error:
            if raised is None:
                raise ToolDefect(
                    f"the tool '{self.tool.name}' did not close within {self.seconds:g} s"
                ) from error
        except Exception:
            if raised is None:
                raise
