"""Folding of a chain: what asks for a summary, how it is read, and how the next chain begins.

    observation  \\n\\n<information>...</information>\\n\\n
    prompt       My context is nearly full. ...\\n<summary>\\n
    policy       He was born in Zavrazhye; the river is missing.\\n</summary>

    prompt       ... question\\n\\n<plan>...</plan>\\n\\n<summary>...</summary> ...

The request stands where the policy would write next, as the beginning of its turn, so it needs no
words of a chat template in the middle of a chain. In the next prompt, plan and summary are plain
text beside the question: what looks like a special token in them is none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from fieldcraft.config.sections import Limits
from fieldcraft.dialects.base import SUMMARY, encode_frame, encode_written, plain, special_tokens
from fieldcraft.records.chains import chains, turns_of
from fieldcraft.types import Dialect, Role, Trajectory, UserError

STOP = SUMMARY[1:]  # the summary ends a turn of its own


def request(dialect: Dialect) -> str:
    """Return the text that asks for a summary. Raises UserError for a dialect that has no words for
    it."""
    if (text := dialect.summary_request) is None:
        raise UserError(
            f"The dialect {dialect.name} has no tag for a summary, so its chains cannot be folded:"
            " set budget.fold=null, or use another dialect, such as hermes."
        )
    return text


def encode_request(dialect: Dialect) -> list[int]:
    return encode_frame(dialect.tokenizer, request(dialect))


def encode_summary(dialect: Dialect, text: str) -> list[int]:
    """Encode a summary as the policy writes it after the request."""
    return encode_written(dialect.tokenizer, f"{text}\n{SUMMARY[1]}")


def read_summary(turn: str) -> str | None:
    """Read the summary that a turn holds; None if it is empty, or never ended."""
    text, ended, _ = turn.partition(SUMMARY[1])
    return text.strip() or None if ended else None


def begin_again(dialect: Dialect, question: str, written: Sequence[str], summary: str) -> str:
    """Return what the next chain asks in place of the question: the question, the last plan in what
    the policy has `written` (of all chains, if the dialect has plans), and the summary."""
    parts = [question.strip()]
    opening, closing = f"<{Role.PLAN}>", f"</{Role.PLAN}>"
    if opening in dialect.tags:
        plans = re.findall(rf"{opening}({plain((opening, closing))}){closing}", "".join(written))
        parts += [f"{opening}\n{plan.strip()}\n{closing}" for plan in plans[-1:]]
    return "\n\n".join([*parts, f"{SUMMARY[0]}\n{summary}\n{SUMMARY[1]}"])


def is_well_formed(dialect: Dialect, trajectory: Trajectory) -> bool:
    """Return whether all chains obey the dialect's grammar. In each but the last, a summary stands
    where the last turn would; it holds no tag of the dialect and no special token. A chain that
    begins with a summary may go on from it as from a thought. An answer that the policy was made to
    give is no ending of its own."""
    if trajectory.forced:
        return False
    summary = None
    *folded, last = [turns_of(chain) for chain in chains(trajectory)]
    for written in folded:
        *turns, ending = written or [""]
        if not _goes_on_well(dialect, summary, [*turns, dialect.any_ending]):
            return False
        summary = read_summary(ending)
        marks = (*dialect.tags, *SUMMARY, *special_tokens(dialect.tokenizer).values())
        if summary is None or any(mark in summary for mark in marks):
            return False
    return _goes_on_well(dialect, summary, last)


def _goes_on_well(dialect: Dialect, summary: str | None, written: Sequence[str]) -> bool:
    """Return whether a chain that begins with this summary obeys the grammar, with it or without
    it."""
    if dialect.well_formed(written):
        return True
    if summary is None or not written:
        return False
    return dialect.well_formed([dialect.write_thought(summary) + written[0], *written[1:]])


def fold_problems(
    key: str, budget: Limits, dialect: Dialect, prompt: int, reserve: int
) -> Iterator[str]:
    """Yield the problems of a budget. A chain must have room for its summary whenever it is folded,
    and the next chain for a turn before it is folded again. `key` is where a recipe has the budget,
    `reserve` what is held back of it for a forced answer."""
    if budget.fold is None:
        return
    asked = len(encode_request(dialect))
    observed = budget.observation_tokens + len(dialect.encode_observation(""))
    latest = budget.total_tokens - reserve - 2 * budget.turn_tokens - observed - asked
    if budget.fold.at > latest:
        yield (
            f"a chain of {key}.fold.at={budget.fold.at} tokens has no room for one more turn, its"
            f" observation of {observed}, and a request of {asked} with its summary: set"
            + (f" {key}.fold.at={latest} or less." if latest > 0 else " observation_tokens lower.")
        )
    again = prompt + budget.turn_tokens
    if again >= budget.fold.at:
        yield (
            f"the longest prompt with a summary can have {again} tokens, so each chain would be"
            f" folded after its first call: set {key}.fold.at={again + 1} or more."
        )
