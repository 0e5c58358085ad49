"""Events while a request is answered, in their order, as both interfaces tell them."""

from __future__ import annotations

from dataclasses import dataclass

from fieldcraft.types import Action, Call, Trajectory


@dataclass(frozen=True, slots=True)
class Thinks:
    """The agent goes on thinking: a piece of text, without tags."""

    text: str


@dataclass(frozen=True, slots=True)
class Calls:
    """The agent has written a call. The tool of one that cannot be read is None."""

    action: Action | None


@dataclass(frozen=True, slots=True)
class Observes:
    """A call, the oldest that has none yet, has its observation."""

    call: Call


@dataclass(frozen=True, slots=True)
class Ends:
    """Nothing more happens. `late` says that the time limit ended it."""

    trajectory: Trajectory
    late: bool = False


Event = Thinks | Calls | Observes | Ends
