"""Earlier calls of tools with a state are made again, so that a continuation finds that state."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fieldcraft.envs.environment import Episode, ToolEnvironment
from fieldcraft.types import Action, Call, StatefulTool

SHOWN = 80  # characters of an observation in a sentence


def stateful(env: ToolEnvironment) -> set[str]:
    """Return the names of the tools that keep a state for a rollout."""
    return {tool.name for tool in env.tools if isinstance(tool, StatefulTool)}


async def replay(calls: Sequence[Call], episode: Episode, names: Collection[str]) -> list[str]:
    """Make the calls of the tools `names` again, in their order, and return a sentence for each
    answer that is not the recorded one. Calls that no tool ever saw are left out."""
    differences = []
    for number, call in enumerate(calls, start=1):
        if call.tool not in names or call.simulated or not call.outcome.executed:
            continue
        [again] = await episode.execute([Action(call.tool, call.arguments)], calls_before=0)
        if again.observation != call.observation:
            differences.append(
                f"call {number} ({call.tool}) was answered with '{_short(call.observation)}' and is"
                f" now answered with '{_short(again.observation)}'"
            )
    return differences


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SHOWN else f"{line[: SHOWN - 1]}…"
