"""Tokens for the page: their texts, authors and recorded values."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from math import isfinite
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from fieldcraft.records.reading import raise_read_errors
from fieldcraft.records.training_rollouts import TrainingRollout
from fieldcraft.records.transcript import strip_control_characters
from fieldcraft.types import Segment, Trajectory

ROUND_DIGITS = 4


@lru_cache(maxsize=8)
def load_tokenizer(path: Path) -> Tokenizer:
    """Load the tokenizer in a file. Raises UserError for a file without a tokenizer."""
    with raise_read_errors(path, "restore it, and the page shows the texts of tokens again"):
        return Tokenizer.from_file(str(path))


def decode_tokens(tokenizer: Tokenizer | None, ids: Sequence[int]) -> list[str]:
    """Return the text of each token, or its id without a tokenizer. A character of several tokens
    is assigned to the last of them."""
    if tokenizer is None:
        return [f"{i} " for i in ids]
    stream = DecodeStream(skip_special_tokens=False)
    return [strip_control_characters(stream.step(tokenizer, i) or "") for i in ids]


def describe_segments(
    trajectory: Trajectory,
    rollout: TrainingRollout | None,
    trained_authors: Collection[str],
    tokenizer: Tokenizer | None,
) -> list[dict[str, Any]]:
    """Return the segments of a trajectory with all known values of each token."""
    texts = decode_tokens(tokenizer, trajectory.ids)
    described, start = [], 0
    for index, segment in enumerate(trajectory.segments):
        end = start + len(segment.ids)
        starts_chain = index == 0 or index in trajectory.folds
        mask = make_trained_mask(segment, segment.author.value in trained_authors, starts_chain)
        token_values = {
            "logprobs": [_round_finite(value) for value in segment.logprobs],
            "versions": [version for version, count in segment.versions for _ in range(count)],
            **_get_training_values(rollout, start, mask),
        }
        described.append(
            {
                "author": segment.author.value,
                "begins": starts_chain,
                "ids": segment.ids,
                "pieces": texts[start:end],
                "trained": [int(value) for value in mask],
                **{name: values for name, values in token_values.items() if values},
            }
        )
        start = end
    return described


def make_trained_mask(segment: Segment, is_trained: bool, starts_chain: bool) -> list[bool]:
    """Return for each token of a segment whether it is trained. As in `train/batch.py`, the first
    token of a chain and tokens with a non-finite log-probability are excluded."""
    mask = [is_trained and isfinite(p) for p in segment.logprobs or [0.0] * len(segment.ids)]
    return [False, *mask[1:]] if starts_chain and mask else mask


def _get_training_values(
    rollout: TrainingRollout | None, start: int, mask: Sequence[bool]
) -> dict[str, list[float | None]]:
    """Return the values added by training, for the trained tokens."""
    if rollout is None or not any(mask):
        return {}
    columns = {
        "advantages": rollout.advantages,
        "entropies": rollout.entropies,
        "ratios": rollout.ratios,
    }
    return {
        name: [
            _round_finite(value) if is_trained else None
            for value, is_trained in zip(values[start:], mask, strict=False)
        ]
        for name, values in columns.items()
        if values is not None
    }


def _round_finite(value: float) -> float | None:
    return round(value, ROUND_DIGITS) if isfinite(value) else None
