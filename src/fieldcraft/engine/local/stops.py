"""Stop strings, found without decoding at every token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fieldcraft.types import Tokenizer

UNFINISHED = "\ufffd"  # what a decoder writes for bytes that are not yet a whole character


class StopStrings:
    """A search for stop strings, which knows for every set of them the tokens that can complete
    one.

    Only after such a token is the tail of the turn decoded and searched. A token qualifies when
    its text holds the last character of a stop string, or bytes of an unfinished character.
    """

    def __init__(self, tokenizer: Tokenizer, vocabulary: int) -> None:
        """Make an empty search. `vocabulary` is the width of the logits, which may exceed the
        tokenizer's own."""
        self.tokenizer = tokenizer
        self.vocabulary = vocabulary
        self.sets: dict[tuple[str, ...], int] = {(): 0}
        self.completing = np.zeros((1, vocabulary), bool)  # [sets, V]
        self._texts: list[str] = []

    def index(self, stop: tuple[str, ...]) -> int:
        """Return the row of `completing` for these stop strings. Raises ValueError for an empty
        string."""
        if stop not in self.sets:
            if "" in stop:
                raise ValueError("a stop string must not be empty")
            last = {text[-1] for text in stop} | {UNFINISHED}
            row = np.array([not last.isdisjoint(text) for text in self._vocabulary_texts()])
            self.completing = np.vstack([self.completing, row])
            self.sets[stop] = len(self.completing) - 1
        return self.sets[stop]

    def _vocabulary_texts(self) -> list[str]:
        # Decoded behind another token, because some decoders drop a space at the very beginning.
        if not self._texts:
            before = self.tokenizer.encode("a", add_special_tokens=False)
            cut = len(self.decode(before))
            self._texts = [self.decode([*before, i])[cut:] for i in range(self.vocabulary)]
        return self._texts

    def completed(self, ids: Sequence[int], stop: tuple[str, ...]) -> bool:
        """Return whether the text of `ids` contains a stop string near its end."""
        # Every token adds at least one byte, but for a few that add nothing (special tokens).
        reach = max(len(text.encode()) for text in stop) + 8
        tail = self.decode(ids[-reach:])
        return any(text in tail for text in stop)

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(
            ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
