"""The requests of the local engine, what ends an answer, and what it has done so far."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fieldcraft.dialects.turn_end import find_turn_end
from fieldcraft.engine.local.blocks import Ints
from fieldcraft.sampling import Sampling, TurnEnd
from fieldcraft.types import Completion, Span, Tokenizer


@dataclass(slots=True)
class Stats:
    """Running totals of an engine."""

    sampled: int = 0  # tokens
    prefilled: int = 0  # tokens of prompts and observations computed; what is reused does not count
    forwards: int = 0
    evicted: int = 0  # parked sessions that lost their cache to a new one
    seconds: float = 0.0  # spent in steps


@dataclass(slots=True, eq=False)
class Request:
    """A call of `generate` that has not returned. If the weights change meanwhile, what it has
    sampled so far is appended to its `ids`, and `logprobs` and `versions` tell of it."""

    ids: Ints
    sampling: Sampling
    stop_set: int  # row of StopStrings.completing
    session: str
    future: asyncio.Future[Completion]
    follow: Callable[[int], None] | None = None  # hears of each token
    logprobs: list[float] = field(default_factory=list)
    versions: list[Span] = field(default_factory=list)

    @property
    def begin(self) -> int:
        """Number of tokens before the turn."""
        return len(self.ids) - len(self.logprobs)


def turn_end(model: Any, tokenizer: Tokenizer) -> TurnEnd:
    """Return the tokens that end a turn of a model, by its settings, its tokenizer and its chat
    template."""
    configured = configured_ends(model)
    return find_turn_end(tokenizer, [end for end in configured if isinstance(end, int)])


def configured_ends(model: Any) -> list[Any]:
    """Return the end of a sequence for `model.generate`, as the file has it: one end, several, or
    None."""
    configured = model.generation_config.eos_token_id
    return configured if isinstance(configured, list) else [configured]
