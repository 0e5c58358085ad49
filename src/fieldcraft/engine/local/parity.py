"""Parity check of the local engine's cache with plain forward passes, on probe texts."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fieldcraft.config.sections import Dtype
from fieldcraft.engine.local.batch_plan import order_rows
from fieldcraft.engine.local.block_allocator import IntArray
from fieldcraft.engine.local.kv_cache import PagedKVCache, forward
from fieldcraft.engine.local.sequences import SequenceTable
from fieldcraft.engine.parity import (
    compute_reference_logprobs,
    gather_logprobs,
    make_probe_texts,
    require_equal_logprobs,
)

DECODED_TOKENS = 4  # last tokens of each text, added one by one as if sampled
DELAYED_TEXT_INDEX = 1  # text that starts a step after the others, and reuses shared blocks


def require_cache_parity(model: Any) -> None:
    """Raise UserError if a model computes different log-probabilities with keys and values in cache
    blocks, some of them shared, than in a plain forward pass of each text. A model without weights
    (on the meta device) is not checked."""
    if model.device.type == "meta":
        return
    model.eval()
    config = model.config.get_text_config()
    texts = [np.array(ids) for ids in make_probe_texts(config)]
    actual = _replay(
        model, texts, SequenceTable(len(texts)), PagedKVCache(config.num_hidden_layers)
    )
    expected = [
        compute_reference_logprobs(model, ids.tolist())[-DECODED_TOKENS:][: len(logprobs)]
        for ids, logprobs in zip(texts, actual, strict=True)
    ]
    dtype: Dtype = "float32" if model.dtype == torch.float32 else "bfloat16"
    require_equal_logprobs(model, "with keys and values in a cache", dtype, actual, expected)


def _replay(
    model: Any, texts: list[IntArray], table: SequenceTable, cache: PagedKVCache
) -> list[torch.Tensor]:
    """Return the log-probabilities of the last DECODED_TOKENS tokens of each text, one fewer for
    the delayed text."""
    logprobs_by_row: list[list[torch.Tensor]] = [[] for _ in texts]
    for step in range(DECODED_TOKENS):
        rows = np.array([row for row in range(len(texts)) if step or row != DELAYED_TEXT_INDEX])
        for row in rows:
            _grow_row(table, int(row), texts[row])
        cache.resize(table.blocks.num_blocks)
        table.sync_storage(cache)
        rows = rows[order_rows(table.num_cached[rows], table.length[rows] - table.num_cached[rows])]
        counts = table.length[rows] - table.num_cached[rows]
        logits = forward(model, cache, table, rows, counts, np.cumsum(counts) - 1)
        table.advance(rows, counts)
        for row, next_logits in zip(rows, logits, strict=True):
            token = int(texts[row][table.length[row]])
            logprobs_by_row[row].append(gather_logprobs(next_logits[None], [token]))
    return [torch.cat(row_logprobs) for row_logprobs in logprobs_by_row]


def _grow_row(table: SequenceTable, row: int, text: IntArray) -> None:
    """Extend a row: start it with all but the last tokens of its text, or add its next token."""
    length = int(table.length[row])
    if length:
        table.append(np.array([row]), text[[length]], np.zeros(1, np.float32))
        return
    prompt = text[:-DECODED_TOKENS]
    blocks, num_matched = table.blocks.match_prefix(prompt)
    table.start(
        row, prompt, blocks, table.blocks.count_computed(blocks, min(num_matched, len(prompt) - 1))
    )
