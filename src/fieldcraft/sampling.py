"""Sampling of one turn: how it is sampled, the tokens that end it, and what comes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Truncation:
    """The tokens that can be sampled at all; the probabilities of these are renormalised.

    They come after the temperature and in the order of vLLM, each on what the one before it left:
    `min_p` drops tokens below that share of the highest probability, `top_k` keeps so many of the
    most likely ones (0: all), `top_p` the fewest of them that together have that probability.
    Tokens exactly as likely as the last one that is kept are kept, too.

    Raises ValueError for limits outside of these ranges.
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
        """Return whether it drops anything."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0


NO_TRUNCATION = Truncation()  # every token can be sampled


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The way in which one turn is sampled. Temperature 0 is greedy, and truncates nothing.
    Log-probabilities are those of the distribution sampled from: softmax(logits / temperature),
    truncated and renormalised; at temperature 1 and whole when greedy. `seed` makes the turn
    reproducible whatever else shares the batch."""

    max_tokens: int
    temperature: float = 1.0
    stop: tuple[str, ...] = ()
    seed: int = 0
    truncation: Truncation = NO_TRUNCATION


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """Tokens that end a turn, see `dialects.turn_end.find_turn_end`.

    Attributes:
        token_id: the one that the chat template writes after an assistant's message, else the
            tokenizer's end of a sequence. Demonstrations train it.
        text: its text.
        ids: all of them; sampling stops after any.
        texts: their texts, the longest first.
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
        """Return whether the last of these tokens ends a turn."""
        return bool(ids) and ids[-1] in self.ids


class StopReason(StrEnum):
    """The reason why the engine stopped sampling."""

    EOS = "eos"
    STOP = "stop"  # a stop string was completed
    LENGTH = "length"


VersionSpan = tuple[int, int]  # a version of the policy, and how many tokens in a row it sampled


@dataclass(frozen=True, slots=True)
class Completion:
    """The tokens that the engine sampled, terminal token included; `text` is `ids` decoded once."""

    ids: list[int]
    logprobs: list[float]
    text: str
    stop_reason: StopReason
    versions: list[VersionSpan] = field(default_factory=list)
