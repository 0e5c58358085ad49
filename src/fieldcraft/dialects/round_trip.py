"""A check that a tokenizer gives texts back as they went in, as every dialect needs it."""

from __future__ import annotations

from collections.abc import Sequence

from fieldcraft.dialects.base import encode_policy_text, encode_untrusted
from fieldcraft.types import Dialect, Tokenizer

QUESTION = "Who was born first, Ada Lind or Bo Berg?"
RESULTS = "result 1: Ada Lind\nresult 2: Bo Berg"


def check_part_encoding(tokenizer: Tokenizer) -> list[str]:
    """Return a sentence about a tokenizer that cannot encode the parts of a prompt apart, or
    nothing."""
    born, first = (encode_untrusted(tokenizer, part) for part in ("born", "first"))
    if tokenizer.decode(born) != "born" or tokenizer.decode([*born, *first]) == "bornfirst":
        return []
    return [
        "The tokenizer writes a space before each text that is encoded apart, as SentencePiece"
        " does, and prompts are made of parts."
    ]


def check_round_trip(dialect: Dialect) -> list[str]:
    """Return the sentences about texts that change when they are encoded and decoded; empty if none
    does."""
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
        errors.append("The tokenizer does not keep the text of a question in the prompt.")
    block = dialect.render_observation(RESULTS)
    if differs(dialect.encode_observation(RESULTS), block):
        errors.append(f"The tokenizer does not keep the text of the observation {block!r}.")
    return errors
