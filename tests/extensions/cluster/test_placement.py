"""Placement of processes, a pure function that is tested without Ray."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldcraft.config.sections import ClusterConfig
from fieldcraft.extensions.cluster.placement import ProcessPlacement, place_processes
from fieldcraft.types import UserError


def test_trainers_fill_the_first_nodes_and_engines_the_rest() -> None:
    places = place_processes(ClusterConfig(trainers=3, engines=2), [4, 4])
    assert [(p.role, p.index, p.node, p.first_device) for p in places] == [
        ("trainer", 0, 0, 0),
        ("trainer", 1, 0, 1),
        ("trainer", 2, 0, 2),
        ("engine", 0, 0, 3),
        ("engine", 1, 1, 0),
    ]


def test_an_engine_of_two_devices_lies_on_one_node() -> None:
    places = place_processes(ClusterConfig(trainers=3, engines=2, tensor_parallel=2), [4, 4])
    assert places[3:] == [
        ProcessPlacement("engine", 0, 1, 0, 2),
        ProcessPlacement("engine", 1, 1, 2, 2),
    ]


def test_colocated_engines_lie_on_the_devices_of_trainers() -> None:
    places = place_processes(
        ClusterConfig(trainers=4, engines=2, tensor_parallel=2, colocate=True), [2, 2]
    )
    assert places[4:] == [
        ProcessPlacement("engine", 0, 0, 0, 2),
        ProcessPlacement("engine", 1, 1, 0, 2),
    ]


def test_fewer_devices_than_asked_for_are_a_sentence() -> None:
    with pytest.raises(UserError, match=r"requires 12 devices \(8 trainers and 4 engines\).* 8:"):
        place_processes(ClusterConfig(trainers=8, engines=4), [4, 4])


def test_engines_that_fit_in_number_but_not_on_a_node_are_a_sentence() -> None:
    with pytest.raises(UserError, match="on one node, and the nodes have 3, 3"):
        place_processes(ClusterConfig(trainers=2, engines=2, tensor_parallel=2), [3, 3])


@given(
    trainers=st.integers(0, 9),
    engines=st.integers(0, 5),
    devices=st.integers(1, 3),
    nodes=st.lists(st.integers(0, 8), min_size=1, max_size=4),
)
def test_no_device_is_given_twice(
    trainers: int, engines: int, devices: int, nodes: list[int]
) -> None:
    cluster = ClusterConfig(trainers=trainers, engines=engines, tensor_parallel=devices)
    try:
        places = place_processes(cluster, nodes)
    except UserError:
        return
    assert len(places) == trainers + engines
    for node, has in enumerate(nodes):
        ranges = sorted(
            (p.first_device, p.first_device + p.num_devices) for p in places if p.node == node
        )
        assert all(end <= begin for (_, end), (begin, _) in pairwise(ranges))
        assert all(end <= has for _, end in ranges)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"trainers": 3, "context_parallel": 2}, "multiple"),
        ({"context_parallel": 2}, "multiple"),
        ({"trainers": 2, "colocate": True}, "needs engines"),
        ({"trainers": 1, "engines": 2, "colocate": True}, "as many trainers"),
    ],
)
def test_keys_that_do_not_fit_together_are_refused(keys: dict[str, int], words: str) -> None:
    with pytest.raises(UserError, match=words):
        ClusterConfig(**keys)
