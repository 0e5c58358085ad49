"""Durations of bench/simulation/, compared with numbers computed by hand."""

import math

import pytest

from script_modules import import_bench

durations = import_bench("simulation.durations")
DeviceSplit, ForwardPasses = durations.DeviceSplit, durations.ForwardPasses
RolloutLoad, Roofline, TrainingCost = (
    durations.RolloutLoad,
    durations.Roofline,
    durations.TrainingCost,
)
estimate_broadcast_seconds = durations.estimate_broadcast_seconds
estimate_sampling_seconds = durations.estimate_sampling_seconds
find_best_split = durations.find_best_split

# 100 operations a second, 40 of them achieved, and 10 bytes a second, 7 of them achieved
SLOW = durations.DeviceRates(
    flops_per_second=100.0,
    memory_bandwidth=10.0,
    intra_node_bandwidth=5.0,
    inter_node_bandwidth=2.0,
    devices_per_node=2,
)
SHAPE = durations.ModelShape(
    parameters=10, layers=2, hidden_size=3, dtype_bytes=2, kv_bytes_per_token=4
)


class Steady:
    """Engine in which one token of all rows takes a second, and reading takes no time."""

    def decode_seconds(self, rows: int, cached_tokens: float) -> float:
        return 1.0

    def prefill_seconds(self, tokens: float) -> float:
        return 0.0


class Reading(Steady):
    """Engine in which a prompt token takes a tenth of a second."""

    def prefill_seconds(self, tokens: float) -> float:
        return tokens / 10


def test_operations_of_a_forward_pass() -> None:
    assert SHAPE.count_forward_flops(tokens=5, mean_length=0) == 5 * 2 * 10
    assert SHAPE.count_forward_flops(tokens=5, mean_length=7) == 5 * (20 + 2 * 2 * 3 * 7)


def test_training_is_operations_over_the_rate_of_all_ranks() -> None:
    one = TrainingCost(SLOW, ranks=1, micro_batch_tokens=8)
    assert one.compute_seconds(SHAPE, 8, 0, ForwardPasses()) == pytest.approx(8 * 20 * 3 / 40)
    assert one.compute_seconds(SHAPE, 8, 0, ForwardPasses(1, 1, True)) == pytest.approx(
        8 * 20 * 5 / 40
    )
    assert one.communication_seconds(SHAPE, 8, ForwardPasses()) == 0
    two = TrainingCost(SLOW, ranks=2, micro_batch_tokens=8)
    assert two.compute_seconds(SHAPE, 8, 0, ForwardPasses()) == pytest.approx(8 * 20 * 3 / 80)


def test_communication_is_bytes_over_the_slowest_wire() -> None:
    """Two gathers of 2 bytes and a gradient of 4 bytes are sent for each of 10 numbers, half of
    which a rank holds itself. 32 tokens are two micro-batches for each of two ranks.
    """
    two = TrainingCost(SLOW, ranks=2, micro_batch_tokens=8)
    assert two.communication_seconds(SHAPE, 16, ForwardPasses()) == pytest.approx(10 * 8 / 2 / 5)
    assert two.communication_seconds(SHAPE, 32, ForwardPasses()) == pytest.approx(
        2 * 10 * 8 / 2 / 5
    )
    four = TrainingCost(SLOW, ranks=4, micro_batch_tokens=8)
    assert four.communication_seconds(SHAPE, 32, ForwardPasses()) == pytest.approx(
        10 * 8 * 3 / 4 / 2
    )
    assert four.step_seconds(SHAPE, 32, 0, ForwardPasses()) == pytest.approx(10 * 8 * 3 / 4 / 2)
    assert SLOW.get_link_bandwidth(1) == math.inf


def test_an_engine_is_bound_by_memory_and_with_many_rows_by_products() -> None:
    engine = Roofline(SHAPE, SLOW)
    assert engine.decode_seconds(1, 0) == pytest.approx(20 / 7)
    assert engine.decode_seconds(1, 10) == pytest.approx((20 + 40) / 7)
    assert engine.decode_seconds(100, 0) == pytest.approx(100 * 20 / 40)
    assert engine.prefill_seconds(6) == pytest.approx(6 * 20 / 40)
    assert Roofline(SHAPE, SLOW, num_devices=2).decode_seconds(1, 10) == pytest.approx(60 / 14)


def test_weights_travel_over_the_slowest_wire() -> None:
    assert estimate_broadcast_seconds(SHAPE, SLOW, 1, 1) == pytest.approx(20 / 5)
    assert estimate_broadcast_seconds(SHAPE, SLOW, 2, 1) == pytest.approx(20 / 2)


def test_sampling_is_tokens_over_throughput() -> None:
    """12 rollouts of 10 tokens on 2 engines of 3 rows: two rounds of three, 10 seconds each."""
    rollouts = RolloutLoad(12, policy_tokens=10, mean_tokens=10, max_policy_tokens=10)
    assert estimate_sampling_seconds(Steady(), 2, 3, rollouts) == pytest.approx(20)
    assert estimate_sampling_seconds(Steady(), 2, 100, rollouts) == pytest.approx(10)
    # the longest rollout bounds the time, which covers two steps if they overlap
    assert estimate_sampling_seconds(
        Steady(), 12, 100, RolloutLoad(12, 10, 10, max_policy_tokens=30, max_tool_seconds=6)
    ) == pytest.approx(36)
    assert estimate_sampling_seconds(
        Steady(), 12, 100, RolloutLoad(12, 10, 10, max_policy_tokens=30, max_tool_seconds=6), 1
    ) == pytest.approx(18)


def test_what_is_read_is_the_prompt_and_once_more_what_is_under_way() -> None:
    """Each engine has six rollouts with 10 tokens written and 10 read.

    With one step ahead 12 rollouts are half done when weights are published.
    """
    rollouts = RolloutLoad(12, policy_tokens=10, mean_tokens=20, max_policy_tokens=10)
    assert estimate_sampling_seconds(Reading(), 2, 12, rollouts) == pytest.approx(10 + 6 * 10 / 10)
    assert estimate_sampling_seconds(Reading(), 2, 12, rollouts, 1) == pytest.approx(
        5 + (6 * 10 + 12 * 10) / 10
    )


def test_the_best_split_balances_both_sides() -> None:
    split = find_best_split(12, 1, lambda n: 40 / n, lambda n: 20 / n)
    assert split == DeviceSplit(8, 4, 5.0)
    assert find_best_split(12, 4, lambda n: 40 / n, lambda n: 20 / n) == DeviceSplit(4, 2, 10.0)
    assert find_best_split(2, 1, lambda n: 1 / n, lambda n: 1 / n, min_trainers=2) is None


def test_links_within_a_node_are_faster() -> None:
    assert durations.H200.get_link_bandwidth(8) == 450e9
    assert durations.H200.get_link_bandwidth(9) == 50e9
