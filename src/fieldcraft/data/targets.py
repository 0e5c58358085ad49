"""Numbers of demonstrations and pairs that a collection keeps, and when that is enough.

Questions are drawn at random by the seed of the run, and what is kept is the first of it in their
order. So it is a random sample, and it does not depend on which attempts happened to end first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from fieldcraft.data.contrastive_pairs import cap_thinking_share
from fieldcraft.data.steps_io import ContrastivePair


class CollectionTally:
    """Counts of what the questions so far have given, beside what is wanted.

    Args:
        targets: what is counted -> how many are kept; None: all.
    """

    def __init__(self, targets: Mapping[str, int | None]) -> None:
        self._targets = targets
        self._found = Counter[str]()

    def add(self, kind: str, count: int = 1) -> None:
        self._found[kind] += count

    def needs_more(self, *kinds: str) -> bool:
        """Return whether more of any of these are wanted."""
        return any(
            (target := self._targets[kind]) is None or self._found[kind] < target for kind in kinds
        )

    def count(self, *kinds: str) -> int:
        return sum(self._found[kind] for kind in kinds)


def count_missing(counts: Mapping[str, int], targets: Mapping[str, int | None]) -> dict[str, int]:
    """Return how many are missing of everything that was wanted and not reached."""
    return {
        kind: target - counts.get(kind, 0)
        for kind, target in targets.items()
        if target is not None and counts.get(kind, 0) < target
    }


def get_pair_kind(pair: ContrastivePair) -> str:
    """Return which target a pair counts for."""
    return "acting" if pair.chooses_tool else "thinking"


def select_pairs(
    pairs: Iterable[ContrastivePair], targets: Mapping[str, int | None], max_thinking_share: float
) -> list[ContrastivePair]:
    """Return the first pairs of each kind up to its target. Those that choose thinking are never
    more than their share, also where too few choose an action."""
    tally, selected = CollectionTally(targets), list[ContrastivePair]()
    for pair in pairs:
        if tally.needs_more(get_pair_kind(pair)):
            tally.add(get_pair_kind(pair))
            selected.append(pair)
    return cap_thinking_share(selected, max_thinking_share)


def describe_missing(
    missing: Mapping[str, int], targets: Mapping[str, int | None]
) -> Sequence[str]:
    """Return a sentence for every target that was missed."""
    names = {
        "coa": "demonstrations with tools",
        "cot": "demonstrations without tools",
        "acting": "pairs that choose an action",
        "thinking": "pairs that choose thinking",
    }
    return [
        f"{count} of the requested {targets[kind]} {names[kind]} are missing: all questions have"
        " been used"
        for kind, count in missing.items()
    ]
