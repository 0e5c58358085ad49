"""The requests of the local engine, what ends an answer, and what it has done so far."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fieldcraft.dialects.turn_end import find_turn_end
from fieldcraft.engine.local.block_allocator import IntArray
from fieldcraft.sampling import Completion, SamplingParams, TurnEnd, VersionSpan
from fieldcraft.types import Tokenizer


@dataclass(slots=True)
class EngineStats:
    """Running totals of an engine."""

    sampled_tokens: int = 0  # tokens
    prefilled_tokens: int = (
        0  # tokens of prompts and observations computed; what is reused does not count
    )
    forwards: int = 0
    evicted_sessions: int = 0  # parked sessions that lost their cache to a new one
    seconds: float = 0.0  # spent in steps


@dataclass(slots=True, eq=False)
class GenerationRequest:
    """A call of `generate` that has not returned. If the weights change meanwhile, what it has
    sampled so far is appended to its `ids`, and `logprobs` and `version_spans` tell of it."""

    ids: IntArray
    sampling: SamplingParams
    stop_set: int  # row of StopStringMatcher.can_complete
    session: str
    future: asyncio.Future[Completion]
    on_token: Callable[[int], None] | None = None  # hears of each token
    logprobs: list[float] = field(default_factory=list)
    version_spans: list[VersionSpan] = field(default_factory=list)

    @property
    def prompt_length(self) -> int:
        """Number of tokens before the turn."""
        return len(self.ids) - len(self.logprobs)


def find_model_turn_end(model: Any, tokenizer: Tokenizer) -> TurnEnd:
    """Return the tokens that end a turn of a model, by its settings, its tokenizer and its chat
    template."""
    configured = get_configured_eos(model)
    return find_turn_end(tokenizer, [end for end in configured if isinstance(end, int)])


def get_configured_eos(model: Any) -> list[Any]:
    """Return the end of a sequence for `model.generate`, as the file has it: one end, several, or
    None."""
    configured = model.generation_config.eos_token_id
    return configured if isinstance(configured, list) else [configured]
