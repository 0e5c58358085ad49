"""Lines: how a program of others reaches the policy during one rollout."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from fieldcraft.config.sections import Limits
from fieldcraft.gateway.generate import GenerateRequest
from fieldcraft.gateway.refusals import Refused
from fieldcraft.rollout.turns import Policy, seed_at
from fieldcraft.sampling import Sampling
from fieldcraft.types import Completion, StopReason, Tokenizer


@dataclass(frozen=True, slots=True)
class Said:
    """Exchange: what the policy read, and what it wrote."""

    read: Sequence[int]
    done: Completion


@dataclass
class Line:
    """The policy of one rollout. It samples as the run says and within its budget, whatever the
    program asks for.

    `said` is all that it was asked. `full` says whether the budget ended a turn, and `failure` is
    what the engine raised, which the program does not understand.
    """

    policy: Policy
    tokenizer: Tokenizer
    budget: Limits
    session: str
    key: str
    said: list[Said] = field(default_factory=list)
    full: bool = False
    failure: Exception | None = None
    _asked: int = 0
    _sampling: set[asyncio.Task[Completion]] = field(default_factory=set)

    async def ask(self, request: GenerateRequest) -> Completion:
        """Ask for an answer. Raises Refused for a text that leaves no room for a token, and after
        `hang_up`."""
        room = min(self.budget.turn_tokens, self.budget.total_tokens - len(request.token_ids))
        if room < 1:
            self.full = True
            raise Refused(
                400,
                f"the context length of {self.budget.total_tokens} tokens is used up, so there is"
                " no room for an answer.",
            )
        most = min(room, request.sampling_params.max_tokens or room)
        seed = seed_at(self.policy.seed, self.key, self._asked)
        sampling = self.policy.sampling(most, request.stops(self.tokenizer), seed)
        self._asked += 1
        done = await self._sample(request.token_ids, sampling)
        self.said.append(Said(request.token_ids, done))
        self.full |= done.reason is StopReason.LENGTH and len(done.ids) == room
        return done

    async def _sample(self, ids: Sequence[int], sampling: Sampling) -> Completion:
        engine = self.policy.engine
        task = asyncio.ensure_future(engine.generate(ids, sampling, self.session))
        self._sampling.add(task)
        try:
            await asyncio.wait([task])
        finally:
            self._sampling.discard(task)
        if task.cancelled():
            raise Refused(400, "the rollout is over.")
        if isinstance(error := task.exception(), Exception):
            self.failure = error
        return task.result()

    async def hang_up(self) -> None:
        """End what is still being sampled."""
        for task in self._sampling:
            task.cancel()
        await asyncio.gather(*self._sampling, return_exceptions=True)
