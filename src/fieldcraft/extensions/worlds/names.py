"""Invented names of two syllables, so that a model can copy unseen names syllable by syllable."""

from __future__ import annotations

import random
from collections.abc import Sequence

from fieldcraft.types import UserError

ONSETS = (*"bdfghjkmpstvwz", "br", "dr", "fr", "gr", "kr", "pr", "tr", "sk", "sp", "st")
# Every syllable ends in n, r or l and none starts with them, so the split of a name is unique.
SYLLABLES = tuple(
    (onset + vowel + "nrl"[(i + j) % 3]).title()
    for i, onset in enumerate(ONSETS)
    for j, vowel in enumerate("aeiou")
)
SyllablePools = tuple[Sequence[str], Sequence[str]]  # for the first and second syllable of a name
MAX_DRAWS = 100_000  # of one name; then hardly any is left
NEAR_SYLLABLE_SHARE = 0.5  # fraction of syllables of a regenerated world's names from taught names


def draw_name(
    kind: str,
    rng: random.Random,
    near_pools: SyllablePools | None = None,
    others: Sequence[str] = SYLLABLES,
) -> str:
    """Draw a name, as in `Bran Tel` for a person and `BranTel` for anything else. A fraction of the
    syllables comes from `near_pools`, the rest from `others`."""
    pools: Sequence[Sequence[str]] = (others, others)
    if near_pools:
        pools = [pool if rng.random() < NEAR_SYLLABLE_SHARE else others for pool in near_pools]
    return (" " if kind == "person" else "").join(rng.choices(pool)[0] for pool in pools)


def draw_unused_name(
    kind: str,
    rng: random.Random,
    used: set[str],
    near_pools: SyllablePools | None = None,
    others: Sequence[str] = SYLLABLES,
) -> str:
    """Draw a name that is not in `used`, and add it to `used`. Raises UserError if the names are
    used up."""
    for _ in range(MAX_DRAWS):
        if (name := draw_name(kind, rng, near_pools, others)) not in used:
            used.add(name)
            return name
    raise UserError(
        f"the names of the world are used up by {len(used)} of them: lower its number of people or"
        " notes."
    )
