"""Formulas of times, against numbers worked out by hand."""

import math

import pytest

from fieldcraft.scaling.costs import Passes, Roofline, Shape, Trainers, publishing
from fieldcraft.scaling.devices import DEVICES, Device, find_device, nodes_of, wires
from fieldcraft.scaling.steps import Rollouts, Split, best_split, sampling
from fieldcraft.types import UserError

# 100 operations a second of which 40 are reached, and 10 bytes a second of which 7 are
SLOW = Device("slow", memory=1e3, rate=100.0, bandwidth=10.0, link=5.0, network=2.0, of_node=2)
SHAPE = Shape(parameters=10, layers=2, width=3, bytes=2, token_bytes=4)


class Steady:
    """A token of all rows takes a second, and reading nothing."""

    def step(self, rows: int, tokens: float) -> float:
        return 1.0

    def prefill(self, tokens: float) -> float:
        return 0.0


class Reading(Steady):
    """A token of a prompt takes a tenth of a second."""

    def prefill(self, tokens: float) -> float:
        return tokens / 10


def test_operations_of_a_forward_pass() -> None:
    assert SHAPE.operations(tokens=5, length=0) == 5 * 2 * 10
    assert SHAPE.operations(tokens=5, length=7) == 5 * (20 + 2 * 2 * 3 * 7)


def test_training_is_operations_over_the_rate_of_all_ranks() -> None:
    one = Trainers(SLOW, ranks=1, micro_tokens=8)
    assert one.computing(SHAPE, 8, 0, Passes()) == pytest.approx(8 * 20 * 3 / 40)
    assert one.computing(SHAPE, 8, 0, Passes(1, 1, True)) == pytest.approx(8 * 20 * 5 / 40)
    assert one.talking(SHAPE, 8, Passes()) == 0
    two = Trainers(SLOW, ranks=2, micro_tokens=8)
    assert two.computing(SHAPE, 8, 0, Passes()) == pytest.approx(8 * 20 * 3 / 80)


def test_communication_is_bytes_over_the_slowest_wire() -> None:
    """Two gathers of 2 bytes and a gradient of 4 bytes, for each of 10 numbers, of which a rank has
    a half itself; 32 tokens are two micro-batches for each of two ranks."""
    two = Trainers(SLOW, ranks=2, micro_tokens=8)
    assert two.talking(SHAPE, 16, Passes()) == pytest.approx(10 * 8 / 2 / 5)
    assert two.talking(SHAPE, 32, Passes()) == pytest.approx(2 * 10 * 8 / 2 / 5)
    four = Trainers(SLOW, ranks=4, micro_tokens=8)
    assert four.talking(SHAPE, 32, Passes()) == pytest.approx(10 * 8 * 3 / 4 / 2)
    assert four.seconds(SHAPE, 32, 0, Passes()) == pytest.approx(10 * 8 * 3 / 4 / 2)
    assert wires(SLOW, 1) == math.inf


def test_an_engine_is_bound_by_memory_and_with_many_rows_by_products() -> None:
    engine = Roofline(SHAPE, SLOW)
    assert engine.step(1, 0) == pytest.approx(20 / 7)
    assert engine.step(1, 10) == pytest.approx((20 + 40) / 7)
    assert engine.step(100, 0) == pytest.approx(100 * 20 / 40)
    assert engine.prefill(6) == pytest.approx(6 * 20 / 40)
    assert Roofline(SHAPE, SLOW, devices=2).step(1, 10) == pytest.approx(60 / 14)


def test_weights_travel_over_the_slowest_wire() -> None:
    assert publishing(SHAPE, SLOW, 1, 1) == pytest.approx(20 / 5)
    assert publishing(SHAPE, SLOW, 2, 1) == pytest.approx(20 / 2)


def test_sampling_is_tokens_over_throughput() -> None:
    """12 rollouts of 10 tokens on 2 engines of 3 rows: two rounds of three, 10 seconds each."""
    rollouts = Rollouts(12, written=10, length=10, longest=10)
    assert sampling(Steady(), 2, 3, rollouts) == pytest.approx(20)
    assert sampling(Steady(), 2, 100, rollouts) == pytest.approx(10)
    # the longest does not end before its time, in which two steps are done if they overlap
    assert sampling(
        Steady(), 12, 100, Rollouts(12, 10, 10, longest=30, waiting=6)
    ) == pytest.approx(36)
    assert sampling(
        Steady(), 12, 100, Rollouts(12, 10, 10, longest=30, waiting=6), 1
    ) == pytest.approx(18)


def test_what_is_read_is_the_prompt_and_once_more_what_is_under_way() -> None:
    """Six rollouts an engine, of which 10 tokens are written and 10 read. With one step ahead 12
    of them are half done when weights are published."""
    rollouts = Rollouts(12, written=10, length=20, longest=10)
    assert sampling(Reading(), 2, 12, rollouts) == pytest.approx(10 + 6 * 10 / 10)
    assert sampling(Reading(), 2, 12, rollouts, 1) == pytest.approx(5 + (6 * 10 + 12 * 10) / 10)


def test_the_best_split_balances_both_sides() -> None:
    split = best_split(12, 1, lambda n: 40 / n, lambda n: 20 / n)
    assert split == Split(8, 4, 5.0)
    assert best_split(12, 4, lambda n: 40 / n, lambda n: 20 / n) == Split(4, 2, 10.0)
    assert best_split(2, 1, lambda n: 1 / n, lambda n: 1 / n, fewest=2) is None


def test_devices_of_nodes() -> None:
    h100 = find_device("h100")
    assert nodes_of(h100, 16) == [8, 8]
    assert nodes_of(h100, 11) == [8, 3]
    assert wires(h100, 8) == 450e9
    assert wires(h100, 9) == 50e9
    with pytest.raises(UserError, match="--gpus 0 is no number of devices: give 1 or more"):
        nodes_of(h100, 0)
    with pytest.raises(UserError, match=r"no device 'h10' .* did you mean 'h100'\?"):
        find_device("h10")


def test_devices_are_in_plausible_order() -> None:
    """A product is read from memory more slowly than it is computed, and sent more slowly still."""
    for device in DEVICES.values():
        assert device.rate > device.bandwidth > device.link > device.network
