"""The comparison of the local engine's cache with plain forward passes, on probe texts."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fieldcraft.config.sections import Dtype
from fieldcraft.engine.comparison import logprobs_of, plain_logprobs, probe_texts, require_equal
from fieldcraft.engine.local.blocks import Ints
from fieldcraft.engine.local.forward import forward
from fieldcraft.engine.local.kv_cache import BlockCache
from fieldcraft.engine.local.plan import order
from fieldcraft.engine.local.rows import Rows

WRITTEN = 4  # last tokens of each text that are added one by one, as if they were sampled
LATER = 1  # the text that comes a step after the others, and finds blocks that it shares


def require_cached(model: Any) -> None:
    """Raise UserError for a model that computes texts otherwise when their keys and values are in
    blocks of a cache, some of them shared, than in a plain forward pass of each text. A model
    without weights says nothing, and is not compared."""
    if model.device.type == "meta":
        return
    model.eval()
    config = model.config.get_text_config()
    texts = [np.array(ids) for ids in probe_texts(config)]
    found = _replay(model, texts, Rows(len(texts)), BlockCache(config.num_hidden_layers))
    plain = [
        plain_logprobs(model, ids.tolist())[-WRITTEN:][: len(said)]
        for ids, said in zip(texts, found, strict=True)
    ]
    dtype: Dtype = "float32" if model.dtype == torch.float32 else "bfloat16"
    require_equal(model, "with keys and values in a cache", dtype, found, plain)


def _replay(model: Any, texts: list[Ints], table: Rows, cache: BlockCache) -> list[torch.Tensor]:
    """Return the log-probabilities of the last tokens of each text: WRITTEN tokens, or one fewer of
    the later one."""
    found: list[list[torch.Tensor]] = [[] for _ in texts]
    for step in range(WRITTEN):
        rows = np.array([row for row in range(len(texts)) if step or row != LATER])
        for row in rows:
            _grow(table, int(row), texts[row])
        cache.fit(table.blocks.count)
        table.copy_in(cache)
        rows = rows[order(table.cached[rows], table.length[rows] - table.cached[rows])]
        counts = table.length[rows] - table.cached[rows]
        logits = forward(model, cache, table, rows, counts, np.cumsum(counts) - 1)
        table.advance(rows, counts)
        for row, after in zip(rows, logits, strict=True):
            token = int(texts[row][table.length[row]])
            found[row].append(logprobs_of(after[None], [token]))
    return [torch.cat(said) for said in found]


def _grow(table: Rows, row: int, text: Ints) -> None:
    """Grow a row: begin it with all but the last tokens of its text, or add its next token."""
    length = int(table.length[row])
    if length:
        table.add(np.array([row]), text[[length]], np.zeros(1, np.float32))
        return
    begin = text[:-WRITTEN]
    blocks, known = table.blocks.find(begin)
    table.start(row, begin, blocks, table.blocks.computed_of(blocks, min(known, len(begin) - 1)))
