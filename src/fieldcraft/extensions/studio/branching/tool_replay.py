"""Replay of earlier calls of stateful tools, so that a continuation has the same tool state."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fieldcraft.environments.tool_environment import ToolEnvironment
from fieldcraft.environments.tool_session import ToolSession
from fieldcraft.records.transcript import shorten_line
from fieldcraft.types import CallRecord, StatefulTool, ToolCall

MAX_OBSERVATION_CHARS = 80  # characters of an observation in a message


def find_stateful_tools(env: ToolEnvironment) -> set[str]:
    """Return the names of the tools that keep state during a rollout."""
    return {tool.name for tool in env.tools if isinstance(tool, StatefulTool)}


async def replay_calls(
    calls: Sequence[CallRecord], session: ToolSession, tool_names: Collection[str]
) -> list[str]:
    """Replay the calls of the tools `tool_names` in order, and return a message for each answer
    that differs from the record. Calls that never reached a tool are omitted."""
    mismatches = []
    for number, call in enumerate(calls, start=1):
        if call.tool not in tool_names or call.simulated or not call.outcome.executed:
            continue
        [replayed] = await session.run_calls([ToolCall(call.tool, call.arguments)], calls_before=0)
        if replayed.observation != call.observation:
            before, now = (
                shorten_line(text, MAX_OBSERVATION_CHARS)
                for text in (call.observation, replayed.observation)
            )
            mismatches.append(
                f"call {number} ({call.tool}) was answered with '{before}' and is now answered with"
                f" '{now}'"
            )
    return mismatches
