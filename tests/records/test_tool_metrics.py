"""Classification of calls, checked by hand."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldcraft.records.tool_metrics import (
    compute_call_form_metrics,
    compute_tool_metrics,
    count_calls,
    count_duplicate_calls,
    has_void_turn,
)
from fieldcraft.types import CallOutcome, CallRecord, Status, Task, Trajectory

O, F, M, R = CallOutcome.OK, CallOutcome.FAILED, CallOutcome.MALFORMED, CallOutcome.REFUSED  # noqa: E741


def made(*calls: tuple[object, CallOutcome], em: float | None = 0.0, **meta: object) -> Trajectory:
    """Return a trajectory with one search for each (query, outcome)."""
    done = [CallRecord("search", {"query": query}, "", outcome, 0.0) for query, outcome in calls]
    return Trajectory(Task("t", "?", ("a",), dict(meta)), calls=done, rewards={"em": em})


@pytest.mark.parametrize(
    ("calls", "repeated"),
    [
        ([("Ada Lind", O), ("ada  lind\n", O), ("Ada Lind", O)], 2),
        ([("Ada", O), ("Bo", O), ("Ad a", O)], 0),
        ([("Ada", F), ("Ada", F), ("Ada", O), ("Ada", F)], 1),  # only the last one was answered
        ([("Ada", O), ("Ada", R), ("Ada", M)], 0),  # not executed
        ([("Ada", M), ("Ada", R), ("Ada", O)], 0),
        ([({"b": 1, "a": ["X"]}, O), ({"a": ["x "], "b": 1}, O), ({"a": "x", "b": 1}, O)], 1),
        ([(1, O), ("1", O), (True, O), (None, O)], 0),
    ],
)
def test_duplicates(calls: list[tuple[object, CallOutcome]], repeated: int) -> None:
    assert count_duplicate_calls(made(*calls)) == repeated


def test_another_tool_is_another_call() -> None:
    both = made(("Ada", O), ("Ada", O))
    both.calls[1].tool = "browse"
    assert count_duplicate_calls(both) == 0


def test_trajectories_do_not_share_their_calls() -> None:
    assert count_calls([made(("Ada", O)), made(("Ada", O))])["duplicate"] == 0


def test_too_many_here_do_not_make_up_for_too_few_there() -> None:
    found = compute_tool_metrics(
        [
            made(("a", O), ("b", O), ("c", O), em=1.0, calls_optimal=1),
            made(em=1.0, calls_optimal=2),
        ]
    )
    assert found["calls_mean"] == found["calls_optimal_mean"] == 1.5
    assert (found["needless_calls_mean"], found["missing_calls_mean"]) == (1.0, 1.0)
    assert found["calls_regret_mean"] == 2.0
    assert found["optimal_rate"] == 0.5


def test_offloading_looks_at_known_questions_and_executed_calls_only() -> None:
    known = [
        made(("a", O), known=True),
        made(("a", F), closed_book=0.75),
        made(("a", R), ("b", M), known=True),
        made(known=True),
    ]
    unknown = [made(("a", O), known=False), made(("a", O)), made(("a", O), closed_book=0.5)]
    assert compute_tool_metrics([*known, *unknown])["offloading_rate"] == 0.5
    assert compute_tool_metrics(unknown)["offloading_rate"] is None


def test_productivity_is_a_ratio_of_sums() -> None:
    found = compute_tool_metrics([made(("a", O), em=1.0), made(*[("b", O)] * 4), made(em=None)])
    assert found["tool_productivity"] == 1 / 5
    assert compute_tool_metrics([made(("a", R), em=1.0)])["tool_productivity"] is None


outcomes = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(CallOutcome)), max_size=8)


@given(st.lists(st.tuples(outcomes, st.integers(0, 4)), min_size=1, max_size=6))
def test_the_parts_make_the_whole(
    drawn: list[tuple[list[tuple[object, CallOutcome]], int]],
) -> None:
    trajectories = [made(*calls, calls_optimal=optimum) for calls, optimum in drawn]
    counts, use = count_calls(trajectories), compute_tool_metrics(trajectories)
    assert counts["written"] == counts["executed"] + counts["malformed"] + counts["refused"]
    assert 0 <= counts["failed"] <= counts["executed"]
    assert 0 <= counts["duplicate"] <= counts["executed"]
    needless, missing = use["needless_calls_mean"], use["missing_calls_mean"]
    optimum, regret, calls = use["calls_optimal_mean"], use["calls_regret_mean"], use["calls_mean"]
    assert None not in (needless, missing, optimum, regret, calls)
    assert calls - optimum == pytest.approx(needless - missing)
    assert regret == pytest.approx(needless + missing)


def test_what_a_call_names_and_how_it_is_written_are_told_apart() -> None:
    """One of eight calls is refused. Three of the others name no available tool, one of them
    because it has no name at all. One of the four that do has arguments that do not fit."""
    form, tool, arguments = "form", "tool", "arguments"
    faults = [None, None, form, tool, tool, arguments, None]
    calls = [
        CallRecord(
            "search", {}, "", CallOutcome.MALFORMED if fault else CallOutcome.OK, 0.0, fault=fault
        )
        for fault in faults
    ]
    calls.append(CallRecord("search", {}, "", CallOutcome.REFUSED, 0.0))
    task = Task("q", "?", ())
    found = compute_tool_metrics([Trajectory(task, calls=calls), Trajectory(task)])
    assert found["attempt_rate"] == 1 / 2
    assert found["call_named_rate"] == 4 / 7
    assert found["call_fitting_rate"] == 3 / 4
    assert compute_tool_metrics([Trajectory(task)])["call_named_rate"] is None
    unknown = [
        *calls,
        CallRecord("", {}, "", CallOutcome.MALFORMED, 0.0),
    ]  # the format of old records
    assert compute_call_form_metrics(unknown) == {
        "call_named_rate": None,
        "call_fitting_rate": None,
    }


def test_a_call_without_tools_is_no_void_turn() -> None:
    ended = Trajectory(Task("q", "?", ()), status=Status.NO_ANSWER)
    assert has_void_turn(ended)
    assert not has_void_turn(replace(ended, tool_free=True))
    malformed = [CallRecord("search", {}, "", CallOutcome.MALFORMED, 0.0)]
    assert has_void_turn(replace(ended, tool_free=True, calls=malformed))
