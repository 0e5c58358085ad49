"""Rows of a list of trajectories: parsing of lines, and reading of files that may grow."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from math import isfinite
from statistics import fmean
from typing import Any, BinaryIO, NamedTuple

from pydantic import TypeAdapter

from fieldcraft.extensions.studio.run_view import TrajectoryFile, TrajectoryFileKind
from fieldcraft.records.costs import count_policy_tokens
from fieldcraft.records.reading import raise_read_errors
from fieldcraft.records.training_rollouts import TrainingRollout
from fieldcraft.records.trajectories import from_json, validate_trajectory
from fieldcraft.records.words import split_words
from fieldcraft.types import Author, Trajectory, UserError

CHUNK_BYTES = 64 * 1024  # bytes that are read in one step
_ROLLOUT_ADAPTER = TypeAdapter(TrainingRollout)


def parse_line(line: bytes, kind: TrajectoryFileKind) -> tuple[Trajectory, TrainingRollout | None]:
    """Return the trajectory, and the values added by training, if any. Raises ValueError for an
    invalid line."""
    if kind == "training":
        rollout = _ROLLOUT_ADAPTER.validate_json(line)
        return validate_trajectory(rollout.trajectory), rollout
    return from_json(line), None


@dataclass(frozen=True, slots=True)
class TrajectoryRow:
    """Columns to show, filter and sort in a list of trajectories; None if unknown or not
    gradable."""

    task: str
    question: str
    accepted: str
    answer: str | None
    split: str | None
    status: str
    right: bool | None
    calls: int
    reward: float | None
    tokens: int
    seconds: float
    chains: int
    step: int | None
    advantage: float | None
    version: int | None
    error: str
    hops: str | None
    known: bool | None
    excess: float | None


COLUMN_NAMES = [field.name for field in fields(TrajectoryRow)]


def make_row(trajectory: Trajectory, rollout: TrainingRollout | None) -> TrajectoryRow:
    """Return the columns of one trajectory. `advantage` is the mean over the policy's tokens,
    `version` is the newest, and `excess` are the calls above the least number that suffices."""
    task, calls = trajectory.task, trajectory.num_executed_calls
    versions = [v for segment in trajectory.segments for v, _ in segment.versions]
    split, hops, least = (task.meta.get(name) for name in ("split", "hops", "calls_optimal"))
    return TrajectoryRow(
        task=task.id,
        question=task.question,
        accepted=" | ".join(task.answers),
        answer=trajectory.answer,
        split=None if split is None else str(split),
        status=trajectory.status.value,
        right=trajectory.is_correct,
        calls=calls,
        reward=trajectory.reward,
        tokens=count_policy_tokens(trajectory),
        seconds=trajectory.seconds,
        chains=len(trajectory.folds) + 1,
        step=None if rollout is None else rollout.step,
        advantage=None if rollout is None else _compute_mean_advantage(trajectory, rollout),
        version=max(versions, default=None),
        error=trajectory.error,
        hops=None if hops is None else str(hops),
        known=task.is_known,
        excess=None if least is None else calls - least,
    )


def _compute_mean_advantage(trajectory: Trajectory, rollout: TrainingRollout) -> float | None:
    if rollout.advantages is None:
        return None
    is_policy = [s.author is Author.POLICY for s in trajectory.segments for _ in s.ids]
    advantages = [a for a, policy in zip(rollout.advantages, is_policy, strict=False) if policy]
    mean = fmean(advantages) if advantages else None
    return mean if mean is None or isfinite(mean) else None


def normalise_words(text: str) -> str:
    """Return the words of a text, which underscores separate, too, each between two spaces."""
    return f" {' '.join(split_words(text.replace('_', ' '), with_runs=False))} "


@dataclass(frozen=True, slots=True)
class ListedTrajectory:
    """Trajectory in a list: its row, the position of its line, and its searchable words. The
    trajectory itself stays on disk."""

    file: TrajectoryFile
    number: int
    offset: int
    size: int
    row: TrajectoryRow
    words: bytes

    @property
    def origin(self) -> dict[str, Any]:
        """Place of the trajectory on the page."""
        file = self.file
        return {"run": file.run, "part": file.part, "kind": file.kind, "number": self.number}

    def make_columns(self) -> dict[str, Any]:
        return self.origin | {name: getattr(self.row, name) for name in COLUMN_NAMES}

    def read(self) -> tuple[Trajectory, TrainingRollout | None]:
        """Return the trajectory, and the values added by training, if any. Raises UserError if the
        line no longer contains one."""
        with raise_read_errors(f"{self.file.path}, line {self.number + 1}", "reload the page"):
            return parse_line(self.read_line(), self.file.kind)

    def read_line(self) -> bytes:
        """Return the line. Raises UserError if the file cannot be read."""
        try:
            with self.file.path.open("rb") as file:
                file.seek(self.offset)
                return file.read(self.size)
        except OSError as error:
            raise UserError(
                f"{self.file.path} cannot be read ({error.strerror}): reload the page."
            ) from error


class FileStamp(NamedTuple):
    """State of a file; another one if its content has changed."""

    inode: int
    size: int
    changed: int

    @classmethod
    def make(cls, stat: os.stat_result) -> FileStamp:
        return cls(stat.st_ino, stat.st_size, stat.st_mtime_ns)


class FileReader:
    """Reader of a file that may grow. `trajectories` and `read_bytes` are what it has read, and
    `error` is about the first complete line without a trajectory, if any. One thread may read
    while others use the trajectories."""

    def __init__(self, file: TrajectoryFile) -> None:
        self.file = file
        self._restart()

    def _restart(self) -> None:
        self.trajectories: list[ListedTrajectory] = []
        self.read_bytes = 0
        self.unfinished_bytes = 0  # of a last line that is still being written
        self.error: str | None = None
        self._num_lines = 0
        self._is_line_ended = True
        self._last_stamp: FileStamp | None = None  # after the last reading
        self._end_stamp: FileStamp | None = None  # of a file without further complete lines

    def read_next_chunk(self) -> bool:
        """Read the next lines. Return whether `trajectories` may have changed. A file that was
        replaced or rewritten is read from its start, and a last line without its end is read once
        it contains a trajectory."""
        try:
            if FileStamp.make(self.file.path.stat()) == self._end_stamp:
                return False
            with self.file.path.open("rb") as file:
                stamp = FileStamp.make(os.fstat(file.fileno()))
                rewritten = self._is_rewritten(stamp) or self._has_other_end(file)
                if rewritten:
                    self._restart()
                file.seek(self.read_bytes)
                lines = file.readlines(CHUNK_BYTES)
                self._last_stamp = FileStamp.make(os.fstat(file.fileno()))
        except OSError:
            return False
        complete = [line for line in lines if line.endswith(b"\n")]
        for line in complete:
            self._add_line(line)
        self.unfinished_bytes = 0
        if not complete:
            self._end_stamp = stamp
            return any(map(self._add_unended_line, lines)) or rewritten
        return True

    def _has_other_end(self, file: BinaryIO) -> bool:
        """Return whether a line that was read without its end continues."""
        if self._is_line_ended:
            return False
        file.seek(self.read_bytes)
        return file.read(1) not in (b"", b"\n")

    def _is_rewritten(self, stamp: FileStamp) -> bool:
        if self._last_stamp is None:
            return False
        inode, _, changed = self._last_stamp
        has_other_lines = stamp.size == self.read_bytes and stamp.changed != changed
        return stamp.inode != inode or stamp.size < self.read_bytes or has_other_lines

    def _add_unended_line(self, line: bytes) -> bool:
        """Add the last line of a file if it contains a trajectory; return whether it does."""
        try:
            parse_line(line, self.file.kind)
        except ValueError:
            self.unfinished_bytes = len(line)
            return False
        self._add_line(line)
        return True

    def _add_line(self, line: bytes) -> None:
        offset, number = self.read_bytes, self._num_lines
        self.read_bytes += len(line)
        self._is_line_ended = line.endswith(b"\n")
        self._num_lines += self._is_line_ended
        if not line.strip():
            return
        try:
            trajectory, rollout = parse_line(line, self.file.kind)
            row = make_row(trajectory, rollout)
        except ValueError:
            error = f"{self.file.path}, line {number + 1} contains no trajectory."
            self.error = self.error or error
            return
        words = normalise_words("\n".join(s.text for s in trajectory.segments)).encode()
        self.trajectories.append(ListedTrajectory(self.file, number, offset, len(line), row, words))
