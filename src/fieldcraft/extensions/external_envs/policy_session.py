"""Policy sessions: access of a third-party program to the policy during one rollout."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from fieldcraft.config.sections import BudgetConfig
from fieldcraft.environments.turns import Policy, derive_seed
from fieldcraft.extensions.external_envs.generate_api import GenerateRequest
from fieldcraft.extensions.external_envs.refusals import make_context_error, make_final_error
from fieldcraft.sampling import Completion, SamplingParams, StopReason
from fieldcraft.types import Tokenizer


@dataclass(frozen=True, slots=True)
class SampledTurn:
    """Prompt that the policy read, and its completion."""

    prompt_ids: Sequence[int]
    completion: Completion


@dataclass
class PolicySession:
    """Policy of one rollout. The run determines its sampling and budget, regardless of the request.

    `turns` contains all sampled turns. `budget_exhausted` is True if the budget truncated or
    rejected a turn. `failure` is an error of the engine, which the program cannot handle.
    """

    policy: Policy
    tokenizer: Tokenizer
    budget: BudgetConfig
    session: str
    key: str
    turns: list[SampledTurn] = field(default_factory=list)
    budget_exhausted: bool = False
    failure: Exception | None = None
    _num_requests: int = 0
    _in_flight: set[asyncio.Task[Completion]] = field(default_factory=set)

    async def generate(self, request: GenerateRequest) -> Completion:
        """Sample a completion. Raises RequestRejectedError if the prompt leaves no tokens for it,
        and after `cancel`."""
        available_tokens = min(
            self.budget.max_turn_tokens, self.budget.max_context_tokens - len(request.token_ids)
        )
        if available_tokens < 1:
            self.budget_exhausted = True
            raise make_context_error(len(request.token_ids), self.budget.max_context_tokens)
        max_tokens = min(available_tokens, request.sampling_params.max_tokens or available_tokens)
        seed = derive_seed(self.policy.seed, self.key, self._num_requests)
        sampling = self.policy.make_sampling(max_tokens, request.stop_strings(self.tokenizer), seed)
        self._num_requests += 1
        completion = await self._sample(request.token_ids, sampling)
        self.turns.append(SampledTurn(request.token_ids, completion))
        self.budget_exhausted |= (
            completion.stop_reason is StopReason.LENGTH and len(completion.ids) == available_tokens
        )
        return completion

    async def _sample(self, ids: Sequence[int], sampling: SamplingParams) -> Completion:
        engine = self.policy.engine
        # A session samples one turn at a time; a concurrent one, of another agent of the program or
        # of a client that did not wait for the first, has a session of its own.
        session = f"{self.session}/{self._num_requests}" if self._in_flight else self.session
        task = asyncio.ensure_future(engine.generate(ids, sampling, session))
        self._in_flight.add(task)
        task.add_done_callback(self._in_flight.discard)
        if session != self.session:
            task.add_done_callback(lambda _: engine.release(session))
        await asyncio.wait([task])
        if task.cancelled():
            raise make_final_error("the rollout is over.")
        if isinstance(error := task.exception(), Exception):
            self.failure = error
        return task.result()

    async def cancel(self) -> None:
        """Cancel all requests that are being sampled."""
        for task in self._in_flight:
            task.cancel()
        await asyncio.gather(*self._in_flight, return_exceptions=True)
