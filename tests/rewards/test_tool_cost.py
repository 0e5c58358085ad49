"""OTC-PO's rewards: the paper's numbers, and pitfalls of an implementation."""

import asyncio
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldcraft.rewards.answers import ExactMatch, F1Reward, FormatReward
from fieldcraft.rewards.rubric import Rubric
from fieldcraft.rewards.tool_cost import (
    CALL_COUNT,
    OtcGrpoReward,
    OtcPpoReward,
    WeightedSumReward,
    compute_tool_reward,
)
from fieldcraft.train.advantages import group_mean_baseline, group_std
from fieldcraft.types import (
    Author,
    CallOutcome,
    CallRecord,
    Segment,
    Status,
    Task,
    Trajectory,
    UserError,
)

TASK = Task("q", "Who?", ("Kalo",))


def done(calls: int, answer: str | None = "Kalo", task: Task = TASK) -> Trajectory:
    """Return a rollout with this number of executed calls."""
    made = [CallRecord("search", {}, "", CallOutcome.OK, 0.0) for _ in range(calls)]
    return Trajectory(task, calls=made, status=Status.ANSWERED, answer=answer)


def paid(
    *costs: float, tokens: int = 0, token_cost: float = 0.0, answer: str = "Kalo"
) -> Trajectory:
    """Return a rollout whose calls have these costs, and whose policy wrote `tokens` tokens."""
    made = done(len(costs), answer)
    for call, cost in zip(made.calls, costs, strict=True):
        call.cost = cost
    made.segments.append(Segment(Author.POLICY, [1] * tokens, ""))
    made.token_cost = token_cost
    return made


def otc_grpo(smoothing: float = 4.0) -> OtcGrpoReward:
    return OtcGrpoReward(ExactMatch(), smoothing)


# -- the paper's table --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fewest", "smoothing", "rewards"),
    [  # for m = 0, 1, 2, ...
        (0, 4.0, [1, 0.8660, 0.7071, 0.5878, 0.5000, 0.4339]),
        (None, 4.0, [1, 0.8660, 0.7071, 0.5878, 0.5000, 0.4339]),
        (0, 3.0, [1, 0.8090, 0.6235, 0.5000, 0.4154, 0.3546]),
        (1, 4.0, [0, 1, 0.8660, 0.7071, 0.5878, 0.5000]),
        (2, 4.0, [0, 0.8660, 1, 0.9511, 0.8660, 0.7818]),
        (3, 4.0, [0, 0.7071, 0.9511, 1, 0.9749, 0.9239]),
    ],
)
def test_tool_rewards_by_the_number_of_calls(
    fewest: int | None, smoothing: float, rewards: list[float]
) -> None:
    found = [compute_tool_reward(calls, fewest, smoothing) for calls in range(6)]
    assert found == pytest.approx(rewards, abs=5e-5)


@given(st.integers(0, 40), st.integers(0, 40), st.floats(0.1, 20))
def test_the_three_branches_of_equation_6(m: int, n: int, c: float) -> None:
    if m == 0 and n == 0:
        expected = 1.0
    elif n == 0:
        expected = math.cos(m * math.pi / (2 * m + c))
    else:
        f = 2 * n * m / (m + n)
        expected = math.sin(f * math.pi / (2 * n))
    assert compute_tool_reward(m, n, c) == pytest.approx(expected, abs=1e-12)
    assert 0 <= compute_tool_reward(m, n, c) <= 1


def test_otc_ppo_needs_no_group_and_remembers_nothing() -> None:
    reward = OtcPpoReward(ExactMatch(), 4.0)
    assert reward([done(2)]) == [pytest.approx(0.5**0.5)]
    assert reward([done(0), done(4), done(0, "no")]) == pytest.approx([1, 0.5, 0])
    assert reward.state_dict() == {}


def test_alpha_is_the_weight_in_the_rubric() -> None:
    group = [done(1), done(2), done(1, "no")]
    asyncio.run(Rubric([(otc_grpo(), 2.0)]).score(group))
    assert [t.reward for t in group] == pytest.approx([2.0, 2 * 0.8660254, 0.0])
    assert [t.rewards["otc-grpo"] for t in group] == pytest.approx([1.0, 0.8660254, 0.0])


# -- the traps ----------------------------------------------------------------------------------


def test_trap_n_is_zero() -> None:
    """A question once answered without a call: not calling is best, and nothing scores 0."""
    reward = otc_grpo()
    assert reward([done(0), done(1), done(2)]) == pytest.approx([1, 0.8660, 0.7071], abs=5e-5)
    assert reward.min_costs == {"q": 0}


def test_trap_a_stale_n_would_give_the_best_rollout_nothing() -> None:
    """The first right answer without a call lowers n before it is scored, and gets 1."""
    reward = otc_grpo()
    reward([done(2), done(3)])
    assert reward.min_costs == {"q": 2}
    assert compute_tool_reward(0, 2, 4.0) == 0  # its reward against the stored n
    assert reward([done(0), done(2)]) == pytest.approx([1, 0.5**0.5])
    assert reward.min_costs == {"q": 0}


def test_trap_no_correct_rollout_and_no_stored_n() -> None:
    reward = otc_grpo()
    assert reward([done(0, "no"), done(3, None)]) == [0, 0]
    assert reward.min_costs == {}
    # a partly correct answer keeps its score regardless of its cost, and is not evidence for n
    partly = OtcGrpoReward(F1Reward(), 4.0)
    assert partly([done(0, "Kalo Ser"), done(3, "Kalo Ser")]) == [pytest.approx(2 / 3)] * 2
    assert partly.min_costs == {}


def test_trap_wrong_rollouts_do_not_lower_n() -> None:
    reward = otc_grpo()
    assert reward([done(2), done(0, "no")]) == [1, 0]
    assert reward.min_costs == {"q": 2}


def test_trap_groups_in_which_all_are_right_still_teach() -> None:
    """Dividing by the deviation, one extra call weighs as much as a wrong answer elsewhere."""

    def advantages(rewards: Sequence[float | None]) -> list[float]:
        known = [r for r in rewards if r is not None]
        return [(r - group_mean_baseline(known)[0]) / group_std(known) for r in known]

    found = advantages(otc_grpo()([done(1), done(1), done(1), done(1), done(2)]))
    assert found == pytest.approx([0.5] * 4 + [-2.0], abs=1e-3)
    assert np.std(found) == pytest.approx(1, abs=1e-3)


def test_trap_calls_written_but_not_executed_do_not_count() -> None:
    """A call over the budget or a malformed call was not executed. A failed call was paid for."""
    made = done(1)
    made.calls += [
        CallRecord("search", {}, "", CallOutcome.REFUSED, 0.0),
        CallRecord("", {}, "the query is empty", CallOutcome.MALFORMED, 0.0),
    ]
    assert otc_grpo()([made]) == [1.0]
    reward = otc_grpo()
    failed = done(1)
    failed.calls.append(CallRecord("search", {}, "no server", CallOutcome.FAILED, 0.0))
    assert reward([done(1), failed]) == pytest.approx([1, 0.8660254])
    assert (made.num_executed_calls, failed.num_executed_calls) == (1, 2)


def test_trap_n_is_kept_by_question_over_the_whole_run() -> None:
    """Two questions never share n. A group whose best is worse than the stored n is measured
    against the stored n."""
    reward = otc_grpo()
    other = Task("p", "Who?", ("Kalo",))
    assert reward([done(1)]) == [1]
    assert reward([done(3, task=other)]) == [1]
    assert reward([done(2), done(2)]) == pytest.approx([0.8660254] * 2)
    assert reward.min_costs == {"q": 1, "p": 3}


def test_trap_the_store_goes_on_after_a_restart() -> None:
    before = Rubric([(otc_grpo(), 1.0)])
    asyncio.run(before.score([done(1)]))
    state = before.state_dict()
    assert state == {"otc-grpo": {"fewest": {"q": 1}}}
    after = Rubric([(otc_grpo(), 1.0)])
    after.load_state_dict(state)
    group = [done(2)]
    asyncio.run(after.score(group))
    assert group[0].reward == pytest.approx(0.8660254)
    asyncio.run(before.score([done(0)]))
    assert state == {"otc-grpo": {"fewest": {"q": 1}}}  # a copy, not the store itself


def test_what_cannot_be_graded_has_no_reward_and_says_nothing_about_n() -> None:
    unknown = Task("u", "Who?", ())
    for reward in (otc_grpo(), OtcPpoReward(ExactMatch(), 4.0)):
        assert reward([done(1, task=unknown)]) == [None]
        assert not reward.state_dict().get("fewest")


# -- prices ---------------------------------------------------------------------------------------


def test_m_and_n_are_sums_of_costs() -> None:
    """By hand: n = 1.5, so sin(pi m / (m + 1.5)) at m = 1.5, 3 and 4.5."""
    reward = otc_grpo()
    found = reward([paid(1.0, 0.5), paid(3.0), paid(4.0, 0.5), paid(0.25, answer="no")])
    assert found == pytest.approx([1, math.sin(2 * math.pi / 3), math.sqrt(0.5), 0])
    assert reward.min_costs == {"q": 1.5}


def test_one_expensive_call_is_worse_than_two_cheap_ones_by_cost_and_better_by_calls() -> None:
    group = [paid(4.0), paid(1.0, 1.0)]
    assert otc_grpo()(group) == pytest.approx([math.sin(4 * math.pi / 6), 1])
    by_calls = OtcGrpoReward(ExactMatch(), 4.0, measure=CALL_COUNT)
    assert by_calls(group) == pytest.approx([1, math.sin(2 * math.pi / 3)])


def test_free_calls_cost_nothing_and_failed_ones_were_paid_for() -> None:
    failed = paid(2.0)
    failed.calls[0].outcome = CallOutcome.FAILED
    refused = paid(2.0)
    refused.calls[0].outcome = CallOutcome.REFUSED
    assert otc_grpo()([paid(0.0, 0.0), failed, refused]) == pytest.approx(
        [1, math.cos(2 * math.pi / 8), 1]
    )


def test_tokens_are_priced_as_calls_are() -> None:
    """1,000 tokens cost 2, so 500 tokens cost as much as one call."""
    group = [paid(1.0, tokens=500, token_cost=2.0), paid(tokens=500, token_cost=2.0)]
    reward = otc_grpo()
    assert reward(group) == pytest.approx([math.sin(2 * math.pi / 3), 1])
    assert reward.min_costs == {"q": 1.0}
    assert OtcPpoReward(ExactMatch(), 4.0)(group) == pytest.approx(
        [math.cos(2 * math.pi / 8), math.cos(math.pi / 6)]
    )


@given(st.floats(0.01, 50), st.floats(0, 200), st.floats(0.1, 20), st.floats(0.01, 30))
def test_the_unit_of_costs_does_not_matter(n: float, more: float, unit: float, c: float) -> None:
    m = n + more
    assert compute_tool_reward(m * unit, n * unit, c) == pytest.approx(
        compute_tool_reward(m, n, c), abs=1e-9
    )
    assert compute_tool_reward(m * unit, None, c * unit) == pytest.approx(
        compute_tool_reward(m, None, c), abs=1e-9
    )


# -- r_phi as a sum -------------------------------------------------------------------------------


def in_form(calls: int, answer: str, well_formed: bool) -> Trajectory:
    made = done(calls, answer)
    made.well_formed = well_formed
    return made


def with_format() -> OtcGrpoReward:
    return OtcGrpoReward(
        ExactMatch(), 4.0, WeightedSumReward([(ExactMatch(), 1.0), (FormatReward(), 0.2)])
    )


def test_the_product_is_of_the_whole_sum() -> None:
    group = [in_form(1, "Kalo", True), in_form(2, "Kalo", False), in_form(2, "no", True)]
    r_2 = math.sin(2 * math.pi / 3)
    assert with_format()(group) == pytest.approx([1.2, r_2, 0.2 * r_2])


def test_where_nobody_was_right_form_is_worth_as_much_with_calls_as_without() -> None:
    """With the cosine, a wrong answer would be worth more with fewer searches."""
    group = [in_form(0, "no", True), in_form(3, "no", True), in_form(0, "no", False)]
    assert with_format()(group) == pytest.approx([0.2, 0.2, 0])
    assert OtcPpoReward(with_format().priced, 4.0)(group)[1] == pytest.approx(0.2 * 0.5877853)


def test_a_sum_cannot_be_graded_if_a_part_cannot_and_never_falls_below_0() -> None:
    parts = WeightedSumReward([(ExactMatch(), 1.0), (FormatReward(), 0.2)])
    assert parts([done(0, task=Task("u", "Who?", ()))]) == [None]

    class Negative(ExactMatch):
        def __call__(self, group: Sequence[Trajectory]) -> list[float | None]:
            return [-0.5] * len(group)

    with pytest.raises(UserError, match=r"'em', which gave -0\.5"):
        WeightedSumReward([(Negative(), 1.0)])([done(0)])
