"""Costs of acting, computed by hand: calls, tokens, and the cheapest way to an answer."""

import pytest

from fieldcraft.records.costs import CostModel, compute_acting_cost, sum_call_costs
from fieldcraft.records.tool_metrics import compute_tool_metrics
from fieldcraft.records.trajectories import from_json, to_json
from fieldcraft.types import Author, CallOutcome, CallRecord, Segment, Task, Trajectory

COSTS = CostModel({"search": 1.0, "page": 4.0, "note": 0.0}, cost_per_1k_tokens=2.0)
FREE_TOKENS = CostModel({"search": 1.0, "page": 4.0})


def made(*tools: str, tokens: int = 0, em: float = 1.0, **meta: object) -> Trajectory:
    calls = [CallRecord(tool, {}, "", CallOutcome.OK, 0.0) for tool in tools]
    segments = [Segment(Author.PROMPT, [1] * 9, ""), Segment(Author.POLICY, [1] * tokens, "")]
    task = Task("t", "?", ("a",), dict(meta))
    return Trajectory(task, segments, calls, rewards={"em": em})


def test_a_rollout_pays_for_what_was_run_and_for_what_it_wrote() -> None:
    trajectory = made("search", "page", "page", "note", "other", tokens=250)
    trajectory.calls[1].outcome = CallOutcome.FAILED  # failed calls have a cost
    trajectory.calls[2].outcome = CallOutcome.REFUSED
    COSTS.price(trajectory)
    assert [call.cost for call in trajectory.calls] == [1, 4, 4, 0, 1]
    assert sum_call_costs(trajectory) == 6
    assert compute_acting_cost(trajectory) == 6.5


def test_prices_are_written_and_read_back_and_where_there_are_none_nothing_is_written() -> None:
    trajectory = made("page", tokens=3)
    plain = to_json(trajectory)
    assert "cost" not in plain
    CostModel({"page": 1.0}).price(trajectory)
    assert to_json(trajectory) == plain
    COSTS.price(trajectory)
    assert from_json(to_json(trajectory)) == trajectory
    broken = to_json(trajectory).replace('"cost":4.0', '"cost":-4.0')
    with pytest.raises(ValueError, match="below 0"):
        from_json(broken)


WAYS = [{"search": 3, "page": 0}, {"search": 1, "page": 1}, {"page": 2}, {"oracle": 0}]


def test_the_optimum_is_the_cheapest_way_that_the_tools_can_go() -> None:
    assert FREE_TOKENS.find_optimal_cost({"ways": WAYS}) == 3
    assert CostModel({"search": 1.0, "page": 1.0}).find_optimal_cost({"ways": WAYS}) == 2
    assert CostModel({"search": 9.0}).find_optimal_cost({"ways": WAYS}) is None
    assert FREE_TOKENS.find_optimal_cost({"cost_optimal": 0.5, "ways": WAYS}) == 0.5


def test_an_empty_cell_of_a_table_is_an_unknown_optimum() -> None:
    empty: dict[str, object] = {"cost_optimal": None, "ways": None, "calls_optimal": 2}
    assert CostModel({"a": 3.0}).find_optimal_cost(empty) == 6
    assert FREE_TOKENS.find_optimal_cost(empty | {"ways": WAYS}) == 3
    trajectory = made("page", **empty)
    FREE_TOKENS.price(trajectory)
    assert from_json(to_json(trajectory)) == trajectory
    assert compute_tool_metrics([trajectory])["call_cost_optimal_mean"] is None


def test_without_ways_it_is_known_where_all_tools_cost_the_same() -> None:
    assert CostModel({"a": 3.0, "b": 3.0}).find_optimal_cost({"calls_optimal": 2}) == 6
    assert FREE_TOKENS.find_optimal_cost({"calls_optimal": 2}) is None
    assert FREE_TOKENS.find_optimal_cost({}) is None


def test_the_metrics_of_costs() -> None:
    """Two rollouts: costs 5 and 0, minimum costs 3 and 1; 500 tokens at 2 per thousand in total."""
    both = [
        made("search", "page", tokens=400, ways=[{"search": 3}], calls_optimal=2),
        made(tokens=100, em=0.0, ways=[{"search": 1}], calls_optimal=1),
    ]
    for trajectory in both:
        COSTS.price(trajectory)
    found = compute_tool_metrics(both)
    assert (found["calls_mean"], found["calls_optimal_mean"]) == (1, 1.5)
    assert (found["call_cost_mean"], found["call_cost_optimal_mean"]) == (2.5, 2)
    assert found["call_cost_regret_mean"] == 1.5  # of 2 above and 1 below
    assert found["token_cost_mean"] == 0.5
    assert found["acting_cost_per_success"] == 6


def test_what_is_not_known_has_no_number() -> None:
    some = [made(ways=[{"search": 1}]), made()]
    for trajectory in some:
        COSTS.price(trajectory)
    found = compute_tool_metrics(some)
    assert found["call_cost_optimal_mean"] is found["call_cost_regret_mean"] is None
    assert compute_tool_metrics([made("search", em=0.0)])["acting_cost_per_success"] is None


@pytest.mark.parametrize("ways", ["search", [["search"]], [{"search": -1}], [{"search": 0.5}]])
def test_ways_are_calls_by_tool(ways: object) -> None:
    line = to_json(made(ways=ways))
    with pytest.raises(ValueError, match="must be a list of calls by tool"):
        from_json(line)
