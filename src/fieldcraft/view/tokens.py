"""Tokens as a reader sees them: their texts, their authors, and what is known of each."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from math import isfinite
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from fieldcraft.records.reading import reading
from fieldcraft.records.rollouts import Kept
from fieldcraft.records.transcript import clean
from fieldcraft.types import Segment, Trajectory

DIGITS = 4


@lru_cache(maxsize=8)
def load_tokenizer(path: Path) -> Tokenizer:
    """Load the tokenizer in a file. Raises UserError for a file that holds none."""
    with reading(path, "restore it, and the page shows the texts of tokens again"):
        return Tokenizer.from_file(str(path))


def pieces(tokenizer: Tokenizer | None, ids: Sequence[int]) -> list[str]:
    """Return the text of each token. A character of several tokens stands at the last of them.
    Without a tokenizer it is the id."""
    if tokenizer is None:
        return [f"{i} " for i in ids]
    stream = DecodeStream(skip_special_tokens=False)
    return [clean(stream.step(tokenizer, i) or "") for i in ids]


def segments(
    trajectory: Trajectory,
    kept: Kept | None,
    trained: Collection[str],
    tokenizer: Tokenizer | None,
) -> list[dict[str, Any]]:
    """Return the segments of a trajectory with all known values of each token."""
    texts = pieces(tokenizer, trajectory.ids)
    found, begin = [], 0
    for place, segment in enumerate(trajectory.segments):
        end = begin + len(segment.ids)
        starts = place == 0 or place in trajectory.folds
        mask = trained_tokens(segment, segment.author.value in trained, starts)
        known = {
            "logprobs": [_short(value) for value in segment.logprobs],
            "versions": [version for version, count in segment.versions for _ in range(count)],
            **_of_training(kept, begin, mask),
        }
        found.append(
            {
                "author": segment.author.value,
                "begins": starts,
                "ids": segment.ids,
                "pieces": texts[begin:end],
                "trained": [int(value) for value in mask],
                **{name: values for name, values in known.items() if values},
            }
        )
        begin = end
    return found


def trained_tokens(segment: Segment, trained: bool, starts: bool) -> list[bool]:
    """Return for each token of a segment whether it is trained, if its author is. As in
    `train/batch.py`, the first token of a chain and those whose log-probability is not finite are
    not."""
    mask = [trained and isfinite(p) for p in segment.logprobs or [0.0] * len(segment.ids)]
    return [False, *mask[1:]] if starts and mask else mask


def _of_training(
    kept: Kept | None, begin: int, mask: Sequence[bool]
) -> dict[str, list[float | None]]:
    """Return the values that training added, for the tokens that it trained."""
    if kept is None or not any(mask):
        return {}
    columns = {"advantages": kept.advantages, "entropies": kept.entropies, "ratios": kept.ratios}
    return {
        name: [
            _short(value) if is_trained else None
            for value, is_trained in zip(values[begin:], mask, strict=False)
        ]
        for name, values in columns.items()
        if values is not None
    }


def _short(value: float) -> float | None:
    return round(value, DIGITS) if isfinite(value) else None
