"""One forward pass of the local engine: what every row lacks, as one packed line of tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fieldcraft.engine.local.blocks import Ints
from fieldcraft.engine.local.kv_cache import BlockCache, block_attention
from fieldcraft.engine.local.plan import blocks_read, make_plan, to_device
from fieldcraft.engine.local.rows import Rows


def forward(
    model: Any, cache: BlockCache, table: Rows, rows: Ints, counts: Ints, last: Ints
) -> torch.Tensor:
    """Return the logits [n, V] behind the places `last` [n] of the packed line.

    In it `rows[i]` adds the `counts[i]` tokens behind its cached ones; rows are in the order of
    `plan.order`. Keys and values go into the cache, and `table` is left as it is.
    """
    starts, device = table.cached[rows], model.device
    # Elsewhere than on a CPU a fused kernel over copied blocks is faster. In a smaller type it is
    # needed: products of its own would round the scores, which a fused kernel does not.
    by_block = device.type == "cpu" and model.dtype == torch.float32
    if by_block and (counts == 1).any():
        _gather_blocks(cache, table, rows[counts == 1], starts[counts == 1])
    cache.fit(table.blocks.count)
    with torch.inference_mode(), block_attention(model.config.get_text_config()):
        cache.plan = plan = make_plan(table, rows, starts, counts, device, by_block)
        output = model(
            input_ids=plan.ids[None],
            position_ids=plan.positions[None],
            cache=cache,
            use_cache=True,
            logits_to_keep=to_device(last, device),
            plan=plan,
        )
    logits: torch.Tensor = output.logits[0]
    return logits


def _gather_blocks(cache: BlockCache, table: Rows, rows: Ints, starts: Ints) -> None:
    """Move the blocks of rows that decode to the front, if too many others lie between them: they
    are read from the first to the last."""
    readers = np.bincount(blocks_read(table, rows, starts)[0])
    alone = readers == 1
    count = int(alone.sum())
    if len(alone) > 1.25 * count + 16:
        behind = count + np.flatnonzero(alone[count:])
        gaps = np.flatnonzero(~alone[:count])
        cache.exchange(behind, gaps)
        table.exchange(behind, gaps)
