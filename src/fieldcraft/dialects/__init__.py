"""Dialects: the only place that knows tags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from fieldcraft.config.names import ComponentKind, resolve
from fieldcraft.config.sections import DEFAULT_DATE
from fieldcraft.dialects.base import BaseDialect
from fieldcraft.dialects.round_trip import check_part_encoding, check_round_trip
from fieldcraft.types import Tokenizer

__all__ = [
    "BaseDialect",
    "check_part_encoding",
    "check_round_trip",
    "make_dialect",
    "resolve_dialect",
]


def make_dialect(
    name: str,
    tokenizer: Tokenizer,
    instruction: str | None = None,
    *,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    system_prompt: str | None = None,
    summary_instruction: str | None = None,
    eos_ids: Sequence[int] = (),
    prompt_date: date = DEFAULT_DATE,
) -> BaseDialect:
    """Make the dialect `name` bound to `tokenizer`.

    Args:
        name: one that is built in, of an entry point, or `module:Name`.
        tokenizer: of the model that speaks it.
        instruction: replaces the text before the question (None: the dialect's own, "": the
            question alone).
        chat_template_kwargs: variables of the chat template, such as `enable_thinking`.
        system_prompt: a system prompt.
        summary_instruction: replaces what asks for a summary where a chain is folded, the tag
        aside.
        eos_ids: tokens after which the model's generation settings stop.
        prompt_date: the date that a chat template shows.

    Raises UserError for an unknown name, for a tokenizer that the dialect cannot be used with, and
    for variables or a system prompt that the chat template does not have.
    """
    return resolve_dialect(name)(
        tokenizer,
        instruction,
        dict(chat_template_kwargs or {}),
        system_prompt,
        summary_instruction,
        tuple(eos_ids),
        prompt_date,
    )


def resolve_dialect(name: str) -> type[BaseDialect]:
    """Return the class of the dialect `name`. Raises UserError for an unknown name, and for one of
    something else."""
    found: type[BaseDialect] = resolve(ComponentKind.DIALECT, name)
    return found
