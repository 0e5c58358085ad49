"""Chains of a trajectory: one, or several if the rollout was folded.

A chain is the context that the policy reads at once. A fold ends it: the policy writes a summary,
and the next chain starts with the question, the plan and that summary. `Trajectory.folds` holds the
positions.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from fieldcraft.types import Author, Segment, Trajectory


def split_chains(trajectory: Trajectory) -> list[list[Segment]]:
    """Return the segments of each chain, in order; at least one chain."""
    boundaries = [0, *trajectory.folds, len(trajectory.segments)]
    return [trajectory.segments[start:end] for start, end in pairwise(boundaries)]


def get_context_ids(trajectory: Trajectory) -> list[int]:
    """Return the ids of the last chain: the context from which the policy samples the next
    token."""
    return concat_ids(split_chains(trajectory)[-1])


def concat_ids(segments: Iterable[Segment]) -> list[int]:
    return [i for segment in segments for i in segment.ids]


def get_policy_turns(segments: Iterable[Segment]) -> list[str]:
    """Return the texts that the policy wrote in these segments, oldest first."""
    return [segment.text for segment in segments if segment.author is Author.POLICY]


def count_max_chain_tokens(trajectory: Trajectory) -> int:
    """Return the number of tokens of the longest chain, which `budget.max_context_tokens`
    limits."""
    return max(len(concat_ids(chain)) for chain in split_chains(trajectory))


def validate_folds(trajectory: Trajectory) -> None:
    """Raise ValueError for impossible folds: each is the index of a prompt that directly follows a
    policy segment, and they are ascending."""
    previous = 0
    for fold in trajectory.folds:
        if not previous < fold < len(trajectory.segments):
            raise ValueError("its folds are not ascending indices of segments")
        summary, prompt = trajectory.segments[fold - 1 : fold + 1]
        if (summary.author, prompt.author) != (Author.POLICY, Author.PROMPT):
            raise ValueError("one of its folds is not between a summary and a prompt")
        previous = fold
