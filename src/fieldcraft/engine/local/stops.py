"""Search for stop strings without decoding at every token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fieldcraft.types import Tokenizer

REPLACEMENT_CHARACTER = "\ufffd"  # a decoder's output for bytes of an incomplete character


class StopStringMatcher:
    """Matcher of stop strings, which stores for each set of them the tokens that can complete one.

    The tail of a turn is decoded and searched only after such a token. A token qualifies if its
    text contains the last character of a stop string, or bytes of an incomplete character.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        """Create a matcher without stop strings. `vocab_size` is the width of the logits, which may
        exceed the tokenizer's vocabulary."""
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self.set_indices: dict[tuple[str, ...], int] = {(): 0}
        self.can_complete = np.zeros((1, vocab_size), bool)  # [sets, V]
        self._texts: list[str] = []

    def register(self, stop: tuple[str, ...]) -> int:
        """Return the row of `can_complete` for these stop strings. Raises ValueError if one is
        empty."""
        if stop not in self.set_indices:
            if "" in stop:
                raise ValueError("a stop string must not be empty")
            last_characters = {text[-1] for text in stop} | {REPLACEMENT_CHARACTER}
            row = np.array(
                [not last_characters.isdisjoint(text) for text in self._get_token_texts()]
            )
            self.can_complete = np.vstack([self.can_complete, row])
            self.set_indices[stop] = len(self.can_complete) - 1
        return self.set_indices[stop]

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
