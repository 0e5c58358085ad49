"""The versions of the policy that sampled the tokens of a turn, while it is being written."""

from __future__ import annotations

from fieldcraft.sampling import VersionSpan


def append_version_span(spans: list[VersionSpan], version: int, tokens: int) -> None:
    """Record that a version sampled so many more tokens."""
    if spans and spans[-1][0] == version:
        tokens += spans.pop()[1]
    if tokens:
        spans.append((version, tokens))
