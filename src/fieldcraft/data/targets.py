"""Numbers of demonstrations and pairs that a collection keeps, and when that is enough.

Questions are drawn at random by the seed of the run, and what is kept is the first of it in their
order. So it is a random sample, and it does not depend on which attempts happened to end first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from fieldcraft.data.contrast import with_share
from fieldcraft.data.steps_io import StepPair


class Tally:
    """Counts of what the questions so far have given, beside what is wanted.

    Args:
        targets: what is counted -> how many are kept; None: all.
    """

    def __init__(self, targets: Mapping[str, int | None]) -> None:
        self._targets = targets
        self._found = Counter[str]()

    def add(self, kind: str, count: int = 1) -> None:
        self._found[kind] += count

    def wants(self, *kinds: str) -> bool:
        """Return whether more of any of these are wanted."""
        return any(
            (target := self._targets[kind]) is None or self._found[kind] < target for kind in kinds
        )

    def found(self, *kinds: str) -> int:
        return sum(self._found[kind] for kind in kinds)


def missed(kept: Mapping[str, int], targets: Mapping[str, int | None]) -> dict[str, int]:
    """Return how many are missing of everything that was wanted and not reached."""
    return {
        kind: target - kept.get(kind, 0)
        for kind, target in targets.items()
        if target is not None and kept.get(kind, 0) < target
    }


def kind_of(pair: StepPair) -> str:
    """Return which target a pair counts for."""
    return "acting" if pair.acts else "thinking"


def sampled(
    pairs: Iterable[StepPair], targets: Mapping[str, int | None], think_share: float
) -> list[StepPair]:
    """Return the first pairs of each kind up to its target. Those that choose thinking are never
    more than their share, also where too few choose an action."""
    tally, kept = Tally(targets), list[StepPair]()
    for pair in pairs:
        if tally.wants(kind_of(pair)):
            tally.add(kind_of(pair))
            kept.append(pair)
    return with_share(kept, think_share)


def told(missing: Mapping[str, int], targets: Mapping[str, int | None]) -> Sequence[str]:
    """Return a sentence for every target that was missed."""
    names = {
        "coa": "demonstrations with tools",
        "cot": "demonstrations without tools",
        "acting": "pairs that choose an action",
        "thinking": "pairs that choose thinking",
    }
    return [
        f"{targets[kind]} {names[kind]} were wanted, and {count} of them are missing: the questions"
        " are used up"
        for kind, count in missing.items()
    ]
