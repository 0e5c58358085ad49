"""Requests of the local engine, its turn-end tokens, and its statistics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fieldcraft.dialects.chat_template import find_turn_end
from fieldcraft.engine.local.block_allocator import IntArray
from fieldcraft.sampling import Completion, SamplingParams, TurnEnd, VersionSpan
from fieldcraft.types import Tokenizer


@dataclass(slots=True)
class EngineStats:
    """Running totals of an engine."""

    sampled_tokens: int = 0  # tokens
    prefilled_tokens: int = (
        0  # computed tokens of prompts and observations; reused ones do not count
    )
    forwards: int = 0
    evicted_sessions: int = 0  # idle sessions whose cache was taken by a new one
    seconds: float = 0.0  # time spent in steps


@dataclass(slots=True, eq=False)
class GenerationRequest:
    """Pending call of `generate`. If the weights change before it returns, the tokens sampled so
    far are appended to `ids` and recorded in `logprobs` and `version_spans`."""

    ids: IntArray
    sampling: SamplingParams
    stop_set: int  # row of StopStringMatcher.can_complete
    session: str
    future: asyncio.Future[Completion]
    on_token: Callable[[int], None] | None = None  # called with each token
    logprobs: list[float] = field(default_factory=list)
    version_spans: list[VersionSpan] = field(default_factory=list)

    @property
    def prompt_length(self) -> int:
        """Number of tokens before the turn."""
        return len(self.ids) - len(self.logprobs)


def find_model_turn_end(model: Any, tokenizer: Tokenizer) -> TurnEnd:
    """Return the tokens that end a turn of a model, from its generation config, tokenizer and chat
    template."""
    configured = get_configured_eos(model)
    return find_turn_end(tokenizer, [end for end in configured if isinstance(end, int)])


def get_configured_eos(model: Any) -> list[Any]:
    """Return the end-of-sequence ids of the model's generation config; the list may contain
    None."""
    configured = model.generation_config.eos_token_id
    return configured if isinstance(configured, list) else [configured]
