"""Lines: how a program of others reaches the policy during one rollout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from fieldcraft.config.sections import Limits
from fieldcraft.gateway.generate import GenerateRequest, Refused
from fieldcraft.rollout.turns import Policy, seed_at
from fieldcraft.types import Completion, Sampling, StopReason, Tokenizer


@dataclass(frozen=True, slots=True)
class Said:
    """What the policy read, and what it wrote."""

    read: Sequence[int]
    done: Completion


@dataclass
class Line:
    """The policy of one rollout. It samples as the run says and within its budget, whatever the
    program asks for, and `said` is all that it was asked."""

    policy: Policy
    tokenizer: Tokenizer
    budget: Limits
    session: str
    key: str
    said: list[Said] = field(default_factory=list)
    full: bool = False  # the budget ended a turn

    async def ask(self, request: GenerateRequest) -> Completion:
        """Raises Refused for a text that leaves no room for a token."""
        room = min(self.budget.turn_tokens, self.budget.total_tokens - len(request.token_ids))
        if room < 1:
            self.full = True
            raise Refused(
                f"the context length of {self.budget.total_tokens} tokens is used up, so there is"
                " no room for an answer."
            )
        asked = request.sampling_params.max_tokens or room
        sampling = Sampling(
            min(room, asked),
            self.policy.temperature,
            request.stops(self.tokenizer),
            seed_at(self.policy.seed, self.key, len(self.said)),
        )
        done = await self.policy.engine.generate(request.token_ids, sampling, self.session)
        self.said.append(Said(request.token_ids, done))
        self.full = self.full or done.reason is StopReason.LENGTH
        return done
