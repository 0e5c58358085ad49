"""Protocols of inference engines, for sampling and for updating weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fieldcraft.sampling import Completion, SamplingParams


class Engine(Protocol):
    """Inference engine: token ids in, token ids and log-probabilities out. It is independent of
    tools, tags and rewards."""

    async def generate(
        self, ids: Sequence[int], sampling: SamplingParams, session: str
    ) -> Completion:
        """Continue `ids`. Calls with the same `session` extend one history, or start a new one
        (after a fold): of the session's cache, an engine keeps at most the prefix that matches
        `ids`."""

    def release(self, session: str) -> None:
        """Free a session's cache. Releasing an unknown session does nothing."""


class PolicyEngine(Engine, Protocol):
    """Engine that samples from a model in training."""

    async def sleep(self) -> None:
        """Free the memory of all sessions for training. No call may be generating."""

    async def snapshot_weights(self) -> None:
        """Let calls sample from a snapshot of the last published weights from now on, so that the
        model can be trained concurrently."""

    async def update_weights(self, version: int) -> None:
        """Sample with the model's current weights from now on, including the rest of unfinished
        turns. `version` is recorded for every token."""
