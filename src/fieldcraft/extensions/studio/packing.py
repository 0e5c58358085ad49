"""Selection and compression of the trajectories in a report page.

The page cannot contain all trajectories, so it includes whole questions with the trajectories of
every stage, alternating between questions that the last stage answered wrong and correctly. They
are compressed JSON lines, because a hundred trajectories in this form take the space of twenty as
HTML; base64 has no character that a browser could interpret as markup.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import chain, takewhile, zip_longest
from types import MappingProxyType
from typing import Any

from fieldcraft.evaluation.pages import PageContext
from fieldcraft.extensions.studio.payload import (
    PayloadLimits,
    describe_segments,
    make_trajectory_payload,
)
from fieldcraft.records.files import replace_nonfinite
from fieldcraft.records.training_rollouts import TrainingRollout
from fieldcraft.records.transcript import strip_control_characters
from fieldcraft.types import Author, Trajectory

MAX_PACKED_BYTES = 1_200_000  # packed trajectories, in bytes; the page stays below 2 MB
PACKED_LIMITS = PayloadLimits(characters=4_000, tokens=1_000, digits=2)
_POLICY_AUTHORS: AbstractSet[Author] = frozenset({Author.POLICY})


@dataclass(frozen=True, slots=True)
class PackedTrajectories:
    """Packed trajectories: `text` is JSON lines, compressed by gzip, in base64. `included` and
    `total` count evaluation trajectories by stage."""

    text: str
    included: dict[str, int]
    total: dict[str, int]


@dataclass(frozen=True, slots=True)
class PageTrajectory:
    """A trajectory and its origin: its stage, its number in the file of its evaluation or of its
    training step, and the values added by training."""

    stage: str
    number: int
    trajectory: Trajectory
    rollout: TrainingRollout | None = None


def pack_trajectories(
    run: str,
    samples: Mapping[str, Sequence[Trajectory]],
    page_context: PageContext,
    training: Mapping[str, Sequence[TrainingRollout]] = MappingProxyType({}),
    max_bytes: int = MAX_PACKED_BYTES,
) -> PackedTrajectories:
    """Pack up to `max_bytes` bytes: at most a quarter for groups of training rollouts, the rest for
    questions, each with its trajectories of all stages."""
    packer = _TrajectoryPacker(run, page_context)
    for group in _interleave_groups(training):
        if not packer.add(group, max_bytes // 4):
            break
    questions = takewhile(lambda question: packer.add(question, max_bytes), _interleave(samples))
    included = Counter(entry.stage for entry in chain.from_iterable(questions))
    return PackedTrajectories(
        packer.text(),
        {stage: included[stage] for stage in samples},
        {stage: len(part) for stage, part in samples.items()},
    )


class _TrajectoryPacker:
    """Incremental compressor of JSON lines, which tracks the available space."""

    def __init__(self, run: str, page_context: PageContext) -> None:
        self.run = run
        self.page_context = page_context
        self.compressor = zlib.compressobj(wbits=31)  # 31: with a gzip header
        self.known_ids: set[int] = set()
        self.compressed = b""

    def add(self, entries: Sequence[PageTrajectory], max_bytes: int) -> bool:
        """Add the trajectories of a question if they fit. Return whether they do."""
        ids = {i for entry in entries for i in entry.trajectory.ids}
        text = "".join(map(_dump_line, self._make_lines(entries, ids - self.known_ids)))
        trial = self.compressor.copy()
        added = trial.compress(text.encode(errors="replace")) + trial.flush(zlib.Z_SYNC_FLUSH)
        # base64 encodes 3 bytes as 4
        if len(self.compressed) + len(added) > max_bytes * 3 // 4 - 100:
            return False
        self.compressor = trial
        self.known_ids |= ids
        self.compressed += added
        return True

    def _make_lines(
        self, entries: Iterable[PageTrajectory], new_ids: Iterable[int]
    ) -> Iterator[dict[str, Any]]:
        """Yield the texts of the tokens that do not occur in earlier lines, and the
        trajectories."""
        decode = self.page_context.decode_token
        if decode is not None:
            yield {"pieces": {i: strip_control_characters(decode(i)) for i in sorted(new_ids)}}
        for entry in entries:
            yield self._make_payload(entry, decode)

    def _make_payload(
        self, entry: PageTrajectory, decode: Callable[[int], str] | None
    ) -> dict[str, Any]:
        kind = "evaluation" if entry.rollout is None else "training"
        origin = {"run": self.run, "part": entry.stage, "kind": kind, "number": entry.number}
        authors = self.page_context.trained_authors.get(entry.stage, _POLICY_AUTHORS)
        segments = (
            []
            if decode is None
            else describe_segments(entry.trajectory, entry.rollout, authors, PACKED_LIMITS)
        )
        command = None
        if entry.rollout is None:
            default = f"fieldcraft show . --stage {entry.stage}"
            command = self.page_context.commands.get(entry.stage, default)
            command += f" --index {entry.number}"
        return make_trajectory_payload(
            origin, entry.trajectory, entry.rollout, segments, command, PACKED_LIMITS
        )

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
            group = steps.setdefault(rollout.step, [])
            group.append(PageTrajectory(stage, len(group), rollout.trajectory, rollout))
        groups, n = list(steps.values()), len(steps)
        strides = (max(1, (n - 1) >> halved) for halved in range(n.bit_length() + 1))
        order = dict.fromkeys(chain.from_iterable(range(0, n, stride) for stride in strides))
        stages.append([groups[index] for index in order])
    interleaved = chain.from_iterable(zip_longest(*stages))
    return (group for group in interleaved if group is not None)


def _interleave(samples: Mapping[str, Sequence[Trajectory]]) -> Iterator[list[PageTrajectory]]:
    """Yield the trajectories question by question. Questions whose last trajectory is wrong or not
    gradable alternate with correctly answered ones."""
    questions: dict[str, list[PageTrajectory]] = {}
    for stage, trajectories in samples.items():
        for number, trajectory in enumerate(trajectories):
            entry = PageTrajectory(stage, number, trajectory)
            questions.setdefault(trajectory.task.id, []).append(entry)
    correct = [q for q in questions.values() if q[-1].trajectory.is_correct]
    other = [q for q in questions.values() if not q[-1].trajectory.is_correct]
    interleaved = chain.from_iterable(zip_longest(other, correct))
    return (question for question in interleaved if question is not None)


def _dump_line(line: dict[str, Any]) -> str:
    return json.dumps(replace_nonfinite(line), ensure_ascii=False, separators=(",", ":")) + "\n"
