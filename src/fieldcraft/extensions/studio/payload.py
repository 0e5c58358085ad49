"""Trajectories as JSON, for the live page and the report: columns, transcript, calls, tokens."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from math import isfinite
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from fieldcraft.dialects.incremental_decoding import IncrementalDecoder
from fieldcraft.extensions.studio.rows import make_row
from fieldcraft.records.reading import raise_read_errors
from fieldcraft.records.training_rollouts import TrainingRollout
from fieldcraft.records.transcript import build_transcript, strip_control_characters
from fieldcraft.types import Segment, Trajectory


@dataclass(frozen=True, slots=True)
class PayloadLimits:
    """Size of a payload: the longest text in characters, the longest segment in tokens, and the
    significant digits of the values of tokens. What is left out is counted in `more`."""

    characters: int | None = None
    tokens: int | None = None
    digits: int = 4

    def cut(self, text: str) -> str:
        """Return the beginning of a text, without control characters."""
        return strip_control_characters(text)[: self.characters]


NO_LIMITS = PayloadLimits()


def make_rollout_payload(
    origin: Mapping[str, Any],
    trajectory: Trajectory,
    rollout: TrainingRollout | None,
    limits: PayloadLimits = NO_LIMITS,
) -> dict[str, Any]:
    """Return a trajectory without its tokens: its columns in lists, and its transcript. `origin`
    has its run, part, kind and number."""
    task = trajectory.task
    return {
        **origin,
        **asdict(make_row(trajectory, rollout)),
        "task": strip_control_characters(task.id),
        "question": strip_control_characters(task.question),
        "accepted": [strip_control_characters(answer) for answer in task.answers],
        "answer": None if trajectory.answer is None else limits.cut(trajectory.answer),
        "error": limits.cut(trajectory.error),
        "transcript": [
            {
                "kind": entry.kind.value,
                "label": entry.label,
                "text": entry.text[: limits.characters],
            }
            | _count_more(len(entry.text), limits.characters)
            for entry in build_transcript(trajectory)
        ],
    }


def make_trajectory_payload(
    origin: Mapping[str, Any],
    trajectory: Trajectory,
    rollout: TrainingRollout | None,
    segments: Sequence[Mapping[str, Any]],
    command: str | None,
    limits: PayloadLimits = NO_LIMITS,
) -> dict[str, Any]:
    """Return a trajectory with its rewards, calls and tokens, and the command that shows it."""
    return make_rollout_payload(origin, trajectory, rollout, limits) | {
        "rewards": {
            strip_control_characters(name): value for name, value in trajectory.rewards.items()
        },
        "meta": {
            strip_control_characters(name): limits.cut(value) if isinstance(value, str) else value
            for name, value in trajectory.task.meta.items()
            if isinstance(value, str | int | float)
        },
        "call_records": [
            {
                "tool": strip_control_characters(call.tool),
                "arguments": _cut_texts(call.arguments, limits),
                "outcome": call.outcome.value,
                "seconds": call.seconds,
                "simulated": call.simulated,
            }
            for call in trajectory.calls
        ],
        "segments": segments,
        "command": command,
    }


def _cut_texts(arguments: Mapping[str, Any], limits: PayloadLimits) -> dict[str, Any]:
    return {
        name: limits.cut(value) if isinstance(value, str) else value
        for name, value in arguments.items()
    }


def _count_more(size: int, limit: int | None) -> dict[str, int]:
    """Return the number of characters or tokens that were left out, if any."""
    return {} if limit is None or size <= limit else {"more": size - limit}


# -- tokens --------------------------------------------------------------------------------------


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
    decoder = IncrementalDecoder(tokenizer)
    return [strip_control_characters(decoder.step(i)) for i in ids]


def describe_segments(
    trajectory: Trajectory,
    rollout: TrainingRollout | None,
    trained_authors: Collection[str],
    limits: PayloadLimits = NO_LIMITS,
) -> list[dict[str, Any]]:
    """Return the segments of a trajectory with all known values of each token."""
    described, start = [], 0
    for index, segment in enumerate(trajectory.segments):
        starts_chain = index == 0 or index in trajectory.folds
        mask = make_trained_mask(segment, segment.author.value in trained_authors, starts_chain)
        values: dict[str, Sequence[Any]] = {
            "ids": segment.ids,
            "trained": [int(value) for value in mask],
            "logprobs": [round_finite(value, limits.digits) for value in segment.logprobs],
            "versions": [version for version, count in segment.versions for _ in range(count)],
            **_get_training_values(rollout, start, mask, limits.digits),
        }
        described.append(
            {
                "author": segment.author.value,
                "begins": starts_chain,
                **{name: found[: limits.tokens] for name, found in values.items() if found},
                **_count_more(len(segment.ids), limits.tokens),
            }
        )
        start += len(segment.ids)
    return [segment for segment in described if "ids" in segment]


def add_texts(
    segments: Sequence[dict[str, Any]], decode: Callable[[Sequence[int]], list[str]]
) -> list[dict[str, Any]]:
    """Return the segments of a whole trajectory with the text of each token."""
    texts = iter(decode([i for segment in segments for i in segment["ids"]]))
    return [segment | {"pieces": [next(texts) for _ in segment["ids"]]} for segment in segments]


def make_trained_mask(segment: Segment, is_trained: bool, starts_chain: bool) -> list[bool]:
    """Return for each token of a segment whether it is trained. As in `train/batch.py`, the first
    token of a chain and tokens with a non-finite log-probability are excluded."""
    mask = [is_trained and isfinite(p) for p in segment.logprobs or [0.0] * len(segment.ids)]
    return [False, *mask[1:]] if starts_chain and mask else mask


def _get_training_values(
    rollout: TrainingRollout | None, start: int, mask: Sequence[bool], digits: int
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
            round_finite(value, digits) if is_trained else None
            for value, is_trained in zip(values[start:], mask, strict=False)
        ]
        for name, values in columns.items()
        if values is not None
    }


def round_finite(value: float | None, digits: int) -> float | None:
    """Return a number rounded to significant digits, None if it is not finite."""
    return None if value is None or not isfinite(value) else float(f"{value:.{digits}g}")
