"""Folding of a chain: the summary prompt, parsing of the summary, and the start of the next chain.

    observation  \\n\\n<information>...</information>\\n\\n
    prompt       My context is nearly full. ...\\n<summary>\\n
    policy       He was born in Zavrazhye; the river is missing.\\n</summary>

    prompt       ... question\\n\\n<plan>...</plan>\\n\\n<summary>...</summary> ...

The summary prompt is placed at the start of the policy's next turn, so no chat-template text is
required in the middle of a chain. In the next prompt, plan and summary are plain text next to the
question: special tokens in them are not recognised.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from fieldcraft.config.sections import BudgetConfig
from fieldcraft.dialects.base import (
    SUMMARY_TAGS,
    encode_template,
    get_special_tokens,
    make_untagged_regex,
)
from fieldcraft.records.chains import get_policy_turns, split_chains
from fieldcraft.types import Dialect, ThoughtRole, Trajectory, UserError

SUMMARY_STOP = SUMMARY_TAGS[1:]  # the summary ends its turn


def require_summary_prompt(dialect: Dialect) -> str:
    """Return the prompt for a summary. Raises UserError for a dialect without one."""
    if (text := dialect.summary_prompt) is None:
        raise UserError(
            f"The dialect {dialect.name} has no tag for a summary, so its chains cannot be folded:"
            " set budget.fold=null, or use another dialect, such as hermes."
        )
    return text


def encode_summary_prompt(dialect: Dialect) -> list[int]:
    return encode_template(dialect.tokenizer, require_summary_prompt(dialect))


def encode_summary(dialect: Dialect, text: str) -> list[int]:
    """Encode a summary as the policy would write it after the summary prompt."""
    return dialect.encode_policy_text(f"{text}\n{SUMMARY_TAGS[1]}")


def parse_summary(turn: str) -> str | None:
    """Return the summary in a turn; None if it is empty or unclosed."""
    text, ended, _ = turn.partition(SUMMARY_TAGS[1])
    return text.strip() or None if ended else None


def render_folded_question(
    dialect: Dialect, question: str, turns: Sequence[str], summary: str
) -> str:
    """Return the text that replaces the question in the next chain: the question, the last plan in
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
    """Return whether all chains match the dialect's grammar. Each chain but the last ends with a
    summary in place of its last turn; it contains no tag of the dialect and no special token. A
    chain after a summary may continue it like a thought. A forced answer does not count as a final
    turn of the policy."""
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
    """Return whether a chain that starts with the given summary matches the grammar, with or
    without it."""
    if dialect.is_well_formed(turns):
        return True
    if summary is None or not turns:
        return False
    return dialect.is_well_formed([dialect.render_thought(summary) + turns[0], *turns[1:]])


def check_fold_budget(
    key: str, budget: BudgetConfig, dialect: Dialect, prompt: int, reserve: int
) -> Iterator[str]:
    """Yield the errors of a budget. A chain must have room for its summary whenever it is folded,
    and the next chain for a turn before it is folded again. `key` is the recipe key of the budget,
    `reserve` the number of tokens reserved for a forced answer."""
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
