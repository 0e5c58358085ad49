"""Metrics of tool use in a set of trajectories: calls written, executed and needed.

Calls are counted as: written (all), executed (the tool was called), failed (the tool failed, was
unavailable or raised), malformed (an error of the policy), refused (over the limit). A duplicate is
an executed call that repeats an earlier successful call.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from fieldcraft.records.costs import (
    OPTIMAL_COST_KEY,
    compute_acting_cost,
    compute_token_cost,
    sum_call_costs,
)
from fieldcraft.types import CallOutcome, CallRecord, Status, ToolCall, Trajectory


def count_calls(trajectories: Iterable[Trajectory]) -> dict[str, int]:
    """Return the total counts of calls: written = executed + malformed + refused."""
    found = list(trajectories)
    outcomes = Counter(call.outcome for t in found for call in t.calls)
    return {
        "written": outcomes.total(),
        "executed": sum(t.num_executed_calls for t in found),
        "failed": sum(call.outcome.failed for t in found for call in t.calls),
        "malformed": outcomes[CallOutcome.MALFORMED],
        "refused": outcomes[CallOutcome.REFUSED],
        "duplicate": sum(map(count_duplicate_calls, found)),
    }


def compute_tool_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float | None]:
    """Return flat metrics of at least one trajectory; undefined or unknown metrics are None.

    Means are over trajectories, rates over written calls. `tool_productivity` is a ratio of sums,
    correct answers over executed calls (OTC, arXiv 2504.14870, section on metrics). Metrics that
    refer to an optimum need `meta["calls_optimal"]` of every task: needless calls are those above
    the optimum of their question, missing calls those below; regret is their sum, the mean absolute
    distance from the optimum, in which excess and shortfall do not cancel. `offloading_rate` is the
    fraction of questions entirely within the model's knowledge (`Task.is_known`) on which it still
    executes a call. `attempt_rate` is the fraction of trajectories that write any call;
    `compute_call_form_metrics` adds which tools these calls name and how they are written. Costs
    include failed calls, and are reported with the minimum cost of calls of their questions
    (`meta["cost_optimal"]`) and the cost of the policy's tokens; `acting_cost_per_success` is a
    ratio of sums, both costs over correct answers.
    """
    n, counts = len(trajectories), count_calls(trajectories)
    num_correct = sum(t.is_correct is True for t in trajectories)
    executed = counts["executed"]
    optimum = compute_mean_optimal_calls(trajectories)
    excess = _calls_above_optimum(trajectories) if optimum is not None else []
    known = [t for t in trajectories if t.task.is_known is True]
    return {
        "calls_mean": executed / n,
        "calls_written_mean": counts["written"] / n,
        "calls_optimal_mean": optimum,
        "optimal_rate": _compute_optimal_rate(trajectories, excess),
        "needless_calls_mean": mean_or_none(max(0, e) for e in excess),
        "missing_calls_mean": mean_or_none(max(0, -e) for e in excess),
        "calls_regret_mean": mean_or_none(map(abs, excess)),
        "tool_productivity": num_correct / executed if executed else None,
        "offloading_rate": mean_or_none(t.num_executed_calls > 0 for t in known),
        "attempt_rate": mean_or_none(bool(t.calls) for t in trajectories),
        **compute_call_form_metrics(call for t in trajectories for call in t.calls),
        "call_cost_mean": sum(map(sum_call_costs, trajectories)) / n,
        "call_cost_optimal_mean": compute_mean_optimal_cost(trajectories),
        "call_cost_regret_mean": _compute_cost_regret(trajectories),
        "token_cost_mean": sum(map(compute_token_cost, trajectories)) / n,
        "acting_cost_per_success": sum(map(compute_acting_cost, trajectories)) / num_correct
        if num_correct
        else None,
        "tool_seconds_mean": sum(call.seconds for t in trajectories for call in t.calls) / n,
        **{
            f"call_{kind}_rate": counts[kind] / counts["written"] if counts["written"] else None
            for kind in ("failed", "malformed", "refused", "duplicate")
        },
    }


def compute_call_form_metrics(calls: Iterable[CallRecord]) -> dict[str, float | None]:
    """Return metrics of calls that were not refused, separately for the choice of the tool and the
    form of its arguments.

    `call_named_rate` is the fraction that name a tool offered with the question, and
    `call_fitting_rate` is the fraction of these whose arguments can be parsed and fit the tool.
    Both are None if there are no such calls, or if a malformed call has no recorded fault.
    """
    judged = [call for call in calls if call.outcome is not CallOutcome.REFUSED]
    faults = Counter(call.fault for call in judged if call.outcome is CallOutcome.MALFORMED)
    named = len(judged) - faults["form"] - faults["tool"]
    known = faults[None] == 0
    return {
        "call_named_rate": named / len(judged) if judged and known else None,
        "call_fitting_rate": 1 - faults["arguments"] / named if named and known else None,
    }


def compute_mean_optimal_calls(trajectories: Iterable[Trajectory]) -> float | None:
    """Return the mean optimum, or None unless every task has one, because it is compared with
    `calls_mean`."""
    optima = [t.task.meta.get("calls_optimal") for t in trajectories]
    return None if None in optima else mean_or_none(optima)


def compute_mean_optimal_cost(trajectories: Iterable[Trajectory]) -> float | None:
    """Return the mean of the minimum costs, or None unless every task has one, as in
    `compute_mean_optimal_calls`."""
    optima = [t.task.meta.get(OPTIMAL_COST_KEY) for t in trajectories]
    return None if None in optima else mean_or_none(optima)


def count_duplicate_calls(trajectory: Trajectory) -> int:
    """Return the number of executed calls with the tool and arguments of an earlier successful
    call.

    Texts are compared ignoring case and repeated spaces. A repetition of a failed call is not
    counted as a duplicate, because it may succeed.
    """
    answered: set[str] = set()
    repeated = 0
    for call in trajectory.calls:
        key = make_call_key(call)
        repeated += call.outcome.executed and key in answered
        if call.outcome is CallOutcome.OK:
            answered.add(key)
    return repeated


def has_void_turn(trajectory: Trajectory) -> bool:
    """Return whether a rollout has a void turn: one with neither a readable call nor an answer
    (SimpleTIR, arXiv 2509.02479). A rollout without tools may end at a call, which is not void."""
    ended_void = trajectory.status is Status.NO_ANSWER and not trajectory.tool_free
    return ended_void or any(call.outcome is CallOutcome.MALFORMED for call in trajectory.calls)


def mean_or_none(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are not None, or None if there are none."""
    known = [float(value) for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _calls_above_optimum(trajectories: Iterable[Trajectory]) -> list[int]:
    """Return the number of executed calls minus the optimum, for each question."""
    return [t.num_executed_calls - t.task.meta["calls_optimal"] for t in trajectories]


def _compute_cost_regret(trajectories: Sequence[Trajectory]) -> float | None:
    """Return the mean distance of the cost of the calls from the minimum of each question."""
    if compute_mean_optimal_cost(trajectories) is None:
        return None
    return mean_or_none(
        abs(sum_call_costs(t) - t.task.meta[OPTIMAL_COST_KEY]) for t in trajectories
    )


def _compute_optimal_rate(
    trajectories: Sequence[Trajectory], excess: Sequence[int]
) -> float | None:
    """Return the fraction of trajectories that are correct with no more calls than the optimum."""
    if not excess:
        return None
    return mean_or_none(
        t.is_correct is True and e <= 0 for t, e in zip(trajectories, excess, strict=True)
    )


def make_call_key(call: CallRecord | ToolCall) -> str:
    """Return a key that is equal for calls that differ only in the case and the repeated spaces of
    texts, also of those inside lists and objects."""
    return json.dumps([call.tool, _normalise_text(call.arguments)], sort_keys=True)


def _normalise_text(value: Any) -> Any:
    match value:
        case str():
            return " ".join(value.casefold().split())
        case list():
            return [_normalise_text(item) for item in value]
        case dict():
            return {key: _normalise_text(item) for key, item in value.items()}
    return value
