"""What an engine needs beyond that of training, so that an agent can be served with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from fieldcraft.engine.base import PolicyEngine
from fieldcraft.sampling import Sampling
from fieldcraft.types import Completion


class ServedEngine(PolicyEngine, Protocol):
    """An engine that a served agent can have: whoever asks hears of each token at once."""

    @property
    def max_len(self) -> int:
        """Return how many tokens a session may have."""

    @property
    def sessions(self) -> int:
        """Return how many sessions hold a cache or wait for one."""

    async def generate(
        self,
        ids: Sequence[int],
        sampling: Sampling,
        session: str,
        follow: Callable[[int], None] | None = None,
    ) -> Completion:
        """As every engine does. `follow` is called with each token as soon as it is sampled."""
