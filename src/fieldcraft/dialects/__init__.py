"""Dialects: the only place that knows tags."""

from __future__ import annotations

from difflib import get_close_matches

from fieldcraft.dialects.autocoa import AutoCoA
from fieldcraft.dialects.base import BaseDialect, round_trip_problems
from fieldcraft.dialects.hermes import Hermes
from fieldcraft.dialects.search_r1 import Otc, SearchR1
from fieldcraft.types import Dialect, Tokenizer, UserError

__all__ = ["DIALECTS", "BaseDialect", "dialect_class", "get_dialect", "round_trip_problems"]

DIALECTS: dict[str, type[BaseDialect]] = {
    dialect.name: dialect for dialect in (AutoCoA, SearchR1, Otc, Hermes)
}


def get_dialect(name: str, tokenizer: Tokenizer, instruction: str | None = None) -> Dialect:
    """The dialect `name` bound to `tokenizer`; `instruction` replaces the text before the question
    (None: the dialect's own, "": the question alone). Raises UserError for an unknown name."""
    return dialect_class(name)(tokenizer, instruction)


def dialect_class(name: str) -> type[BaseDialect]:
    """The class of the dialect `name`. Raises UserError for an unknown name."""
    if name not in DIALECTS:
        near = get_close_matches(name, DIALECTS, n=1, cutoff=0)[0]
        raise UserError(
            f"There is no dialect {name!r}; did you mean {near!r}? Known: {', '.join(DIALECTS)}."
        )
    return DIALECTS[name]
