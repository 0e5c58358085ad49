"""The trajectories of the page: which of them it holds, and in what form.

The page cannot hold them all, so it takes whole questions with the trajectories of every stage, and
questions that the last stage got wrong and right in turn. They are JSON lines, packed, because a
hundred trajectories in that form take the room of twenty as HTML; base64 has no character that a
browser could take for markup.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from math import isfinite
from typing import Any

from fieldcraft.evals.metrics import policy_tokens
from fieldcraft.records.transcript import clean, transcript
from fieldcraft.types import Author, Segment, Task, Trajectory

BUDGET = 1_200_000  # bytes of the packed trajectories in the page, which stays below 2 MB
_BLOCK_CHARACTERS = 4_000
_SEGMENT_TOKENS = 1_000
_POLICY: AbstractSet[Author] = frozenset({Author.POLICY})


@dataclass(frozen=True, slots=True)
class Source:
    """What the page has to know of the run that trajectories are from: how a token is written,
    whose tokens each stage trains, and, relative to the page, the files of trajectories by
    evaluation and of metrics by stage."""

    piece: Callable[[int], str] | None = None
    trained: Mapping[str, AbstractSet[Author]] = field(default_factory=dict)
    trajectories: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Packed:
    """`text` is JSON lines, compressed by gzip, in base64. `kept` and `total` count trajectories by
    stage."""

    text: str
    kept: dict[str, int]
    total: dict[str, int]


Numbered = tuple[str, int, Trajectory]  # stage, place in the file of its evaluation


def pack(
    samples: Mapping[str, Sequence[Trajectory]], source: Source, budget: int = BUDGET
) -> Packed:
    """As many questions as `budget` bytes hold, each with its trajectories of all stages."""
    kept = dict.fromkeys(samples, 0)
    packer = zlib.compressobj(wbits=31)  # 31: with the header of gzip
    pieces: dict[int, str] = {}
    packed = b""
    for question in _in_turn(samples):
        text = "".join(f"{_json(line)}\n" for line in _lines(question, source, pieces))
        trial = packer.copy()
        added = trial.compress(text.encode(errors="replace")) + trial.flush(zlib.Z_SYNC_FLUSH)
        if len(packed) + len(added) > budget * 3 // 4 - 100:  # base64 writes 3 bytes as 4
            break
        packer = trial
        packed += added
        for stage, _, _ in question:
            kept[stage] += 1
    packed += packer.flush()
    total = {stage: len(part) for stage, part in samples.items()}
    return Packed(base64.b64encode(packed).decode(), kept, total)


def _in_turn(samples: Mapping[str, Sequence[Trajectory]]) -> Iterator[list[Numbered]]:
    """The trajectories of one question after the other; questions whose last trajectory is wrong,
    or cannot be graded, take turns with those where it is right."""
    questions: dict[str, list[Numbered]] = {}
    for stage, trajectories in samples.items():
        for number, trajectory in enumerate(trajectories):
            questions.setdefault(trajectory.task.id, []).append((stage, number, trajectory))
    right = [q for q in questions.values() if q[-1][2].right]
    other = [q for q in questions.values() if not q[-1][2].right]
    turns = chain.from_iterable(zip_longest(other, right))
    return (question for question in turns if question is not None)


def _lines(
    question: Sequence[Numbered], source: Source, pieces: dict[int, str]
) -> Iterator[dict[str, Any]]:
    """The tokens that no line before had, the question, and its trajectories."""
    if source.piece is not None:
        ids = {i for _, _, trajectory in question for i in trajectory.ids}
        new = {i: clean(source.piece(i)) for i in sorted(ids - pieces.keys())}
        pieces |= new
        yield {"pieces": new}
    yield {"question": _question(question[0][2].task)}
    for stage, number, trajectory in question:
        trained = source.trained.get(stage, _POLICY)
        segments = [_segment(s, trained) for s in trajectory.segments if s.ids]
        tokens = {"segments": segments} if source.piece is not None else {}
        yield {"stage": stage, "number": number, **_view(trajectory), **tokens}


def _question(task: Task) -> dict[str, Any]:
    names = ("hops", "split")
    tags: dict[str, str] = {k: clean(str(task.meta[k])) for k in names if k in task.meta}
    return {
        "id": clean(task.id),
        "text": clean(task.question),
        "gold": [clean(answer) for answer in task.answers],
        "optimum": task.meta.get("calls_optimal"),
        "known": task.meta.get("known"),
        **tags,
    }


def _view(trajectory: Trajectory) -> dict[str, Any]:
    return {
        "grade": {None: "ungraded", True: "right", False: "wrong"}[trajectory.right],
        "status": trajectory.status.value,
        "answer": None if trajectory.answer is None else clean(trajectory.answer),
        "error": clean(trajectory.error),
        "calls": trajectory.executed_calls,
        "tokens": policy_tokens(trajectory),
        "rewards": {clean(name): _finite(value) for name, value in trajectory.rewards.items()},
        "blocks": [
            [
                entry.kind.value,
                entry.label,
                entry.text[:_BLOCK_CHARACTERS],
                max(0, len(entry.text) - _BLOCK_CHARACTERS),
            ]
            for entry in transcript(trajectory)
        ],
    }


def _segment(segment: Segment, trained: AbstractSet[Author]) -> dict[str, Any]:
    """Two digits of a log-probability say all that a reader wants to know of it."""
    ids = segment.ids[:_SEGMENT_TOKENS]
    logprobs = [_finite(value, 2) for value in segment.logprobs[:_SEGMENT_TOKENS]]
    return {
        "author": segment.author.value,
        "trained": segment.author in trained,
        "ids": ids,
        "more": len(segment.ids) - len(ids),
        **({"logprobs": logprobs} if logprobs else {}),
    }


def _finite(value: float | None, digits: int = 6) -> float | None:
    return None if value is None or not isfinite(value) else float(f"{value:.{digits}g}")


def _json(line: dict[str, Any]) -> str:
    return json.dumps(line, ensure_ascii=False, separators=(",", ":"))
