"""The cost of an answer: requests, tokens and prices, by hand."""

from typing import Any

import pytest

from fieldcraft.evaluation.summary import (
    RequestCost,
    compute_cost,
    compute_cost_metrics,
    summarise_evaluation,
)
from fieldcraft.evaluation.tables import build_detail_tables
from fieldcraft.types import Author, CallOutcome, CallRecord, Segment, Task, Trajectory

P, W, T = Author.PROMPT, Author.POLICY, Author.TOOL


def chain(*lengths: tuple[Author, int], correct: bool = True, **meta: Any) -> Trajectory:
    """Return segments of these lengths; each tool segment has a call, and the rollout takes 2
    seconds."""
    calls = [
        CallRecord("search", {}, "", CallOutcome.OK, 0.1) for author, _ in lengths if author is T
    ]
    return Trajectory(
        Task("t", "?", ("a",), meta),
        [Segment(author, [1] * length, "x") for author, length in lengths],
        calls,
        rewards={"em": float(correct), "f1": 0.0},
        seconds=2.0,
    )


def test_a_policy_makes_a_request_a_turn_that_reads_the_chain_so_far() -> None:
    assert compute_cost(chain((P, 10), (W, 4), (T, 6), (W, 5))) == RequestCost(2, 10 + 20, 9)


def test_a_new_chain_is_read_from_its_own_beginning() -> None:
    folded = chain((P, 10), (W, 4), (P, 7), (W, 5))
    folded.folds = [2]
    assert compute_cost(folded) == RequestCost(2, 10 + 7, 9)


def test_what_others_spent_is_in_the_metadata() -> None:
    noted = RequestCost(5, 900, 80).as_meta()
    assert compute_cost(chain((P, 10), (W, 4), **noted)) == RequestCost(5, 900, 80)


def test_a_price_of_their_own_wins() -> None:
    own = chain((P, 1), **RequestCost(1, 10, 10, cost=0.5).as_meta())
    assert compute_cost(own, (2.0, 8.0)).cost == 0.5
    assert compute_cost(chain((P, 1_000), (W, 500)), (2.0, 8.0)).cost == pytest.approx(0.006)


def test_sums_a_success() -> None:
    part = [chain((P, 10), (W, 4), (T, 6), (W, 5)), chain((P, 10), (W, 3), correct=False)]
    found = compute_cost_metrics(part, (1e6, 2e6))
    assert found == {
        "requests_mean": 1.5,
        "prompt_tokens_mean": 20,
        "completion_tokens_mean": 6,
        "member_prompt_tokens_mean": 0,
        "cost_mean": 32,
        "tokens_per_success": 52,
        "calls_per_success": 1,
        "seconds_per_success": 4,
        "cost_per_success": 64,
    }


def test_without_a_right_answer_or_a_price_there_is_no_such_number() -> None:
    found = compute_cost_metrics([chain((P, 10), (W, 4), correct=False)], None)
    assert (found["cost_mean"], found["cost_per_success"], found["tokens_per_success"]) == (
        None,
        None,
        None,
    )


def test_the_table_of_costs_comes_with_prices() -> None:
    one = chain((P, 10), (W, 4))
    plain, priced = summarise_evaluation([one]), summarise_evaluation([one], prices=(1.0, 1.0))
    assert len(build_detail_tables({"a": plain})) == 1
    _, costs = build_detail_tables({"a": plain, "b": priced})
    assert costs.headers[-1] == "cost of 1,000\nsuccesses"
    assert [(name, cells[-1]) for name, cells in costs.rows] == [("a", ""), ("b", "0.014")]
