"""Events while a request is answered, in their order, as both interfaces tell them."""

from __future__ import annotations

from dataclasses import dataclass

from fieldcraft.types import CallRecord, ToolCall, Trajectory


@dataclass(frozen=True, slots=True)
class ThoughtDelta:
    """The agent goes on thinking: a piece of text, without tags."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStarted:
    """The agent has written a call. The tool of one that cannot be read is None."""

    call: ToolCall | None


@dataclass(frozen=True, slots=True)
class ToolCallFinished:
    """A call, the oldest that has none yet, has its observation."""

    call: CallRecord


@dataclass(frozen=True, slots=True)
class RequestFinished:
    """Nothing more happens. `timed_out` says that the time limit ended it."""

    trajectory: Trajectory
    timed_out: bool = False


AgentEvent = ThoughtDelta | ToolCallStarted | ToolCallFinished | RequestFinished
