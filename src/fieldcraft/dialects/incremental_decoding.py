"""Texts of tokens that arrive one by one."""

from __future__ import annotations

from tokenizers import Tokenizer

REPLACEMENT_CHARACTER = "\ufffd"  # a decoder's output for bytes of an incomplete character
_CHARACTER_BYTES = 4  # of the longest character in UTF-8, at most one token each


class IncrementalDecoder:
    """Decoder of a text whose tokens arrive one by one.

    `tokenizers.decoders.DecodeStream` raises an exception where bytes of an incomplete character
    are followed by another token, if the tokenizer has byte fallback.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # Decoders treat the first token of a text specially, so the last ones are decoded again.
        self._context: list[int] = []
        self._pending: list[int] = []  # tokens of an incomplete character

    def step(self, token: int) -> str:
        """Add a token, and return the text that it completes. Characters of several tokens are
        returned with the last one; incomplete ones become U+FFFD with a later token."""
        self._pending.append(token)
        before = self._decode(self._context)
        text = self._decode([*self._context, *self._pending])
        if text.endswith(REPLACEMENT_CHARACTER) and len(self._pending) < _CHARACTER_BYTES:
            return ""
        added = text[len(before) :]
        # A token without a text is no context for the next one.
        self._context = self._pending if added else [*self._context, *self._pending]
        self._pending = []
        return added

    def _decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False)
        return text
