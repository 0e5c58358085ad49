"""Measure sessions of the local engine at scale: time to resume or start, and memory.

    python bench/sessions.py [--rows 1000] [--tokens 32768]

Each session has its own text after 0, 4,000, ... or 28,000 shared tokens. Only the bookkeeping of
tokens is created, without keys and values, so it fits on any machine.
"""

from __future__ import annotations

import statistics
import time

import numpy as np
import typer

from fieldcraft.engine.local.block_allocator import BLOCK_TOKENS, IntArray
from fieldcraft.engine.local.sequences import SequenceTable

MIXED = [300] * 255 + [8192]  # tokens per session


class NoTensors:
    """A replacement for the storage of keys and values."""

    def copy(self, sources: IntArray, targets: IntArray, counts: IntArray) -> None: ...
    def clear(self, blocks: list[int]) -> None: ...


def begin(table: SequenceTable, session: str, ids: IntArray) -> float:
    """Return the seconds until a session has its row and its blocks."""
    began = time.perf_counter()
    if session in table.row_by_session:
        table.resume(table.row_by_session[session], ids)
    else:
        blocks, known = table.blocks.match_prefix(ids)
        kept = table.blocks.count_computed(blocks, min(known, len(ids) - 1))
        table.start(table.acquire(session)[0], ids, blocks, kept)
    table.sync_storage(NoTensors())
    return time.perf_counter() - began


def finish(table: SequenceTable, session: str) -> float:
    """Compute the missing tokens, and return the seconds until other sessions can share them."""
    row = table.row_by_session[session]
    table.advance(np.array([row]), table.length[[row]] - table.num_cached[[row]])
    began = time.perf_counter()
    table.finish_turn(row)
    return time.perf_counter() - began


def main(rows: int = 1000, tokens: int = 32768) -> None:
    rng = np.random.default_rng(0)
    common = rng.integers(0, 30_000, tokens)
    table = SequenceTable(rows + 5)
    texts = []
    for i in range(rows):
        shared = min(4000 * (i % 8), tokens - 100)
        texts.append(np.concatenate([common[:shared], rng.integers(0, 30_000, tokens - shared)]))
        begin(table, str(i), texts[-1][:-64])
        finish(table, str(i))
    back, parked, new = [], [], []
    for i in range(5):
        session = str(i * rows // 5)
        back.append(begin(table, session, texts[i * rows // 5]))
        parked.append(finish(table, session))
        ids = np.concatenate([texts[7][: tokens // 2], rng.integers(0, 30_000, tokens // 4)])
        new.append(begin(table, f"new {i}", ids))
    print(f"{rows} sessions of {tokens} tokens, median of 5:\n")
    for name, seconds in (("resumes", back), ("ends its turn", parked), ("starts", new)):
        print(f"a session {name}: {1000 * statistics.median(seconds):.2f} ms")
    held = sum(-(-len(text) // BLOCK_TOKENS) for text in texts) * BLOCK_TOKENS
    print(
        f"{table.blocks.num_blocks * BLOCK_TOKENS:,} tokens of cache for sessions with {held:,}\n"
    )

    table = SequenceTable(len(MIXED))
    for i, length in enumerate(MIXED):
        begin(table, str(i), rng.integers(0, 30_000, length))
    dense = len(MIXED) * max(MIXED)
    print(
        f"255 sessions of 300 tokens and one of 8,192: {table.blocks.num_blocks * BLOCK_TOKENS:,} "
        "tokens of"
    )
    print(f"cache; sessions x longest would be {dense:,}")


if __name__ == "__main__":
    typer.run(main)
