"""Timeline of activity: spans of a clock that the test moves, and the file of a stage."""

import asyncio
from pathlib import Path

import pytest

from fieldcraft.records.timeline import (
    SLOTS_PER_STEP,
    StepTimes,
    Timeline,
    append_step_times,
    compute_occupancy,
    read_step_times,
    track_activity,
)
from fieldcraft.types import UserError


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_occupancy_is_the_mean_number_of_spans_in_each_slot() -> None:
    # a slot has one second
    found = compute_occupancy([(0, 2), (1.5, 3), (-5, 0.5), (59.75, 99), (7, 7)], 0, SLOTS_PER_STEP)
    assert found[:4] == [1.5, 1.5, 1.0, 0.0]
    assert found[-1] == 0.25
    assert sum(found) == pytest.approx(2 + 1.5 + 0.5 + 0.25)
    assert compute_occupancy([(0, 1)], 5, 5) == [0.0] * SLOTS_PER_STEP


def test_a_step_has_its_phases_and_spans_go_on_over_its_end() -> None:
    clock = Clock()
    timeline = Timeline(clock)

    def wait(seconds: float) -> None:
        clock.now += seconds

    async def steps() -> tuple[StepTimes, StepTimes]:
        async def rollout() -> None:
            with track_activity("sampler"):
                await asyncio.sleep(0)
                await released.wait()
            with track_activity("tools"):
                wait(6)

        released = asyncio.Event()
        with timeline.track_trainer_phase("wait"):
            with timeline.collect_spans():
                under_way = asyncio.create_task(rollout())
            await asyncio.sleep(0)
            wait(20)
        with timeline.track_trainer_phase("train"):
            wait(40)
        first = timeline.flush_step(0)
        wait(10)  # a checkpoint
        with timeline.track_trainer_phase("wait"):
            released.set()
            await under_way
            wait(44)
        return first, timeline.flush_step(1)

    first, second = asyncio.run(steps())
    assert (first.step, first.seconds) == (0, 60)
    assert first.trainer == [("wait", 0, 20), ("train", 20, 60)]
    assert first.sampler == [1.0] * SLOTS_PER_STEP
    assert first.tools == [0.0] * SLOTS_PER_STEP
    assert second.trainer == [("wait", 10, 60)]
    assert second.sampler == [1.0] * 10 + [0.0] * 50
    assert second.tools == [0.0] * 10 + [1.0] * 6 + [0.0] * 44


def test_nothing_is_measured_where_nobody_follows() -> None:
    timeline = Timeline(Clock())
    with timeline.collect_spans():
        pass
    with timeline.track_trainer_phase("wait"), track_activity("sampler"):
        pass
    assert timeline.open_spans == {}
    assert timeline.finished_spans == {"sampler": [], "tools": []}


def times(step: int, seconds: float = 1.0) -> StepTimes:
    return StepTimes(
        step,
        1.5,
        seconds,
        [("train", 0.0, seconds)],
        [0.5] * SLOTS_PER_STEP,
        [0.0] * SLOTS_PER_STEP,
    )


def test_the_file_comes_back_without_a_line_that_is_being_written(tmp_path: Path) -> None:
    path = tmp_path / "timeline.jsonl"
    assert read_step_times(path) == []
    for step_times in (times(0), times(1), times(1, 2.0)):
        append_step_times(path, step_times)
    with path.open("a") as file:
        file.write('{"step": 2, "beg')
    assert read_step_times(path) == [times(0), times(1, 2.0)]  # the step after a kill counts


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "timeline.jsonl"
    append_step_times(path, times(0))
    path.write_text(path.read_text() + '{"step": 1}\n')
    with pytest.raises(
        UserError,
        match=f"{path}, line 2 .*; rename {path} to {path.name}.damaged, and the timeline",
    ):
        read_step_times(path)
