"""Paged key-value cache, the attention that reads it, and the forward pass that fills it.

A forward pass is one packed sequence of tokens, `[1, T]`: every active row contributes its
uncomputed tokens, one when it decodes and many when it reads a prompt or an observation. So linear
layers never see padding; only attention distinguishes the rows.

Shapes: T tokens of a step, R rows of a group, W the widest contribution of a row in its group,
L cached positions that are read, P blocks, B tokens of a block, Hq / H query and key-value heads, S
query heads that share a key-value head, D head dimension.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.modeling_utils import AttentionInterface

from fieldcraft.engine.attention import find_unsupported_option
from fieldcraft.engine.local.batch_plan import (
    BatchPlan,
    BlockRead,
    PrefillGroup,
    list_block_reads,
    plan_batch,
    to_device,
)
from fieldcraft.engine.local.block_allocator import BLOCK_TOKENS, IntArray
from fieldcraft.engine.local.sequences import SequenceTable, expand_runs
from fieldcraft.types import UserError

ATTENTION_NAME = "fieldcraft_blocks"


class PagedLayer(CacheLayerMixin):
    """Keys and values of one layer, `[P, H, B, D]`."""

    def __init__(self, cache: PagedKVCache) -> None:
        super().__init__()
        self.cache = cache

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        heads = key_states.shape[1]
        self.keys, self.values = (
            states.new_zeros(self.cache.num_blocks, heads, BLOCK_TOKENS, states.shape[3])
            for states in (key_states, value_states)
        )
        self.is_initialized = True

    def resize(self) -> None:
        """Reallocate to the cache's number of blocks."""
        self.keys, self.values = (
            _enlarge(old, self.cache.num_blocks) for old in (self.keys, self.values)
        )

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store `[1, H, T, D]` at the slots of the plan, and return all blocks of this layer."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        slots = self.cache.plan.slots(key_states.shape[1])
        for stored, new in ((self.keys, key_states), (self.values, value_states)):
            # As rows of D values, which is four times as fast as with two indices.
            lines = new[0].transpose(0, 1).reshape(-1, new.shape[3])
            stored.view(-1, new.shape[3]).index_copy_(0, slots, lines)
        return self.keys, self.values

    def get_seq_length(self) -> int:
        return self.cache.num_blocks * BLOCK_TOKENS

    def get_max_length(self) -> int:
        return self.cache.num_blocks * BLOCK_TOKENS

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.cache.num_blocks * BLOCK_TOKENS, 0


def _enlarge(old: torch.Tensor, num_blocks: int) -> torch.Tensor:
    # Zeros, not empty: masked values are still multiplied, and 0 * NaN is NaN.
    new = old.new_empty(num_blocks, *old.shape[1:])
    new[: len(old)] = old
    new[len(old) :] = 0
    return new


class PagedKVCache(Cache):
    """Cache of all layers. It grows by reallocation, when the caller requests it."""

    def __init__(self, layers: int) -> None:
        self.num_blocks = 0
        self.plan: BatchPlan
        super().__init__(layers=[PagedLayer(self) for _ in range(layers)])

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._tensors())

    def _tensors(self) -> Iterator[torch.Tensor]:
        for layer in self.layers:
            if layer.is_initialized:
                yield from (layer.keys, layer.values)

    @torch.inference_mode()  # the mode in which its tensors were created
    def resize(self, num_blocks: int) -> None:
        """Resize the cache to `num_blocks` blocks, layer by layer, so that the peak is one layer
        above the new size."""
        if num_blocks == self.num_blocks:
            return
        self.num_blocks = num_blocks
        for layer in self.layers:
            if layer.is_initialized:
                layer.resize()

    @torch.inference_mode()
    def copy(self, sources: IntArray, targets: IntArray, counts: IntArray) -> None:
        """Copy the first `counts` tokens of the source blocks to the targets; all sources are read
        first."""
        index, offset = expand_runs(counts)
        for tensor in self._tensors():
            read, write, token_offsets = to_device(
                np.stack([sources[index], targets[index], offset]), tensor.device
            )
            tensor[write, :, token_offsets] = tensor[read, :, token_offsets]

    @torch.inference_mode()
    def swap(self, a: IntArray, b: IntArray) -> None:
        """Swap blocks `a[i]` and `b[i]`."""
        both = np.stack([np.concatenate([a, b]), np.concatenate([b, a])])
        for tensor in self._tensors():
            read, write = to_device(both, tensor.device)
            tensor.index_copy_(0, write, tensor.index_select(0, read))

    @torch.inference_mode()
    def clear(self, blocks: list[int]) -> None:
        """Overwrite blocks with zeros, so that non-finite values do not reach their next user."""
        for tensor in self._tensors():
            tensor[blocks] = 0


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    plan: BatchPlan | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Compute the attention of a packed step: `query` [1, Hq, T, D], `key` and `value` the layer's
    cache. With a `sliding_window` each token sees that number of tokens, including itself.

    Raises UserError if the attention is more than softmax(q k) v over past tokens, or if the layers
    do not pass on the plan.
    """
    if reason := find_unsupported_option(module, {**options, "sliding_window": sliding_window}):
        raise _make_unsupported_error(module, reason)
    if attention_mask is not None:
        raise _make_unsupported_error(module, "it adds its own attention mask")
    if plan is None:
        raise _make_unsupported_error(
            module, "its layers do not pass the sequence boundaries to the attention function"
        )
    queries = query[0].transpose(0, 1)  # [T, Hq, D]
    parts = []
    if plan.block_reads:
        decoding = queries[: plan.num_decoding]
        args = (key, value, plan.block_reads, scaling, sliding_window)
        parts.append(_attend_decode(decoding, *args))
    for group in plan.prefill_groups:
        args_of_row = (key, value, group, scaling, sliding_window)
        parts.append(_attend_prefill(queries[group.token_slice], *args_of_row))
    out = parts[0] if len(parts) == 1 else torch.cat(parts)
    return out[None], None


def _make_unsupported_error(module: torch.nn.Module, reason: str) -> UserError:
    return UserError(
        f"The local engine cannot run {type(module).__name__}, because {reason}: choose a model"
        " with plain attention, or another engine."
    )


def _attend_prefill(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    group: PrefillGroup,
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    """Compute the attention of `queries` [t, Hq, D] over copies of their rows' blocks."""
    (rows, width), length = group.query_positions.shape, group.blocks.shape[1] * BLOCK_TOKENS
    heads, share = keys.shape[1], queries.shape[1] // keys.shape[1]
    every = torch.arange(heads, device=keys.device)[:, None]
    k, v = (x[group.blocks[:, None], every].view(rows, heads, length, -1) for x in (keys, values))
    padded = queries.new_zeros(rows, width, *queries.shape[1:])
    padded[group.padded_index] = queries
    if group.has_no_context and (window is None or window >= width):
        mixed = scaled_dot_product_attention(
            padded.transpose(1, 2),
            k[:, :, :width],
            v[:, :, :width],
            is_causal=True,
            scale=scaling,
            enable_gqa=share > 1,
        ).transpose(1, 2)
        return mixed[group.padded_index].to(queries.dtype)
    # Query heads that share a key-value head become additional queries of it, without repetition.
    folded = padded.view(rows, width, heads, share, -1).transpose(1, 2).flatten(2, 3)
    mask = group.mask(window)[:, None]
    if width > 1:
        mask = mask.repeat_interleave(share, dim=2)
    mixed = scaled_dot_product_attention(folded, k, v, attn_mask=mask, scale=scaling)
    mixed = mixed.view(rows, heads, width, share, -1).transpose(1, 2).flatten(2, 3)
    return mixed[group.padded_index].to(queries.dtype)


def _attend_decode(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    block_reads: tuple[BlockRead, ...],
    scaling: float | None,
    window: int | None,
) -> torch.Tensor:
    """Compute the attention of one query per row, `queries` [R, Hq, D]. Every block is read once,
    in place, for all rows that use it. The softmax of a row is combined from its blocks."""
    heads, (rows, _, size) = keys.shape[1], queries.shape
    share = queries.shape[1] // heads
    q = (queries * (scaling or size**-0.5)).view(rows, heads, share, size)
    q = torch.cat([q, q[:1]])  # dummy row for blocks without a reader; its result is dropped
    scores = [_compute_scores(q, keys, block_read, window) for block_read in block_reads]
    max_scores = q.new_full((rows + 1, heads, share), -torch.inf, dtype=torch.float32)
    for block_read, score in zip(block_reads, scores, strict=True):
        highest = score.amax(-1)
        max_scores.scatter_reduce_(
            0, block_read.rows[:, None, None].expand_as(highest), highest, "amax"
        )
    total = torch.zeros_like(max_scores)
    mixed = max_scores.new_zeros(rows + 1, heads, share, values.shape[3])
    for block_read, score in zip(block_reads, scores, strict=True):
        weights = score.sub_(max_scores.index_select(0, block_read.rows)[..., None]).exp_()
        total.index_add_(0, block_read.rows, weights.sum(-1))
        mixed.index_add_(
            0, block_read.rows, _mix_values(weights.to(values.dtype), values, block_read).float()
        )
    return (mixed / total[..., None])[:rows].flatten(1, 2).to(queries.dtype)


def _compute_scores(
    q: torch.Tensor, keys: torch.Tensor, block_read: BlockRead, window: int | None
) -> torch.Tensor:
    """Return the scores [P * W, H, S, B] of each reader's query with the keys of its block."""
    lanes = _group_by_block(q.index_select(0, block_read.rows), block_read)
    scores = torch.matmul(lanes, keys[block_read.blocks].transpose(2, 3))
    scores = _group_by_reader(scores, block_read).float()
    mask = block_read.hidden_mask(window)
    return scores if mask is None else scores.masked_fill_(mask, -torch.inf)


def _mix_values(weights: torch.Tensor, values: torch.Tensor, block_read: BlockRead) -> torch.Tensor:
    """Return the weighted sums [P * W, H, S, D] of a block's values for each of its readers."""
    mixed = torch.matmul(_group_by_block(weights, block_read), values[block_read.blocks])
    return _group_by_reader(mixed, block_read)


def _group_by_block(x: torch.Tensor, block_read: BlockRead) -> torch.Tensor:
    """Rearrange [P * W, H, S, n] into [P, H, W * S, n]."""
    if block_read.width == 1:
        return x
    return x.unflatten(0, (-1, block_read.width)).transpose(1, 2).flatten(2, 3)


def _group_by_reader(x: torch.Tensor, block_read: BlockRead) -> torch.Tensor:
    """Rearrange [P, H, W * S, n] into [P * W, H, S, n]."""
    if block_read.width == 1:
        return x
    return x.unflatten(2, (block_read.width, -1)).transpose(1, 2).flatten(0, 1)


AttentionInterface.register(ATTENTION_NAME, paged_attention)


@contextmanager
def enable_paged_attention(config: Any) -> Iterator[None]:
    """Use paged attention for the model of `config` inside the block. The previous implementation
    is restored for training, which uses the same model."""
    previous = config._attn_implementation
    config._attn_implementation = ATTENTION_NAME
    try:
        yield
    finally:
        config._attn_implementation = previous


def forward(
    model: Any,
    cache: PagedKVCache,
    table: SequenceTable,
    rows: IntArray,
    counts: IntArray,
    logits_indices: IntArray,
) -> torch.Tensor:
    """Return the logits [n, V] after the positions `logits_indices` [n] of the packed sequence.

    `rows[i]` contributes the `counts[i]` tokens after its cached ones; rows are in the order of
    `batch_plan.order_rows`. Keys and values are stored in the cache, and `table` is not changed.
    """
    starts, device = table.num_cached[rows], model.device
    # On other devices than a CPU a fused kernel over copied blocks is faster. In a lower precision
    # it is required: separate products would round the scores, which a fused kernel does not.
    by_block = device.type == "cpu" and model.dtype == torch.float32
    if by_block and (counts == 1).any():
        _compact_decode_blocks(cache, table, rows[counts == 1], starts[counts == 1])
    cache.resize(table.blocks.num_blocks)
    with torch.inference_mode(), enable_paged_attention(model.config.get_text_config()):
        cache.plan = plan = plan_batch(table, rows, starts, counts, device, by_block)
        output = model(
            input_ids=plan.ids[None],
            position_ids=plan.positions[None],
            cache=cache,
            use_cache=True,
            logits_to_keep=to_device(logits_indices, device),
            plan=plan,
        )
    logits: torch.Tensor = output.logits[0]
    return logits


def _compact_decode_blocks(
    cache: PagedKVCache, table: SequenceTable, rows: IntArray, starts: IntArray
) -> None:
    """Move the blocks of decoding rows to the front if too many others lie between them, because
    they are read as one contiguous range."""
    readers = np.bincount(list_block_reads(table, rows, starts)[0])
    is_single = readers == 1
    count = int(is_single.sum())
    if len(is_single) > 1.25 * count + 16:
        outliers = count + np.flatnonzero(is_single[count:])
        gaps = np.flatnonzero(~is_single[:count])
        cache.swap(outliers, gaps)
        table.swap_blocks(outliers, gaps)
