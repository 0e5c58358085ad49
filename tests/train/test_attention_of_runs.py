"""Attention of packed runs, with one kernel for all runs or in parts without a mask.

Both compute the same as a kernel with a mask for each run. A function written from the
documentation of the CUDA kernel replaces it here; tests/gpu uses the real one.
"""

import random
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from fieldcraft.train import packed_attention
from fieldcraft.train.batch import TokenRun
from fieldcraft.train.blockwise_attention import blockwise_attention_forward, split_blocks
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
    """Compute `varlen_attn` as documented: consecutive texts, causal up to the last key."""
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


def random_case(seed: int, partly: bool) -> tuple[list[TokenRun], list[int] | None]:
    rng = random.Random(seed)
    runs = random_forest(rng, rng.randint(1, 7))
    return runs, rng.sample(range(len(runs)), rng.randint(1, len(runs))) if partly else None


def not_in_parts(
    runs: list[TokenRun], held: list[int] | None, seed: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, ...]:
    with patch.object(packed_attention, "supports_cpu_kernel", lambda *_: False):
        return attended(runs, held, seed, dtype=dtype)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("partly", [False, True])
def test_one_kernel_computes_what_many_do(
    seed: int, partly: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, held = random_case(seed, partly)
    expected = not_in_parts(runs, held, seed)
    monkeypatch.setattr(packed_attention, "supports_varlen_kernel", lambda query: True)
    monkeypatch.setattr(packed_attention, "varlen_attn", documented)
    for found, target in zip(not_in_parts(runs, held, seed), expected, strict=True):
        torch.testing.assert_close(found, target)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("partly", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_parts_compute_what_masks_do(seed: int, partly: bool, dtype: torch.dtype) -> None:
    runs, held = random_case(seed, partly)
    expected = not_in_parts(runs, held, seed, dtype)
    for found, target in zip(attended(runs, held, seed, dtype=dtype), expected, strict=True):
        torch.testing.assert_close(found, target)


@pytest.mark.parametrize("seed", range(8))
def test_parts_in_bfloat16_are_as_near_as_masks(seed: int) -> None:
    runs, _ = random_case(seed, partly=False)
    exact = not_in_parts(runs, None, seed)
    masks, parts = (way(runs, None, seed, dtype=torch.bfloat16) for way in (not_in_parts, attended))
    for target, by_masks, by_parts in zip(exact, masks, parts, strict=True):
        most = (by_masks.float() - target).norm()
        assert (by_parts.float() - target).norm() < 1.2 * most + 1e-6


def test_scores_far_apart_are_joined() -> None:
    """The last query gives almost no weight to the run before its own."""
    runs = (TokenRun(0, 2, None), TokenRun(2, 4, 0))
    query = torch.full((1, 1, 4, 8), 100.0)
    key = torch.tensor([-10.0, -10, -10, 10]).view(1, 1, 4, 1).expand(1, 1, 4, 8).contiguous()
    value = torch.arange(4.0).view(1, 1, 4, 1).expand(1, 1, 4, 8).contiguous()
    found = blockwise_attention_forward(query, key, value, runs, (0, 1), None)
    torch.testing.assert_close(found[0, :, 0, 0], torch.tensor([0.0, 0.5, 1.0, 3.0]))


@pytest.mark.parametrize("window", [2, 3, 5])
def test_a_window_that_hides_something_needs_masks(window: int) -> None:
    """The last token sees five tokens: a prefix of two and a run of three after it."""
    runs = (TokenRun(0, 2, None), TokenRun(2, 5, 0))
    query, key, value = (torch.randn(1, 2, 5, 8) for _ in range(3))
    layer: Any = SimpleNamespace(config=SimpleNamespace(sliding_window=window))
    found, _ = packed_attention.packed_attention_forward(
        layer, query, key, value, None, runs=runs, sliding_window=window
    )
    mask = torch.ones(5, 5, dtype=torch.bool).tril().triu(1 - window)
    expected = scaled_dot_product_attention(query, key, value, attn_mask=mask)
    torch.testing.assert_close(found, expected.transpose(1, 2))


def test_a_prefix_meets_all_that_continue_it_at_once() -> None:
    runs = (
        TokenRun(0, 4, None),
        TokenRun(4, 6, 0),
        TokenRun(6, 9, 1),
        TokenRun(9, 10, 0),
        TokenRun(10, 12, None),
    )
    others = [(b.queries, b.keys) for b in split_blocks(runs, (0, 1, 2, 3, 4)) if not b.is_causal]
    assert others == [(slice(4, 10), slice(0, 4)), (slice(6, 9), slice(4, 6))]


def test_a_cpu_has_no_such_kernel() -> None:
    assert not packed_attention.supports_varlen_kernel(
        torch.zeros(1, 2, 3, 64, dtype=torch.bfloat16)
    )
