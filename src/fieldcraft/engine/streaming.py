"""Engine protocol for serving an agent, which adds token streaming."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from fieldcraft.engine.base import PolicyEngine
from fieldcraft.sampling import Completion, SamplingParams


class StreamingEngine(PolicyEngine, Protocol):
    """Engine for a served agent. Each token is reported as soon as it is sampled."""

    @property
    def max_len(self) -> int:
        """Maximum number of tokens of a session."""

    @property
    def num_sessions(self) -> int:
        """Number of sessions that have a cache or are waiting for one."""

    async def generate(
        self,
        ids: Sequence[int],
        sampling: SamplingParams,
        session: str,
        on_token: Callable[[int], None] | None = None,
    ) -> Completion:
        """Continue `ids` as `Engine.generate` does. `on_token` is called with each token as soon as
        it is sampled."""
