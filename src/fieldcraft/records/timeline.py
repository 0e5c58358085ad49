"""Timeline of a stage: activity of sampler, trainer and tools in each step.

Each step has one short record of bounded size. The trainer has one phase at a time, so its phases
are recorded individually. Turns and calls are numerous and concurrent, so for the sampler and the
tools only the number of busy rollouts is recorded, in each of SLOTS_PER_STEP equal slots.
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
from fieldcraft.records.reading import advise_renaming, raise_read_errors

TIMELINE_FILE = "timeline.jsonl"  # in the folder of a stage
SLOTS_PER_STEP = 60
TrainerPhase = Literal["wait", "train", "publish"]
Activity = Literal["sampler", "tools"]
TimeSpan = tuple[float, float]  # start and end, on the same clock


@dataclass(frozen=True)
class StepTimes:
    """Times of a step, from the end of the previous step to its own end.

    `began` is the wall-clock time in seconds since 1970. `trainer` holds phases, each with its
    start and end in seconds since `began`: `wait` for rollouts, `train`, `publish` weights. The
    gaps are checkpoints and evaluations. `sampler` and `tools` hold the mean number of rollouts
    that sampled a turn, or waited for a call, in each slot.
    """

    step: int
    began: float
    seconds: float
    trainer: list[tuple[TrainerPhase, float, float]]
    sampler: list[float]
    tools: list[float]


class Timeline:
    """Recorder of consecutive steps. Spans of rollouts may end after their step."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.step_start: float | None = None
        self.phases: list[tuple[TrainerPhase, float, float]] = []
        self.finished_spans: dict[Activity, list[TimeSpan]] = {"sampler": [], "tools": []}
        self.open_spans: dict[object, tuple[Activity, float]] = {}

    @contextmanager
    def track_trainer_phase(self, name: TrainerPhase) -> Iterator[None]:
        """Record that the trainer is in this phase during the block."""
        start = self.clock()
        self.step_start = start if self.step_start is None else self.step_start
        yield
        self.phases.append((name, start, self.clock()))

    @contextmanager
    def collect_spans(self) -> Iterator[None]:
        """Collect the spans of `track_activity` in the block, including tasks started in it."""
        token = _ACTIVE_TIMELINE.set(self)
        try:
            yield
        finally:
            _ACTIVE_TIMELINE.reset(token)

    def flush_step(self, step: int) -> StepTimes:
        """Return the times since the previous step; a step has at least one phase."""
        assert self.step_start is not None
        start, end = self.step_start, self.clock()
        spans = {
            activity: [*done, *self._list_unfinished(activity, end)]
            for activity, done in self.finished_spans.items()
        }
        found = StepTimes(
            step,
            round(time.time() - (end - start), 3),
            round(end - start, 4),
            [(name, round(b - start, 4), round(e - start, 4)) for name, b, e in self.phases],
            compute_occupancy(spans["sampler"], start, end),
            compute_occupancy(spans["tools"], start, end),
        )
        self.step_start, self.phases = end, []
        self.finished_spans = {activity: [] for activity in self.finished_spans}
        return found

    def _list_unfinished(self, activity: Activity, end: float) -> list[TimeSpan]:
        return [
            (start, end)
            for running_activity, start in self.open_spans.values()
            if running_activity == activity
        ]


_ACTIVE_TIMELINE: ContextVar[Timeline | None] = ContextVar("followed", default=None)


@contextmanager
def track_activity(activity: Activity) -> Iterator[None]:
    """Record that a rollout uses the sampler, or waits for tools, during the block."""
    timeline = _ACTIVE_TIMELINE.get()
    if timeline is None:
        yield
        return
    key, start = object(), timeline.clock()
    timeline.open_spans[key] = activity, start
    try:
        yield
    finally:
        del timeline.open_spans[key]
        timeline.finished_spans[activity].append((start, timeline.clock()))


def compute_occupancy(spans: Sequence[TimeSpan], start: float, end: float) -> list[float]:
    """Return the mean number of spans in each slot between two times."""
    width = (end - start) / SLOTS_PER_STEP
    covered = [0.0] * SLOTS_PER_STEP
    if width <= 0:
        return covered
    for first, last in spans:
        first, last = max(first, start), min(last, end)
        slot = int((first - start) / width)
        while first < last and slot < SLOTS_PER_STEP:
            edge = min(last, start + (slot + 1) * width)
            covered[slot] += max(edge - first, 0.0)
            first, slot = edge, slot + 1
    return [round(seconds / width, 2) for seconds in covered]


def append_step_times(path: Path, times: StepTimes) -> None:
    """Append a step to the file of a stage."""
    append_text(path, _ADAPTER.dump_json(times).decode() + "\n")


def read_step_times(path: Path) -> list[StepTimes]:
    """Return the steps in order, ignoring an incomplete last line, or an empty list if the file
    does not exist. The last record of a repeated step counts, as after a crash.

    Raises UserError naming the line.
    """
    if not path.exists():
        return []
    advice = f"{advise_renaming(path)}, and the timeline is left out"
    with raise_read_errors(path, advice):
        text = path.read_bytes()
    steps = {}
    for number, line in enumerate(text[: text.rfind(b"\n") + 1].splitlines(), start=1):
        with raise_read_errors(f"{path}, line {number}", advice):
            times = _ADAPTER.validate_json(line)
        steps[times.step] = times
    return [steps[number] for number in sorted(steps)]


_ADAPTER = TypeAdapter(StepTimes)
