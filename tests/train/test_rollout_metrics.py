"""Metrics of rollouts, and one step with a real model."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from fieldcraft.train.rollout_metrics import (
    NO_SIGNAL_STEPS,
    compute_rollout_metrics,
    describe_failures,
    describe_no_signal,
)
from fieldcraft.types import (
    Author,
    CallOutcome,
    CallRecord,
    Segment,
    Status,
    Trajectory,
)
from rl_parts import TASKS

# -- metrics ------------------------------------------------------------------------------------


def test_rates_by_hand() -> None:
    def done(status: Status, reward: float | None, calls: Sequence[CallOutcome]) -> Trajectory:
        return Trajectory(
            replace(TASKS[0], meta={"calls_optimal": 1, "known": status is Status.ANSWERED}),
            [
                Segment(Author.PROMPT, [1] * 9, ""),
                Segment(Author.POLICY, [1] * 6, "", [-float(reward or 9), *[-0.25] * 4, -math.inf]),
            ],
            [CallRecord("search", {"query": "Ada"}, "", outcome, 0.5) for outcome in calls],
            status,
            well_formed=reward == 1,
            error="KeyError: 'city' (weather.py:12)" if status is Status.ERROR else "",
            rewards={"em": reward},
            reward=None if reward is None else 2 * reward,
        )

    row = compute_rollout_metrics(
        [
            done(Status.ANSWERED, 1.0, [CallOutcome.OK, CallOutcome.FAILED, CallOutcome.REFUSED]),
            done(Status.TRUNCATED, 0.0, []),
            done(Status.ERROR, None, [CallOutcome.OK, CallOutcome.MALFORMED]),
            done(Status.ANSWERED, 0.0, []),
        ]
    )
    assert row == {
        "rollouts": 4,
        "reward_mean": pytest.approx(2 / 3),
        "em": pytest.approx(1 / 3),
        "correct_logp_mean": -2 / 5,  # the five tokens of the first with a known probability
        "calls_mean": 3 / 4,
        "calls_written_mean": 5 / 4,
        "calls_optimal_mean": 1,
        "optimal_rate": 0,  # the only correct answer took two
        "needless_calls_mean": 1 / 4,
        "missing_calls_mean": 2 / 4,
        "calls_regret_mean": 3 / 4,
        "tool_productivity": 1 / 3,
        "offloading_rate": 1 / 2,
        "tool_seconds_mean": 5 * 0.5 / 4,
        "attempt_rate": 1 / 2,
        "call_named_rate": None,  # the cause of its error is unknown
        "call_fitting_rate": None,
        "call_cost_mean": 3 / 4,
        "call_cost_optimal_mean": None,
        "call_cost_regret_mean": None,
        "token_cost_mean": 0,
        "acting_cost_per_success": 3,
        "forced_answer_rate": 0,
        "call_failed_rate": 1 / 5,
        "folds_mean": 0.0,
        "call_malformed_rate": 1 / 5,
        "call_refused_rate": 1 / 5,
        "call_duplicate_rate": 1 / 5,
        "policy_tokens_mean": 6,
        "format_rate": 1 / 4,
        "ungradable_rate": 1 / 4,
        "tool_failure_rate": 1 / 5,
        "status/answered": 0.5,
        "status/no_answer": 0,
        "status/truncated": 0.25,
        "status/error": 0.25,
        "last_error": "KeyError: 'city' (weather.py:12)",
    }


# -- rollouts that ended in an exception ----------------------------------------------------------


def test_exceptions_are_told_at_their_first_step_and_in_the_end() -> None:
    rates, cause = [0.0, 0.25, 0.0, 0.75], "KeyError: 'city' (weather.py:12)"
    rows = [
        {"step": step, "status/error": rate, "last_error": cause if rate else None}
        for step, rate in enumerate(rates)
    ]
    collect_messages = {n: describe_failures(rows[: n + 1], 4, "rl") for n in range(4)}
    assert [n for n, text in collect_messages.items() if text] == [1, 3]
    assert collect_messages[3] == (
        "25.0% of the rollouts of stage 'rl' in the 4 steps so far ended in an exception, the last"
        " one: 'KeyError: 'city' (weather.py:12)': correct the tool, the reward or the engine that"
        " raised it, because such rollouts give no training signal."
    )
    assert describe_failures(rows[:1], 1, "rl") is None


# -- steps without a signal -----------------------------------------------------------------------

NONE_KEPT = {"no_signal_group_rate": 0.0, "groups_trained": 0}
EQUAL = {"no_signal_group_rate": 1.0, "groups_trained": 4}
MIXED = {"no_signal_group_rate": 0.75, "groups_trained": 4}


def collect_messages(kinds: Sequence[dict[str, float]], steps: int = 99) -> dict[int, str]:
    """Return the log messages by step."""
    rows = [{"step": number, **kind} for number, kind in enumerate(kinds)]
    found = {n: describe_no_signal(rows[: n + 1], steps, "rl") for n in range(len(rows))}
    return {number: text for number, text in found.items() if text is not None}


def test_a_silent_stretch_is_told_once() -> None:
    several = [MIXED, *[EQUAL, NONE_KEPT] * NO_SIGNAL_STEPS, MIXED, *[EQUAL] * 2 * NO_SIGNAL_STEPS]
    found = collect_messages(several)
    assert list(found) == [NO_SIGNAL_STEPS]
    assert found[NO_SIGNAL_STEPS].startswith(
        "stage 'rl' had no learning signal in 5 consecutive steps up to step 5, because the"
        " rollouts of each question had the same reward; if this continues, choose questions"
    )
    assert collect_messages([*[EQUAL] * (NO_SIGNAL_STEPS - 1), MIXED] * 3) == {}


def test_a_stage_that_was_silent_to_its_end_says_so() -> None:
    assert list(collect_messages([EQUAL] * 8, steps=8)) == [NO_SIGNAL_STEPS - 1, 7]
    assert collect_messages([NONE_KEPT] * 2, steps=2)[1].startswith(
        "stage 'rl' received no learning signal from its rewards: in each of its 2 steps the "
        "rollouts of each"
    )
    assert list(collect_messages([*[EQUAL] * 7, MIXED], steps=8)) == [NO_SIGNAL_STEPS - 1]
