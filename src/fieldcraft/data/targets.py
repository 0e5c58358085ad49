"""Target numbers of demonstrations and pairs of a collection, and the check for completion.

Questions are drawn at random by the seed of the run, and the first results in question order are
selected. So they are a random sample that does not depend on which attempts finished first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from fieldcraft.data.contrastive_pairs import cap_thinking_share
from fieldcraft.data.steps_io import ContrastivePair


class CollectionTally:
    """Counts of the results so far, compared with the targets.

    Args:
        targets: maximum number of results of each kind; None: all.
    """

    def __init__(self, targets: Mapping[str, int | None]) -> None:
        self._targets = targets
        self._found = Counter[str]()

    def add(self, kind: str, count: int = 1) -> None:
        self._found[kind] += count

    def needs_more(self, *kinds: str) -> bool:
        """Return whether the target of any of these kinds is not reached."""
        return any(
            (target := self._targets[kind]) is None or self._found[kind] < target for kind in kinds
        )

    def count(self, *kinds: str) -> int:
        return sum(self._found[kind] for kind in kinds)


def count_missing(counts: Mapping[str, int], targets: Mapping[str, int | None]) -> dict[str, int]:
    """Return the number of missing results of each kind whose target was not reached."""
    return {
        kind: target - counts.get(kind, 0)
        for kind, target in targets.items()
        if target is not None and counts.get(kind, 0) < target
    }


def get_pair_kind(pair: ContrastivePair) -> str:
    """Return the kind of target that a pair counts towards."""
    return "acting" if pair.chooses_tool else "thinking"


def select_pairs(
    pairs: Iterable[ContrastivePair], targets: Mapping[str, int | None], max_thinking_share: float
) -> list[ContrastivePair]:
    """Return the first pairs of each kind up to its target. Pairs that choose thinking never exceed
    their share, even if there are too few pairs that choose an action."""
    tally, selected = CollectionTally(targets), list[ContrastivePair]()
    for pair in pairs:
        if tally.needs_more(get_pair_kind(pair)):
            tally.add(get_pair_kind(pair))
            selected.append(pair)
    return cap_thinking_share(selected, max_thinking_share)


def describe_missing(
    missing: Mapping[str, int], targets: Mapping[str, int | None]
) -> Sequence[str]:
    """Return one sentence per missed target."""
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
