"""Selection and encoding of the trajectories embedded in the report page.

The page cannot contain all trajectories, so it includes whole questions with the trajectories of
every stage, alternating between questions that the last stage answered wrong and correctly. They
are compressed JSON lines, because a hundred trajectories in this form take the space of twenty as
HTML; base64 has no character that a browser could interpret as markup.
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

from fieldcraft.records.costs import count_policy_tokens
from fieldcraft.records.training_rollouts import TrainingRollout
from fieldcraft.records.transcript import build_transcript, strip_control_characters
from fieldcraft.types import Author, Task, Trajectory

MAX_PACKED_BYTES = 1_200_000  # packed trajectories, in bytes; the page stays below 2 MB
_MAX_BLOCK_CHARACTERS = 4_000
_MAX_SEGMENT_TOKENS = 1_000
_POLICY_AUTHORS: AbstractSet[Author] = frozenset({Author.POLICY})


@dataclass(frozen=True, slots=True)
class PageContext:
    """Information that the page requires about the run of its trajectories: the text of a token,
    the trained segments of each stage, and, relative to the page, the trajectory files by
    evaluation, the metrics files by stage, and the page with data examples. `commands` show the
    trajectories of an evaluation, without the number; by default they refer to the folder of the
    page."""

    decode_token: Callable[[int], str] | None = None
    trained_authors: Mapping[str, AbstractSet[Author]] = field(default_factory=dict)
    trajectories: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, str] = field(default_factory=dict)
    examples: str | None = None
    commands: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PackedTrajectories:
    """Packed trajectories: `text` is JSON lines, compressed by gzip, in base64. `included` and
    `total` count evaluation trajectories by stage; `training_stages` names the stages with training
    rollouts."""

    text: str
    included: dict[str, int]
    total: dict[str, int]
    training_stages: list[str]


@dataclass(frozen=True, slots=True)
class PageTrajectory:
    """A trajectory and its origin: its `number` in the file of its evaluation, or the training
    `step` that sampled it, with the advantages of its tokens."""

    stage: str
    origin: Mapping[str, int]
    trajectory: Trajectory
    advantages: Sequence[float] | None = None


def pack_trajectories(
    samples: Mapping[str, Sequence[Trajectory]],
    page_context: PageContext,
    training: Mapping[str, Sequence[TrainingRollout]] = MappingProxyType({}),
    max_bytes: int = MAX_PACKED_BYTES,
) -> PackedTrajectories:
    """Pack up to `max_bytes` bytes: at most a quarter for groups of training rollouts, the rest for
    questions, each with its trajectories of all stages."""
    packer = _TrajectoryPacker(page_context)
    training_entries = list(
        chain.from_iterable(
            takewhile(packer.add_within(max_bytes // 4), _interleave_groups(training))
        )
    )
    entries = list(
        chain.from_iterable(takewhile(packer.add_within(max_bytes), _interleave_questions(samples)))
    )
    return PackedTrajectories(
        packer.text(),
        {stage: sum(entry.stage == stage for entry in entries) for stage in samples},
        {stage: len(part) for stage, part in samples.items()},
        list(dict.fromkeys(entry.stage for entry in training_entries)),
    )


class _TrajectoryPacker:
    """Incremental compressor of JSON lines, which tracks the available space."""

    def __init__(self, page_context: PageContext) -> None:
        self.page_context = page_context
        self.compressor = zlib.compressobj(wbits=31)  # 31: with a gzip header
        self.token_texts: dict[int, str] = {}
        self.compressed = b""

    def add_within(self, max_bytes: int) -> Callable[[Iterable[PageTrajectory]], bool]:
        """Return a function that adds the trajectories of a question and returns whether they
        fit."""

        def add(entries: Iterable[PageTrajectory]) -> bool:
            token_texts = dict(self.token_texts)
            lines = _make_lines(list(entries), self.page_context, token_texts)
            text = "".join(f"{_dump_line(line)}\n" for line in lines)
            trial = self.compressor.copy()
            added = trial.compress(text.encode(errors="replace")) + trial.flush(zlib.Z_SYNC_FLUSH)
            # base64 encodes 3 bytes as 4
            if len(self.compressed) + len(added) > max_bytes * 3 // 4 - 100:
                return False
            self.compressor, self.token_texts = trial, token_texts
            self.compressed += added
            return True

        return add

    def text(self) -> str:
        return base64.b64encode(self.compressed + self.compressor.flush()).decode()


def _interleave_groups(
    training: Mapping[str, Sequence[TrainingRollout]],
) -> Iterator[list[PageTrajectory]]:
    """Yield groups of the stages alternately: groups of the first and the last step, of one between
    them, and so on."""
    stages = []
    for stage, rollouts in training.items():
        steps: dict[int, list[PageTrajectory]] = {}
        for rollout in rollouts:
            entry = PageTrajectory(
                stage, {"step": rollout.step}, rollout.trajectory, rollout.advantages
            )
            steps.setdefault(rollout.step, []).append(entry)
        groups, n = list(steps.values()), len(steps)
        strides = (max(1, (n - 1) >> halved) for halved in range(n.bit_length() + 1))
        order = dict.fromkeys(chain.from_iterable(range(0, n, stride) for stride in strides))
        stages.append([groups[index] for index in order])
    interleaved = chain.from_iterable(zip_longest(*stages))
    return (group for group in interleaved if group is not None)


def _interleave_questions(
    samples: Mapping[str, Sequence[Trajectory]],
) -> Iterator[list[PageTrajectory]]:
    """Yield the trajectories question by question. Questions whose last trajectory is wrong or not
    gradable alternate with correctly answered ones."""
    questions: dict[str, list[PageTrajectory]] = {}
    for stage, trajectories in samples.items():
        for number, trajectory in enumerate(trajectories):
            entry = PageTrajectory(stage, {"number": number}, trajectory)
            questions.setdefault(trajectory.task.id, []).append(entry)
    correct = [q for q in questions.values() if q[-1].trajectory.is_correct]
    other = [q for q in questions.values() if not q[-1].trajectory.is_correct]
    interleaved = chain.from_iterable(zip_longest(other, correct))
    return (question for question in interleaved if question is not None)


def _make_lines(
    entries: Sequence[PageTrajectory], page_context: PageContext, token_texts: dict[int, str]
) -> Iterator[dict[str, Any]]:
    """Yield the tokens that do not occur in earlier lines, the question, and its trajectories."""
    if page_context.decode_token is not None:
        ids = {i for entry in entries for i in entry.trajectory.ids}
        new = {
            i: strip_control_characters(page_context.decode_token(i))
            for i in sorted(ids - token_texts.keys())
        }
        token_texts |= new
        yield {"pieces": new}
    yield {"question": _question_payload(entries[0].trajectory.task)}
    for entry in entries:
        tokens = (
            {}
            if page_context.decode_token is None
            else {"segments": list(_segment_payloads(entry, page_context))}
        )
        yield {
            "stage": entry.stage,
            **entry.origin,
            **_trajectory_payload(entry.trajectory),
            **tokens,
        }


def _question_payload(task: Task) -> dict[str, Any]:
    names = ("hops", "split")
    tags: dict[str, str] = {
        k: strip_control_characters(str(task.meta[k])) for k in names if k in task.meta
    }
    return {
        "id": strip_control_characters(task.id),
        "text": strip_control_characters(task.question),
        "gold": [strip_control_characters(answer) for answer in task.answers],
        "optimum": task.meta.get("calls_optimal"),
        "known": task.is_known,
        **tags,
    }


def _trajectory_payload(trajectory: Trajectory) -> dict[str, Any]:
    return {
        "grade": {None: "ungraded", True: "right", False: "wrong"}[trajectory.is_correct],
        "status": trajectory.status.value,
        "answer": None
        if trajectory.answer is None
        else strip_control_characters(trajectory.answer),
        "error": strip_control_characters(trajectory.error),
        "calls": trajectory.num_executed_calls,
        "tokens": count_policy_tokens(trajectory),
        **({"folds": len(trajectory.folds)} if trajectory.folds else {}),
        "rewards": {
            strip_control_characters(name): _round_finite(value)
            for name, value in trajectory.rewards.items()
        },
        "blocks": [
            [
                entry.kind.value,
                entry.label,
                entry.text[:_MAX_BLOCK_CHARACTERS],
                max(0, len(entry.text) - _MAX_BLOCK_CHARACTERS),
            ]
            for entry in build_transcript(trajectory)
        ],
    }


def _segment_payloads(entry: PageTrajectory, page_context: PageContext) -> Iterator[dict[str, Any]]:
    """Yield the segments of a trajectory in the format of the page. Two digits of a log-probability
    suffice for display."""
    trained = page_context.trained_authors.get(entry.stage, _POLICY_AUTHORS)
    start = 0
    for index, segment in enumerate(entry.trajectory.segments):
        ids = segment.ids[:_MAX_SEGMENT_TOKENS]
        logprobs = [_round_finite(value, 2) for value in segment.logprobs[:_MAX_SEGMENT_TOKENS]]
        advantages = []
        if segment.author in trained and entry.advantages is not None:
            values = entry.advantages[start : start + len(ids)]
            advantages = [_round_finite(value, 3) for value in values]
        start += len(segment.ids)
        if ids:
            yield {
                "author": segment.author.value,
                "trained": segment.author in trained,
                "ids": ids,
                "more": len(segment.ids) - len(ids),
                **({"begins": True} if index in entry.trajectory.folds else {}),
                **({"logprobs": logprobs} if logprobs else {}),
                **({"advantages": advantages} if advantages else {}),
            }


def _round_finite(value: float | None, digits: int = 6) -> float | None:
    return None if value is None or not isfinite(value) else float(f"{value:.{digits}g}")


def _dump_line(line: dict[str, Any]) -> str:
    return json.dumps(line, ensure_ascii=False, separators=(",", ":"))
