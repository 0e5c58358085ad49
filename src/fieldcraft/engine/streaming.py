"""The part of an engine beyond that of training, with which an agent can be served."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from fieldcraft.engine.base import PolicyEngine
from fieldcraft.sampling import Completion, SamplingParams


class StreamingEngine(PolicyEngine, Protocol):
    """An engine that a served agent can have. Whoever asks hears of each token at once."""

    @property
    def max_len(self) -> int:
        """Number of tokens that a session may have."""

    @property
    def num_sessions(self) -> int:
        """Number of sessions that hold a cache or wait for one."""

    async def generate(
        self,
        ids: Sequence[int],
        sampling: SamplingParams,
        session: str,
        on_token: Callable[[int], None] | None = None,
    ) -> Completion:
        """Continue ids as every engine does. `on_token` is called with each token as soon as it is
        sampled."""
