"""Subscribers of a run receive its events in order."""

from pathlib import Path

import pytest

from fieldcraft.records.events import (
    Event,
    EventBus,
    LogMessage,
    PhaseEnded,
    PhaseStarted,
    StepCompleted,
    ignore_event,
    track_phase,
    write_metrics,
)
from fieldcraft.records.metrics import MetricsLog


def test_every_subscriber_is_told_in_the_order_of_subscription() -> None:
    messages: list[tuple[str, Event]] = []
    events = EventBus([lambda event: messages.append(("first", event))])
    events.subscribe(lambda event: messages.append(("second", event)))
    events(LogMessage("hello"))
    assert messages == [("first", LogMessage("hello")), ("second", LogMessage("hello"))]


def test_two_sinks_share_no_subscriber() -> None:
    messages: list[Event] = []
    EventBus().subscribe(messages.append)
    EventBus()(LogMessage("hello"))
    assert messages == []


def test_a_part_ends_however_it_is_left() -> None:
    messages: list[Event] = []
    with pytest.raises(KeyboardInterrupt), track_phase(messages.append, "sft", 3, "steps"):
        raise KeyboardInterrupt
    assert messages == [PhaseStarted("sft", 3, "steps"), PhaseEnded("sft")]


def test_metrics_are_a_file_that_follows_the_events(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    events = EventBus([write_metrics])
    for number in range(2):
        events(StepCompleted("rl", {"step": number, "em": 0.5}, file))
    events(LogMessage("nothing to keep"))
    assert MetricsLog(file).read_rows() == [{"step": 0, "em": 0.5}, {"step": 1, "em": 0.5}]
    ignore_event(StepCompleted("rl", {"step": 2}, file))
    assert len(MetricsLog(file).read_rows()) == 2
