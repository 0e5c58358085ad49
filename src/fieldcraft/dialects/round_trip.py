"""Check that a tokenizer preserves texts, which every dialect requires."""

from __future__ import annotations

from collections.abc import Sequence

from fieldcraft.dialects.base import encode_policy_text, encode_untrusted
from fieldcraft.types import Dialect, Tokenizer

QUESTION = "Who was born first, Ada Lind or Bo Berg?"
RESULTS = "result 1: Ada Lind\nresult 2: Bo Berg"


def check_part_encoding(tokenizer: Tokenizer) -> list[str]:
    """Return a message if a tokenizer cannot encode the parts of a prompt separately, else []."""
    born, first = (encode_untrusted(tokenizer, part) for part in ("born", "first"))
    if tokenizer.decode(born) != "born" or tokenizer.decode([*born, *first]) == "bornfirst":
        return []
    return [
        "The tokenizer writes a space before each separately encoded text, like SentencePiece,"
        " but prompts are encoded in parts."
    ]


def check_round_trip(dialect: Dialect) -> list[str]:
    """Return messages about texts that change when encoded and decoded; empty if none does."""
    tokenizer = dialect.tokenizer

    def differs(ids: Sequence[int], text: str) -> bool:
        return tokenizer.decode(ids) != text

    if errors_apart := check_part_encoding(tokenizer):
        return errors_apart
    errors = [
        f"The tokenizer turns the tag {tag!r} into {tokenizer.decode(ids)!r}."
        for tag in dialect.tags
        if differs(ids := encode_policy_text(tokenizer, tag), tag)
    ]
    if QUESTION not in tokenizer.decode(dialect.encode_prompt(QUESTION, [])):
        errors.append("The tokenizer does not preserve the text of a question in the prompt.")
    block = dialect.render_observation(RESULTS)
    if differs(dialect.encode_observation(RESULTS), block):
        errors.append(f"The tokenizer does not preserve the text of the observation {block!r}.")
    return errors
