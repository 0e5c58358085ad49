"""Dialects: the only place that knows tags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from fieldcraft.config.names import Kind, find
from fieldcraft.config.sections import DATE
from fieldcraft.dialects.base import BaseDialect
from fieldcraft.dialects.round_trip import part_problems, round_trip_problems
from fieldcraft.types import Tokenizer

__all__ = ["BaseDialect", "dialect_class", "get_dialect", "part_problems", "round_trip_problems"]


def get_dialect(
    name: str,
    tokenizer: Tokenizer,
    instruction: str | None = None,
    *,
    template: Mapping[str, Any] | None = None,
    system: str | None = None,
    request: str | None = None,
    ends: Sequence[int] = (),
    day: date = DATE,
) -> BaseDialect:
    """Make the dialect `name` bound to `tokenizer`.

    Args:
        name: one that is built in, of an entry point, or `module:Name`.
        tokenizer: of the model that speaks it.
        instruction: replaces the text before the question (None: the dialect's own, "": the
            question alone).
        template: variables of the chat template, such as `enable_thinking`.
        system: a system prompt.
        request: replaces what asks for a summary where a chain is folded, the tag aside.
        ends: tokens after which the model's generation settings stop.
        day: the date that a chat template shows.

    Raises UserError for an unknown name, for a tokenizer that the dialect cannot be used with, and
    for variables or a system prompt that the chat template does not have.
    """
    return dialect_class(name)(
        tokenizer, instruction, dict(template or {}), system, request, tuple(ends), day
    )


def dialect_class(name: str) -> type[BaseDialect]:
    """Return the class of the dialect `name`. Raises UserError for an unknown name, and for one of
    something else."""
    found: type[BaseDialect] = find(Kind.DIALECT, name)
    return found
