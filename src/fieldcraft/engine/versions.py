"""Which version of the policy sampled which tokens, while a turn is being written."""

from __future__ import annotations

from fieldcraft.types import Span


def extend(spans: list[Span], version: int, tokens: int) -> None:
    """So many more tokens were sampled by a version."""
    if spans and spans[-1][0] == version:
        tokens += spans.pop()[1]
    if tokens:
        spans.append((version, tokens))
