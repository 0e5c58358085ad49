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
    """Raises UserError for a file that holds none."""
    with reading(path, "restore it, and the page shows the texts of tokens again"):
        return Tokenizer.from_file(str(path))


def pieces(tokenizer: Tokenizer | None, ids: Sequence[int]) -> list[str]:
    """The text of each token. A character of several tokens stands at the last of them. Without a
    tokenizer it is the id."""
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
    """The segments of a trajectory with a value for each token of what is known of it."""
    texts = pieces(tokenizer, trajectory.ids)
    found, begin = [], 0
    for place, segment in enumerate(trajectory.segments):
        end = begin + len(segment.ids)
        starts = place == 0 or place in trajectory.folds
        known = {
            "logprobs": [_short(value) for value in segment.logprobs],
            "versions": [version for version, count in segment.versions for _ in range(count)],
            **_of_training(kept, begin, end),
        }
        found.append(
            {
                "author": segment.author.value,
                "begins": starts,
                "ids": segment.ids,
                "pieces": texts[begin:end],
                "trained": _mask(segment, segment.author.value in trained, starts),
                **{name: values for name, values in known.items() if values},
            }
        )
        begin = end
    return found


def _mask(segment: Segment, trained: bool, starts: bool) -> list[int]:
    """1 for each token that is trained. As in `train/batch.py`, the first token of a chain and
    tokens whose log-probability is not finite are not."""
    mask = [int(trained and isfinite(p)) for p in segment.logprobs or [0.0] * len(segment.ids)]
    return [0, *mask[1:]] if starts and mask else mask


def _of_training(kept: Kept | None, begin: int, end: int) -> dict[str, list[float | None]]:
    if kept is None:
        return {}
    columns = {"advantages": kept.advantages}
    return {
        name: [_short(value) for value in values[begin:end]]
        for name, values in columns.items()
        if values is not None
    }


def _short(value: float) -> float | None:
    return round(value, DIGITS) if isfinite(value) else None
