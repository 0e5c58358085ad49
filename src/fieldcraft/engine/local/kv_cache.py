"""A key-value cache whose rows are filled independently, and the attention that reads it.

A forward is one packed line of tokens, `[1, T]`: every running row contributes the tokens it has
not computed yet, one when it decodes and many when it reads a prompt or an observation. Linear
layers so never see padding; only attention has to know which token belongs to which row.

Shapes: T tokens of a step, R rows of a group, W the widest contribution of a row in its group,
L cached positions looked at, Hq / H query and key-value heads, D head dimension.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import scaled_dot_product_attention
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.modeling_utils import AttentionInterface

from fieldcraft.engine.attention import UNSUPPORTED
from fieldcraft.types import UserError

ATTENTION = "fieldcraft_rows"

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Group:
    """Rows that attend together, padded to the same number of queries.

    `rows` None means the first R rows of the cache, which are read where they lie; other rows are
    copied first, a cost that their many queries share.
    """

    rows: torch.Tensor | None  # [R]
    tokens: torch.Tensor  # [t] places in the packed line
    at: tuple[torch.Tensor, torch.Tensor]  # [t], [t] their places in the padded [R, W]
    mask: torch.Tensor  # [R, W, L] bool, True where a query sees a position


@dataclass(frozen=True, slots=True)
class Plan:
    """Where the tokens of one step belong."""

    ids: torch.Tensor  # [T]
    rows: torch.Tensor  # [T]
    positions: torch.Tensor  # [T]
    groups: tuple[Group, ...]


class RowLayer(CacheLayerMixin):
    """Keys and values of one layer, `[rows, H, capacity, D]`, token t of a row at position t."""

    def __init__(self, cache: RowCache) -> None:
        super().__init__()
        self.cache = cache

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.keys, self.values = key_states[:0, :, :0], value_states[:0, :, :0]
        self.is_initialized = True
        self.fit()

    def fit(self) -> None:
        """Reallocate to the cache's number of rows and capacity."""
        self.keys, self.values = (
            _enlarged(old, self.cache.rows, self.cache.capacity) for old in (self.keys, self.values)
        )

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store `[1, H, T, D]` where the plan says; returns the whole cache of this layer."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        plan = self.cache.plan
        self.keys[plan.rows, :, plan.positions] = key_states[0].transpose(0, 1)
        self.values[plan.rows, :, plan.positions] = value_states[0].transpose(0, 1)
        return self.keys, self.values

    def get_seq_length(self) -> int:
        return self.cache.capacity

    def get_max_length(self) -> int:
        return self.cache.capacity

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.cache.capacity, 0


def _enlarged(old: torch.Tensor, rows: int, capacity: int) -> torch.Tensor:
    # Zeros, not empty: what a mask hides is still multiplied, and 0 * NaN is NaN.
    had, held = old.shape[0], old.shape[2]
    new = old.new_empty(rows, old.shape[1], capacity, old.shape[3])
    new[:had, :, :held] = old
    new[:had, :, held:] = 0
    new[had:] = 0
    return new


class RowCache(Cache):
    """All layers; rows and capacity grow by reallocation, the caller decides when."""

    def __init__(self, layers: int, rows: int, capacity: int) -> None:
        self.rows, self.capacity = rows, capacity
        self.plan: Plan
        super().__init__(layers=[RowLayer(self) for _ in range(layers)])

    @property
    def bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._tensors())

    def _tensors(self) -> Iterator[torch.Tensor]:
        for layer in self.layers:
            if layer.is_initialized:
                yield from (layer.keys, layer.values)

    @torch.inference_mode()  # where its tensors were made
    def grow(self, rows: int, capacity: int) -> None:
        """Reallocate layer by layer, so that the peak is one layer above the new size."""
        self.rows, self.capacity = rows, capacity
        for layer in self.layers:
            if layer.is_initialized:
                layer.fit()

    @torch.inference_mode()
    def copy(self, sources: Ints, targets: Ints, length: int) -> None:
        """Overwrite the first `length` positions of `targets`; all sources are read first, so a
        permutation of rows is a copy too."""
        for layer in self.layers:
            if layer.is_initialized:
                read, write = to_device(np.stack([sources, targets]), layer.keys.device)
                for tensor in (layer.keys, layer.values):
                    tensor[write, :, :length] = tensor[read, :, :length]

    @torch.inference_mode()
    def clear(self, row: int) -> None:
        """Overwrite a row with zeros: non-finite numbers must not meet the row's next owner."""
        for tensor in self._tensors():
            tensor[row] = 0


def to_device(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """Copy without waiting for what the device is doing."""
    return torch.from_numpy(array).to(device, non_blocking=True)


def make_plan(tokens: Ints, rows: Ints, starts: Ints, counts: Ints, device: torch.device) -> Plan:
    """Lay out a step in which `rows[i]` (ascending) adds the `counts[i]` tokens that stand after
    its `starts[i]` cached ones in `tokens` [rows of the cache, capacity]."""
    ends = np.cumsum(counts)
    index = np.repeat(np.arange(len(rows)), counts)  # [T] place of a token's row in `rows`
    offset = np.arange(ends[-1]) - (ends - counts)[index]  # [T] place within its row's tokens
    row, position = rows[index], starts[index] + offset
    packed = np.stack([tokens[row, position], row, position])
    ids_T, rows_T, positions_T = to_device(packed, device)
    groups = []
    # A group is padded to its widest row: widths of one group differ by at most a factor of four.
    widths = np.ceil(np.log2(counts) / 2).astype(np.int64)
    for width in np.unique(widths):
        members = widths == width
        place = np.cumsum(members) - 1  # place of a row within its group
        if width == 0:  # decoding rows are read in place, so their place is the row itself
            place, group_rows = rows, None
            start = np.zeros(rows[members][-1] + 1, np.int64)
            start[rows[members]] = starts[members]
        else:
            group_rows, start = to_device(rows[members], device), starts[members]
        mine = np.flatnonzero(members[index])
        where = np.stack([mine, place[index[mine]], offset[mine]])
        tokens_t, row_t, column_t = to_device(where, device)
        length = read_length(int((starts + counts)[members].max()), tokens.shape[1], device)
        queries = to_device(start[:, None] + np.arange(counts[members].max()), device)
        seen = torch.arange(length, device=device) <= queries[..., None]
        groups.append(Group(group_rows, tokens_t, (row_t, column_t), seen))
    return Plan(ids_T, rows_T, positions_T, tuple(groups))


def read_length(length: int, capacity: int, device: torch.device) -> int:
    """How many positions attention reads when `length` are in use."""
    # CPUs read a whole contiguous cache faster than two thirds of every row of it (measured:
    # 256 rows x 128 positions in 5.9 ms, the first 64 in 10 ms, the first 112 in 14 ms).
    if device.type == "cpu" and 2 * length > capacity:
        return capacity
    # Rounded up so that shapes repeat, which allocators and attention kernels like.
    return min(-(-length // 16) * 16, capacity)


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    plan: Plan,
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of a packed step: `query` [1, Hq, T, D], `key` and `value` the layer's cache.

    Raises UserError for architectures whose attention is more than softmax(q k) v over the past.
    """
    for name in UNSUPPORTED:
        if options.get(name) is not None:
            raise UserError(
                f"The local engine cannot run {type(module).__name__} because it uses {name}; "
                "choose a model with plain full attention or another engine."
            )
    queries = query[0].transpose(0, 1)  # [T, Hq, D]
    out = queries.new_empty(*queries.shape[:2], value.shape[-1])
    for group in plan.groups:
        rows, width, length = group.mask.shape
        chosen = slice(rows) if group.rows is None else group.rows
        k, v = key[chosen, :, :length], value[chosen, :, :length]
        heads, share = k.shape[1], queries.shape[1] // k.shape[1]
        padded = queries.new_zeros(rows, width, *queries.shape[1:])
        padded[group.at] = queries[group.tokens]
        # Query heads that share a key-value head become further queries of it: nothing is repeated.
        folded = padded.view(rows, width, heads, share, -1).transpose(1, 2).flatten(2, 3)
        mask = group.mask[:, None]
        if width > 1:
            mask = mask.repeat_interleave(share, dim=2)
        mixed = _mix(folded, k, v, mask, scaling)
        mixed = mixed.view(rows, heads, width, share, -1).transpose(1, 2).flatten(2, 3)
        out[group.tokens] = mixed[group.at].to(out.dtype)
    return out[None], None


def _mix(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, scaling: float | None
) -> torch.Tensor:
    # Products of its own would round the scores to a smaller type, which a fused kernel does not.
    fused = k.device.type != "cpu" or k.dtype != torch.float32
    if fused or mask.shape[2] > 1:
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scaling)
    # For one query per row two batched products are twice as fast on a CPU.
    scores = torch.matmul(q * (scaling or q.shape[-1] ** -0.5), k.transpose(2, 3))
    weights = scores.masked_fill_(~mask, -torch.inf).softmax(-1, dtype=torch.float32)
    return torch.matmul(weights.to(v.dtype), v)


AttentionInterface.register(ATTENTION, attend)


@contextmanager
def row_attention(config: Any) -> Iterator[None]:
    """Let the model of `config` attend by rows; training uses the same model and gets its own
    implementation back."""
    before = config._attn_implementation
    config._attn_implementation = ATTENTION
    try:
        yield
    finally:
        config._attn_implementation = before
