"""Requests of an engine: their state, the ends of their turns, and statistics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fieldcraft.dialects.chat_template import find_turn_end
from fieldcraft.dialects.incremental_decoding import REPLACEMENT_CHARACTER
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


def append_version_span(spans: list[VersionSpan], version: int, tokens: int) -> None:
    """Record that a policy version sampled `tokens` more tokens."""
    if spans and spans[-1][0] == version:
        tokens += spans.pop()[1]
    if tokens:
        spans.append((version, tokens))


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


class StopStringMatcher:
    """Matcher of stop strings, which stores for the last characters of each set of them the tokens
    that can complete one.

    The tail of a turn is decoded and searched only after such a token. A token qualifies if its
    text contains the last character of a stop string, or bytes of an incomplete character.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        """Create a matcher without stop strings. `vocab_size` is the width of the logits, which may
        exceed the tokenizer's vocabulary."""
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self.row_by_ends: dict[frozenset[str], int] = {frozenset(): 0}
        self.can_complete = np.zeros((1, vocab_size), bool)  # [sets, V]
        self._texts: list[str] = []

    def register(self, stop: tuple[str, ...]) -> int:
        """Return the row of `can_complete` for these stop strings; sets with the same last
        characters share one. Raises ValueError if one is empty."""
        if "" in stop:
            raise ValueError("a stop string must not be empty")
        ends = frozenset(text[-1] for text in stop)
        if ends not in self.row_by_ends:
            completing = ends | {REPLACEMENT_CHARACTER}
            row = np.array([not completing.isdisjoint(text) for text in self._get_token_texts()])
            self.can_complete = np.vstack([self.can_complete, row])
            self.row_by_ends[ends] = len(self.can_complete) - 1
        return self.row_by_ends[ends]

    def _get_token_texts(self) -> list[str]:
        # Decoded after another token, because some decoders drop a leading space.
        if not self._texts:
            prefix = self.tokenizer.encode("a", add_special_tokens=False)
            prefix_length = len(self.decode(prefix))
            self._texts = [
                self.decode([*prefix, i])[prefix_length:] for i in range(self.vocab_size)
            ]
        return self._texts

    def is_complete(self, ids: Sequence[int], stop: tuple[str, ...]) -> bool:
        """Return whether the text of `ids` contains a stop string near its end."""
        # Every token adds at least one byte, except a few that add none (special tokens).
        max_tokens = max(len(text.encode()) for text in stop) + 8
        tail = self.decode(ids[-max_tokens:])
        return any(text in tail for text in stop)

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(
            ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
