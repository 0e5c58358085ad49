"""The chains of a trajectory: one, or several where the rollout was folded.

A chain is what the policy reads at once. A fold ends it: the policy writes a summary, and the next
chain begins with the question, the plan and that summary. `Trajectory.folds` has the places.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from fieldcraft.types import Author, Segment, Trajectory


def chains(trajectory: Trajectory) -> list[list[Segment]]:
    """Return the segments of each chain, in order; at least one chain."""
    places = [0, *trajectory.folds, len(trajectory.segments)]
    return [trajectory.segments[begin:end] for begin, end in pairwise(places)]


def context(trajectory: Trajectory) -> list[int]:
    """Return the ids of the last chain: all that the policy reads when it writes the next token."""
    return ids_of(chains(trajectory)[-1])


def ids_of(segments: Iterable[Segment]) -> list[int]:
    return [i for segment in segments for i in segment.ids]


def turns_of(segments: Iterable[Segment]) -> list[str]:
    """Return the texts that the policy wrote in these segments, oldest first."""
    return [segment.text for segment in segments if segment.author is Author.POLICY]


def longest_chain(trajectory: Trajectory) -> int:
    """Return the number of tokens of the longest chain, which `budget.total_tokens` limits."""
    return max(len(ids_of(chain)) for chain in chains(trajectory))


def check_folds(trajectory: Trajectory) -> None:
    """Raise ValueError for folds that no rollout can have: each is the place of a prompt after what
    the policy wrote last, and they ascend."""
    before = 0
    for place in trajectory.folds:
        if not before < place < len(trajectory.segments):
            raise ValueError("its folds are not ascending places of segments")
        summary, prompt = trajectory.segments[place - 1 : place + 1]
        if (summary.author, prompt.author) != (Author.POLICY, Author.PROMPT):
            raise ValueError("one of its folds is not between a summary and a prompt")
        before = place
