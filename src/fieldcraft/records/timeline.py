"""Times at which sampler, trainer and tools were at work in each step of a stage.

A step has one short record, whatever it did. The trainer does one thing at a time, so its phases
are kept as they were. Turns and calls are many and side by side, so of the sampler and of the tools
it is kept how many rollouts they were busy with, in each of SLOTS equal parts of the step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from fieldcraft.records.files import append_text
from fieldcraft.records.reading import reading
from fieldcraft.records.remedies import put_aside

TIMELINE = "timeline.jsonl"  # the file in the folder of a stage
SLOTS = 60
Phase = Literal["wait", "train", "publish"]
Lane = Literal["sampler", "tools"]
Span = tuple[float, float]  # begin and end, of one clock


@dataclass(frozen=True)
class StepTimes:
    """A step from the end of the one before it to its own end.

    `began` is the time of day in seconds since 1970. `trainer` has phases, each with its begin and
    end in seconds since then: `wait` for rollouts, `train`, `publish` weights. What lies between
    them is for checkpoints and evaluations. `sampler` and `tools` have the mean number of rollouts
    that wrote a turn, or waited for a call, in each slot.
    """

    step: int
    began: float
    seconds: float
    trainer: list[tuple[Phase, float, float]]
    sampler: list[float]
    tools: list[float]


class Timeline:
    """Measures one step after the other. Spans of rollouts may end after their step."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.begin: float | None = None
        self.phases: list[tuple[Phase, float, float]] = []
        self.done: dict[Lane, list[Span]] = {"sampler": [], "tools": []}
        self.running: dict[object, tuple[Lane, float]] = {}

    @contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        """Note that the trainer does this while the block runs."""
        begin = self.clock()
        self.begin = begin if self.begin is None else self.begin
        yield
        self.phases.append((name, begin, self.clock()))

    @contextmanager
    def follow(self) -> Iterator[None]:
        """Measure what `at_work` is told in the block, in the tasks that begin in it, too."""
        token = _FOLLOWED.set(self)
        try:
            yield
        finally:
            _FOLLOWED.reset(token)

    @contextmanager
    def span(self, lane: Lane) -> Iterator[None]:
        key, begin = object(), self.clock()
        self.running[key] = lane, begin
        try:
            yield
        finally:
            del self.running[key]
            self.done[lane].append((begin, self.clock()))

    def cut(self, step: int) -> StepTimes:
        """Return the times since the last cut; a step has at least one phase."""
        assert self.begin is not None
        begin, end = self.begin, self.clock()
        spans = {lane: [*done, *self._unfinished(lane, end)] for lane, done in self.done.items()}
        found = StepTimes(
            step,
            round(time.time() - (end - begin), 3),
            round(end - begin, 4),
            [(name, round(b - begin, 4), round(e - begin, 4)) for name, b, e in self.phases],
            occupancy(spans["sampler"], begin, end),
            occupancy(spans["tools"], begin, end),
        )
        self.begin, self.phases = end, []
        self.done = {lane: [] for lane in self.done}
        return found

    def _unfinished(self, lane: Lane, end: float) -> list[Span]:
        return [(begin, end) for where, begin in self.running.values() if where == lane]


_FOLLOWED: ContextVar[Timeline | None] = ContextVar("followed", default=None)


@contextmanager
def at_work(lane: Lane) -> Iterator[None]:
    """Note that a rollout is with the sampler, or waits for tools, while the block runs."""
    followed = _FOLLOWED.get()
    if followed is None:
        yield
        return
    with followed.span(lane):
        yield


def occupancy(spans: Sequence[Span], begin: float, end: float) -> list[float]:
    """Return how many spans there are on average in each slot between two times."""
    width = (end - begin) / SLOTS
    covered = [0.0] * SLOTS
    if width <= 0:
        return covered
    for first, last in spans:
        first, last = max(first, begin), min(last, end)
        slot = int((first - begin) / width)
        while first < last and slot < SLOTS:
            edge = min(last, begin + (slot + 1) * width)
            covered[slot] += max(edge - first, 0.0)
            first, slot = edge, slot + 1
    return [round(seconds / width, 2) for seconds in covered]


def append_times(path: Path, times: StepTimes) -> None:
    """Add a step to the file of a stage."""
    append_text(path, _ADAPTER.dump_json(times).decode() + "\n")


def read_times(path: Path) -> list[StepTimes]:
    """Return the steps in their order, without a line that is still being written; none where there
    is no file. Of a step that was repeated, as after a kill, the last time counts.

    Raises UserError naming the line.
    """
    if not path.exists():
        return []
    advice = f"{put_aside(path)}, and the timeline is left out"
    with reading(path, advice):
        text = path.read_bytes()
    steps = {}
    for number, line in enumerate(text[: text.rfind(b"\n") + 1].splitlines(), start=1):
        with reading(f"{path}, line {number}", advice):
            times = _ADAPTER.validate_json(line)
        steps[times.step] = times
    return [steps[number] for number in sorted(steps)]


_ADAPTER = TypeAdapter(StepTimes)
