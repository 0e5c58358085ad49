"""An engine, as those who sample with it and those who train its model see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fieldcraft.sampling import Completion, SamplingParams


class Engine(Protocol):
    """An engine: ids in, ids and log-probabilities out. It knows no tools, tags or rewards."""

    async def generate(
        self, ids: Sequence[int], sampling: SamplingParams, session: str
    ) -> Completion:
        """Continue `ids`. Calls with the same `session` extend one history, or begin a new one
        (after a fold): of its cache, an engine keeps at most what `ids` begins with."""

    def release(self, session: str) -> None:
        """Forget a session's cache. Releasing an unknown session does nothing."""


class PolicyEngine(Engine, Protocol):
    """An engine that samples from a model in training."""

    async def sleep(self) -> None:
        """Free the memory of all sessions while nothing is sampled, so that training has it."""

    async def snapshot_weights(self) -> None:
        """Let the model be trained, from now on, while calls sample from what was last
        published."""

    async def update_weights(self, version: int) -> None:
        """Sample from now on, unfinished turns too, with the weights as they are now. `version` is
        written on every token."""
