"""Version spans: policy versions that sampled the tokens of an unfinished turn."""

from __future__ import annotations

from fieldcraft.sampling import VersionSpan


def append_version_span(spans: list[VersionSpan], version: int, tokens: int) -> None:
    """Record that a policy version sampled `tokens` more tokens."""
    if spans and spans[-1][0] == version:
        tokens += spans.pop()[1]
    if tokens:
        spans.append((version, tokens))
