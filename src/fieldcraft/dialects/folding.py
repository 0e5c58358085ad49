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

from fieldcraft.config.sections import BudgetConfig
from fieldcraft.dialects.base import (
    SUMMARY_TAGS,
    encode_policy_text,
    encode_template,
    get_special_tokens,
    make_untagged_regex,
)
from fieldcraft.records.chains import get_policy_turns, split_chains
from fieldcraft.types import Dialect, ThoughtRole, Trajectory, UserError

SUMMARY_STOP = SUMMARY_TAGS[1:]  # the summary ends a turn of its own


def require_summary_prompt(dialect: Dialect) -> str:
    """Return the text that asks for a summary. Raises UserError for a dialect that has no words for
    it."""
    if (text := dialect.summary_prompt) is None:
        raise UserError(
            f"The dialect {dialect.name} has no tag for a summary, so its chains cannot be folded:"
            " set budget.fold=null, or use another dialect, such as hermes."
        )
    return text


def encode_summary_prompt(dialect: Dialect) -> list[int]:
    return encode_template(dialect.tokenizer, require_summary_prompt(dialect))


def encode_summary(dialect: Dialect, text: str) -> list[int]:
    """Encode a summary as the policy writes it after the request."""
    return encode_policy_text(dialect.tokenizer, f"{text}\n{SUMMARY_TAGS[1]}")


def parse_summary(turn: str) -> str | None:
    """Read the summary that a turn holds; None if it is empty, or never ended."""
    text, ended, _ = turn.partition(SUMMARY_TAGS[1])
    return text.strip() or None if ended else None


def render_folded_question(
    dialect: Dialect, question: str, turns: Sequence[str], summary: str
) -> str:
    """Return what the next chain asks in place of the question: the question, the last plan in what
    `turns` (of all chains, if the dialect has plans), and the summary."""
    parts = [question.strip()]
    opening, closing = f"<{ThoughtRole.PLAN}>", f"</{ThoughtRole.PLAN}>"
    if opening in dialect.tags:
        plans = re.findall(
            rf"{opening}({make_untagged_regex((opening, closing))}){closing}", "".join(turns)
        )
        parts += [f"{opening}\n{plan.strip()}\n{closing}" for plan in plans[-1:]]
    return "\n\n".join([*parts, f"{SUMMARY_TAGS[0]}\n{summary}\n{SUMMARY_TAGS[1]}"])


def is_well_formed(dialect: Dialect, trajectory: Trajectory) -> bool:
    """Return whether all chains obey the dialect's grammar. In each but the last, a summary stands
    where the last turn would; it holds no tag of the dialect and no special token. A chain that
    begins with a summary may go on from it as from a thought. An answer that the policy was made to
    give is no ending of its own."""
    if trajectory.forced:
        return False
    summary = None
    *folded, last = [get_policy_turns(chain) for chain in split_chains(trajectory)]
    for chain_turns in folded:
        *earlier_turns, ending = chain_turns or [""]
        if not _is_valid_chain(dialect, summary, [*earlier_turns, dialect.example_final_turn]):
            return False
        summary = parse_summary(ending)
        marks = (*dialect.tags, *SUMMARY_TAGS, *get_special_tokens(dialect.tokenizer).values())
        if summary is None or any(mark in summary for mark in marks):
            return False
    return _is_valid_chain(dialect, summary, last)


def _is_valid_chain(dialect: Dialect, summary: str | None, turns: Sequence[str]) -> bool:
    """Return whether a chain that begins with this summary obeys the grammar, with it or without
    it."""
    if dialect.is_well_formed(turns):
        return True
    if summary is None or not turns:
        return False
    return dialect.is_well_formed([dialect.render_thought(summary) + turns[0], *turns[1:]])


def check_fold_budget(
    key: str, budget: BudgetConfig, dialect: Dialect, prompt: int, reserve: int
) -> Iterator[str]:
    """Yield the problems of a budget. A chain must have room for its summary whenever it is folded,
    and the next chain for a turn before it is folded again. `key` is where a recipe has the budget,
    `reserve` what is held back of it for a forced answer."""
    if budget.fold is None:
        return
    prompt_tokens = len(encode_summary_prompt(dialect))
    observation_tokens = budget.max_observation_tokens + len(dialect.encode_observation(""))
    latest = (
        budget.max_context_tokens
        - reserve
        - 2 * budget.max_turn_tokens
        - observation_tokens
        - prompt_tokens
    )
    if budget.fold.trigger_tokens > latest:
        yield (
            f"a chain of {key}.fold.trigger_tokens={budget.fold.trigger_tokens} tokens has no room"
            f" for one more turn, its observation of {observation_tokens}, and a request of"
            f" {prompt_tokens} with its summary: set"
            + (
                f" {key}.fold.trigger_tokens={latest} or less."
                if latest > 0
                else " max_observation_tokens lower."
            )
        )
    next_prompt = prompt + budget.max_turn_tokens
    if next_prompt >= budget.fold.trigger_tokens:
        yield (
            f"the longest prompt with a summary can have {next_prompt} tokens, so each chain would"
            f" be folded after its first call: set {key}.fold.trigger_tokens={next_prompt + 1} or"
            " more."
        )
