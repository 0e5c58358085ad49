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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import chain, takewhile, zip_longest
from math import isfinite
from types import MappingProxyType
from typing import Any

from fieldcraft.records.costs import policy_tokens
from fieldcraft.records.rollouts import Kept
from fieldcraft.records.transcript import clean, transcript
from fieldcraft.types import Author, Task, Trajectory

BUDGET = 1_200_000  # bytes of the packed trajectories in the page, which stays below 2 MB
_BLOCK_CHARACTERS = 4_000
_SEGMENT_TOKENS = 1_000
_POLICY: AbstractSet[Author] = frozenset({Author.POLICY})


@dataclass(frozen=True, slots=True)
class Source:
    """Facts that the page has to know of the run that trajectories are from: how a token is
    written, whose tokens each stage trains, and, relative to the page, the files of trajectories by
    evaluation and of metrics by stage, and the page with examples of the data. `commands` show the
    trajectories of an evaluation, without the number; by default they are for the folder of the
    page."""

    piece: Callable[[int], str] | None = None
    trained: Mapping[str, AbstractSet[Author]] = field(default_factory=dict)
    trajectories: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, str] = field(default_factory=dict)
    examples: str | None = None
    commands: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Packed:
    """Packed trajectories: `text` is JSON lines, compressed by gzip, in base64. `kept` and `total`
    count trajectories by stage, those of training apart: `trained` names the stages that they are
    of."""

    text: str
    kept: dict[str, int]
    total: dict[str, int]
    trained: list[str]


@dataclass(frozen=True, slots=True)
class Entry:
    """A trajectory and where it is from: the `number` in the file of its evaluation, or the `step`
    of training that it was sampled for, with the advantages of its tokens."""

    stage: str
    origin: Mapping[str, int]
    trajectory: Trajectory
    advantages: Sequence[float] | None = None


def pack(
    samples: Mapping[str, Sequence[Trajectory]],
    source: Source,
    training: Mapping[str, Sequence[Kept]] = MappingProxyType({}),
    budget: int = BUDGET,
) -> Packed:
    """Pack as much as `budget` bytes hold: in at most a quarter of them groups of training
    rollouts, and questions, each with its trajectories of all stages."""
    packing = _Packing(source)
    trained = list(chain.from_iterable(takewhile(packing.room(budget // 4), _groups(training))))
    shown = list(chain.from_iterable(takewhile(packing.room(budget), _in_turn(samples))))
    return Packed(
        packing.text(),
        {stage: sum(entry.stage == stage for entry in shown) for stage in samples},
        {stage: len(part) for stage, part in samples.items()},
        list(dict.fromkeys(entry.stage for entry in trained)),
    )


class _Packing:
    """JSON lines that are compressed as they come, to know how many have room."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.packer = zlib.compressobj(wbits=31)  # 31: with the header of gzip
        self.pieces: dict[int, str] = {}
        self.packed = b""

    def room(self, budget: int) -> Callable[[Iterable[Entry]], bool]:
        """Return a function that adds the trajectories of a question, and tells whether they had
        room."""

        def add(question: Iterable[Entry]) -> bool:
            pieces = dict(self.pieces)
            lines = _lines(list(question), self.source, pieces)
            text = "".join(f"{_json(line)}\n" for line in lines)
            trial = self.packer.copy()
            added = trial.compress(text.encode(errors="replace")) + trial.flush(zlib.Z_SYNC_FLUSH)
            # base64 writes 3 bytes as 4
            if len(self.packed) + len(added) > budget * 3 // 4 - 100:
                return False
            self.packer, self.pieces = trial, pieces
            self.packed += added
            return True

        return add

    def text(self) -> str:
        return base64.b64encode(self.packed + self.packer.flush()).decode()


def _groups(training: Mapping[str, Sequence[Kept]]) -> Iterator[list[Entry]]:
    """Yield the groups of every stage in turn: those of the first and the last step, of one between
    them, and so on."""
    stages = []
    for stage, kept in training.items():
        steps: dict[int, list[Entry]] = {}
        for one in kept:
            entry = Entry(stage, {"step": one.step}, one.trajectory, one.advantages)
            steps.setdefault(one.step, []).append(entry)
        groups, n = list(steps.values()), len(steps)
        strides = (max(1, (n - 1) >> halved) for halved in range(n.bit_length() + 1))
        order = dict.fromkeys(chain.from_iterable(range(0, n, stride) for stride in strides))
        stages.append([groups[place] for place in order])
    turns = chain.from_iterable(zip_longest(*stages))
    return (group for group in turns if group is not None)


def _in_turn(samples: Mapping[str, Sequence[Trajectory]]) -> Iterator[list[Entry]]:
    """Yield the trajectories of one question after the other. Questions whose last trajectory is
    wrong, or cannot be graded, take turns with those where it is right."""
    questions: dict[str, list[Entry]] = {}
    for stage, trajectories in samples.items():
        for number, trajectory in enumerate(trajectories):
            entry = Entry(stage, {"number": number}, trajectory)
            questions.setdefault(trajectory.task.id, []).append(entry)
    right = [q for q in questions.values() if q[-1].trajectory.right]
    other = [q for q in questions.values() if not q[-1].trajectory.right]
    turns = chain.from_iterable(zip_longest(other, right))
    return (question for question in turns if question is not None)


def _lines(
    question: Sequence[Entry], source: Source, pieces: dict[int, str]
) -> Iterator[dict[str, Any]]:
    """Yield the tokens that no line before had, the question, and its trajectories."""
    if source.piece is not None:
        ids = {i for entry in question for i in entry.trajectory.ids}
        new = {i: clean(source.piece(i)) for i in sorted(ids - pieces.keys())}
        pieces |= new
        yield {"pieces": new}
    yield {"question": _question(question[0].trajectory.task)}
    for entry in question:
        tokens = {} if source.piece is None else {"segments": list(_segments(entry, source))}
        yield {"stage": entry.stage, **entry.origin, **_view(entry.trajectory), **tokens}


def _question(task: Task) -> dict[str, Any]:
    names = ("hops", "split")
    tags: dict[str, str] = {k: clean(str(task.meta[k])) for k in names if k in task.meta}
    return {
        "id": clean(task.id),
        "text": clean(task.question),
        "gold": [clean(answer) for answer in task.answers],
        "optimum": task.meta.get("calls_optimal"),
        "known": task.is_known,
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
        **({"folds": len(trajectory.folds)} if trajectory.folds else {}),
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


def _segments(entry: Entry, source: Source) -> Iterator[dict[str, Any]]:
    """Yield the segments of a trajectory as the page reads them. Two digits of a log-probability
    say all that a reader wants to know of it."""
    trained = source.trained.get(entry.stage, _POLICY)
    begin = 0
    for place, segment in enumerate(entry.trajectory.segments):
        ids = segment.ids[:_SEGMENT_TOKENS]
        logprobs = [_finite(value, 2) for value in segment.logprobs[:_SEGMENT_TOKENS]]
        advantages = []
        if segment.author in trained and entry.advantages is not None:
            found = entry.advantages[begin : begin + len(ids)]
            advantages = [_finite(value, 3) for value in found]
        begin += len(segment.ids)
        if ids:
            yield {
                "author": segment.author.value,
                "trained": segment.author in trained,
                "ids": ids,
                "more": len(segment.ids) - len(ids),
                **({"begins": True} if place in entry.trajectory.folds else {}),
                **({"logprobs": logprobs} if logprobs else {}),
                **({"advantages": advantages} if advantages else {}),
            }


def _finite(value: float | None, digits: int = 6) -> float | None:
    return None if value is None or not isfinite(value) else float(f"{value:.{digits}g}")


def _json(line: dict[str, Any]) -> str:
    return json.dumps(line, ensure_ascii=False, separators=(",", ":"))
