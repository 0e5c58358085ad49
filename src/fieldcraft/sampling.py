"""Sampling of one turn: its parameters, the tokens that end it, and the completion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Truncation:
    """Restriction of the tokens that can be sampled; their probabilities are renormalised.

    The filters apply after the temperature, in the order of vLLM, each to the tokens that the
    previous one left: `min_p` drops tokens below that fraction of the highest probability, `top_k`
    keeps that number of the most likely tokens (0: all), `top_p` keeps the fewest of them that
    together have that probability. Tokens exactly as likely as the last one kept are kept, too.

    Raises ValueError for values outside these ranges.
    """

    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        if self.top_k < 0 or not 0 < self.top_p <= 1 or not 0 <= self.min_p < 1:
            raise ValueError(
                "top_k must be 0 or more, top_p above 0 and at most 1, and min_p from 0 to below 1:"
                f" {self}"
            )

    def __bool__(self) -> bool:
        """Return whether any token may be dropped."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0


NO_TRUNCATION = Truncation()  # every token can be sampled


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters of one turn. Temperature 0 is greedy and disables truncation.
    Log-probabilities refer to the distribution sampled from: softmax(logits / temperature),
    truncated and renormalised; for greedy sampling, at temperature 1 and not truncated. `seed`
    makes the turn reproducible regardless of the rest of the batch."""

    max_tokens: int
    temperature: float = 1.0
    stop: tuple[str, ...] = ()
    seed: int = 0
    truncation: Truncation = NO_TRUNCATION


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """Tokens that end a turn, see `dialects.turn_end.find_turn_end`.

    Attributes:
        token_id: token that the chat template writes after an assistant message, else the
            tokenizer's end-of-sequence token. Demonstrations are trained to end with it.
        text: text of that token.
        ids: all tokens that end a turn; sampling stops after any of them.
        texts: their texts, longest first.
    """

    token_id: int
    text: str
    ids: frozenset[int]
    texts: tuple[str, ...]

    def strip(self, turn: str) -> str:
        """Return the text of a turn without the token that ended it."""
        for text in self.texts:
            if turn.endswith(text):
                return turn.removesuffix(text)
        return turn

    def ends_turn(self, ids: Sequence[int]) -> bool:
        """Return whether the last token of `ids` ends a turn."""
        return bool(ids) and ids[-1] in self.ids


class StopReason(StrEnum):
    """Reason why the engine stopped sampling."""

    EOS = "eos"
    STOP = "stop"  # a stop string was completed
    LENGTH = "length"


VersionSpan = tuple[int, int]  # policy version, and number of consecutive tokens it sampled


@dataclass(frozen=True, slots=True)
class Completion:
    """Sampled tokens, including the terminal token; `text` is `ids` decoded once."""

    ids: list[int]
    logprobs: list[float]
    text: str
    stop_reason: StopReason
    versions: list[VersionSpan] = field(default_factory=list)
