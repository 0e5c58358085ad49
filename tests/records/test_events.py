"""Whoever subscribes to a run is told what happens, in order."""

from pathlib import Path

import pytest

from fieldcraft.records.events import (
    Event,
    Events,
    PartEnded,
    PartStarted,
    Said,
    StepDone,
    during,
    nobody,
    write_metrics,
)
from fieldcraft.records.metrics import MetricsLog


def test_every_subscriber_is_told_in_the_order_of_subscription() -> None:
    told: list[tuple[str, Event]] = []
    events = Events([lambda event: told.append(("first", event))])
    events.subscribe(lambda event: told.append(("second", event)))
    events(Said("hello"))
    assert told == [("first", Said("hello")), ("second", Said("hello"))]


def test_two_sinks_share_no_subscriber() -> None:
    told: list[Event] = []
    Events().subscribe(told.append)
    Events()(Said("hello"))
    assert told == []


def test_a_part_ends_however_it_is_left() -> None:
    told: list[Event] = []
    with pytest.raises(KeyboardInterrupt), during(told.append, "sft", 3, "steps"):
        raise KeyboardInterrupt
    assert told == [PartStarted("sft", 3, "steps"), PartEnded("sft")]


def test_metrics_are_a_file_that_follows_the_events(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    events = Events([write_metrics])
    for number in range(2):
        events(StepDone("rl", {"step": number, "em": 0.5}, file))
    events(Said("nothing to keep"))
    assert MetricsLog(file).rows() == [{"step": 0, "em": 0.5}, {"step": 1, "em": 0.5}]
    nobody(StepDone("rl", {"step": 2}, file))
    assert len(MetricsLog(file).rows()) == 2
