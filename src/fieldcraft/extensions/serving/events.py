"""Events while a request is answered, in their order, as both interfaces report them."""

from __future__ import annotations

from dataclasses import dataclass

from fieldcraft.types import CallRecord, ToolCall, Trajectory


@dataclass(frozen=True, slots=True)
class ThoughtDelta:
    """Next piece of a thought, without tags."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStarted:
    """The agent has written a call. The tool of a malformed call is None."""

    call: ToolCall | None


@dataclass(frozen=True, slots=True)
class ToolCallFinished:
    """The oldest call without an observation has received it."""

    call: CallRecord


@dataclass(frozen=True, slots=True)
class RequestFinished:
    """Last event of a request. `timed_out` is True if the time limit ended it."""

    trajectory: Trajectory
    timed_out: bool = False


AgentEvent = ThoughtDelta | ToolCallStarted | ToolCallFinished | RequestFinished
