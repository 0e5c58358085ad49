import numpy as np
import pytest
import torch

from fieldcraft.engine.local.kv_cache import make_plan, read_length

CPU = torch.device("cpu")


def test_rows_attend_in_groups_of_similar_width() -> None:
    tokens = np.arange(4 * 200).reshape(4, 200)
    rows, starts, counts = np.array([0, 1, 3]), np.array([0, 7, 2]), np.array([100, 1, 3])
    plan = make_plan(tokens, rows, starts, counts, CPU)
    assert plan.ids.tolist() == [*range(100), 207, 602, 603, 604]
    assert plan.rows.tolist() == [0] * 100 + [1] + [3] * 3
    assert plan.positions.tolist() == [*range(100), 7, 2, 3, 4]
    decoding, short, long = plan.groups
    assert decoding.rows is None
    assert decoding.mask.shape == (2, 1, 16)  # rows 0 and 1 where they lie, row 0 idle
    assert decoding.mask[1, 0].tolist() == [True] * 8 + [False] * 8
    assert decoding.tokens.tolist() == [100]
    assert short.rows.tolist() == [3]
    assert short.mask.sum(-1).tolist() == [[3, 4, 5]]
    assert long.rows.tolist() == [0]
    assert long.mask.shape == (1, 100, 112)
    assert long.at[1].tolist() == list(range(100))


@pytest.mark.parametrize(
    ("length", "device", "read"),
    [(20, "cpu", 32), (65, "cpu", 128), (65, "cuda", 80), (127, "cuda", 128), (100, "cuda", 112)],
)
def test_no_more_is_read_than_pays(length: int, device: str, read: int) -> None:
    assert read_length(length, 128, torch.device(device)) == read


def test_capacity_that_is_no_multiple_is_not_exceeded() -> None:
    assert read_length(45, 50, torch.device("cuda")) == 48
    assert read_length(49, 50, torch.device("cuda")) == 50
