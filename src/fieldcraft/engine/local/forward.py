"""Forward pass of the local engine: the uncomputed tokens of all rows in one packed sequence."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fieldcraft.engine.local.batch_plan import list_block_reads, plan_batch, to_device
from fieldcraft.engine.local.block_allocator import IntArray
from fieldcraft.engine.local.kv_cache import PagedKVCache, enable_paged_attention
from fieldcraft.engine.local.sequences import SequenceTable


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
