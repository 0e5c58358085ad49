"""Protocols of inference engines: for sampling, for updating weights, and for serving."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    """Engine that samples from a model in training.

    An engine that receives its weights by transfer may have the attribute `last_update_metrics`
    with the costs of the last `update_weights`, as metrics of a step. An engine that depends on
    servers may have a method `async require_usable()`, which raises UserError before a run.
    """

    async def sleep(self) -> None:
        """Free the memory of all sessions for training. No call may be generating."""

    async def snapshot_weights(self) -> None:
        """Let calls sample from a snapshot of the last published weights from now on, so that the
        model can be trained concurrently."""

    async def update_weights(self, version: int) -> None:
        """Sample with the model's current weights from now on, including the rest of unfinished
        turns. `version` is recorded for every token."""


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
