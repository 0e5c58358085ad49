"""Attention of packed runs: one kernel for all of them computes what a kernel for each one does.

The kernel for CUDA devices is replaced here by what its documentation says; tests/gpu has the real
one.
"""

import random

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from fieldcraft.train import attention
from training_parts import attended, random_forest


def documented(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_ends: Tensor,
    key_ends: Tensor,
    longest_query: int,
    longest_keys: int,
    *,
    scale: float | None,
    window_size: tuple[int, int],
) -> Tensor:
    """`varlen_attn`: texts one after the other, causal from the last key on."""
    assert window_size == (-1, 0)
    asking, seen = query_ends.diff().tolist(), key_ends.diff().tolist()
    assert (longest_query, longest_keys) == (max(asking), max(seen))
    parts = [x.split(sizes) for x, sizes in ((query, asking), (key, seen), (value, seen))]
    mixed = []
    for q, k, v in zip(*parts, strict=True):
        mask = torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q))
        q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
        mixed.append(scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)[0])
    return torch.cat(mixed, 1).transpose(0, 1)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("partly", [False, True])
def test_one_kernel_computes_what_many_do(
    seed: int, partly: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    runs = random_forest(rng, rng.randint(1, 7))
    held = sorted(rng.sample(range(len(runs)), rng.randint(1, len(runs)))) if partly else None
    expected = attended(runs, held, seed)
    monkeypatch.setattr(attention, "has_flash", lambda query: True)
    monkeypatch.setattr(attention, "varlen_attn", documented)
    for found, wanted in zip(attended(runs, held, seed), expected, strict=True):
        torch.testing.assert_close(found, wanted)


def test_a_cpu_has_no_such_kernel() -> None:
    assert not attention.has_flash(torch.zeros(1, 2, 3, 64, dtype=torch.bfloat16))
