"""A check that a tokenizer gives texts back as they went in, as every dialect needs it."""

from __future__ import annotations

from collections.abc import Sequence

from fieldcraft.dialects.base import encode_plain, encode_written
from fieldcraft.types import Dialect

QUESTION = "Who was born first, Ada Lind or Bo Berg?"
RESULTS = "result 1: Ada Lind\nresult 2: Bo Berg"


def round_trip_problems(dialect: Dialect) -> list[str]:
    """Sentences about texts that change when they are encoded and decoded; empty if none does."""
    tokenizer = dialect.tokenizer

    def differs(ids: Sequence[int], text: str) -> bool:
        return tokenizer.decode(ids) != text

    parts = [encode_plain(tokenizer, part) for part in ("born", "first")]
    if differs([*parts[0], *parts[1]], "bornfirst") and not differs(parts[0], "born"):
        return [
            "The tokenizer writes a space before each text that is encoded apart, as SentencePiece"
            " does, and prompts are made of parts."
        ]
    problems = [
        f"The tokenizer turns the tag {tag!r} into {tokenizer.decode(ids)!r}."
        for tag in dialect.tags
        if differs(ids := encode_written(tokenizer, tag), tag)
    ]
    if QUESTION not in tokenizer.decode(dialect.prompt(QUESTION, [])):
        problems.append("The tokenizer does not keep the text of a question in the prompt.")
    block = dialect.write_observation(RESULTS)
    if differs(dialect.encode_observation(RESULTS), block):
        problems.append(f"The tokenizer does not keep the text of the observation {block!r}.")
    return problems
