"""A check that a tokenizer gives texts back as they went in, as every dialect needs it."""

from __future__ import annotations

from collections.abc import Sequence

from fieldcraft.dialects.base import encode_plain, encode_written
from fieldcraft.types import Dialect, Tokenizer

QUESTION = "Who was born first, Ada Lind or Bo Berg?"
RESULTS = "result 1: Ada Lind\nresult 2: Bo Berg"


def part_problems(tokenizer: Tokenizer) -> list[str]:
    """Return a sentence about a tokenizer that cannot encode the parts of a prompt apart, or
    nothing."""
    born, first = (encode_plain(tokenizer, part) for part in ("born", "first"))
    if tokenizer.decode(born) != "born" or tokenizer.decode([*born, *first]) == "bornfirst":
        return []
    return [
        "The tokenizer writes a space before each text that is encoded apart, as SentencePiece"
        " does, and prompts are made of parts."
    ]


def round_trip_problems(dialect: Dialect) -> list[str]:
    """Return the sentences about texts that change when they are encoded and decoded; empty if none
    does."""
    tokenizer = dialect.tokenizer

    def differs(ids: Sequence[int], text: str) -> bool:
        return tokenizer.decode(ids) != text

    if apart := part_problems(tokenizer):
        return apart
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
