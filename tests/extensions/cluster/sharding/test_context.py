"""Parts of a packed row: each token is on one rank and attends to the same tokens as before."""

from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from sharded_parts import units

from fieldcraft.extensions.cluster.sharding.context import ContextShard, shard_batch, split_runs
from fieldcraft.train.batch import PackedBatch, TokenRun, pack


class Group:
    """Process group with a given number of ranks."""

    def __init__(self, count: int) -> None:
        self.count = count

    def size(self) -> int:
        return self.count


def parts(batch: PackedBatch, count: int) -> list[ContextShard]:
    group: Any = Group(count)
    return [shard_batch(batch, rank, group) for rank in range(count)]


def seen(runs: list[TokenRun]) -> dict[int, list[int]]:
    """Return the positions that each token attends to, in order."""
    found: dict[int, list[int]] = {}
    for run in runs:
        before = [] if run.parent is None else found[runs[run.parent].end - 1]
        for place in range(run.start, run.end):
            found[place] = [*before, *range(run.start, place + 1)]
    return found


def test_a_run_that_crosses_borders_becomes_several() -> None:
    runs = [TokenRun(0, 2, None), TokenRun(2, 9, 0), TokenRun(9, 12, 0)]
    assert list(split_runs(runs, 4)) == [
        TokenRun(0, 2, None),
        TokenRun(2, 4, 0),
        TokenRun(4, 8, 1),
        TokenRun(8, 9, 2),
        TokenRun(9, 12, 0),
    ]


@given(st.integers(0, 50), st.integers(1, 40))
def test_every_token_sees_what_it_saw(seed: int, size: int) -> None:
    runs = list(pack([s for unit in units(seed) for s in unit]).runs)
    cut = list(split_runs(runs, size))
    assert seen(cut) == seen(runs)
    assert all(run.start // size == (run.end - 1) // size for run in cut)


@given(st.integers(0, 50), st.sampled_from([1, 2, 3, 4]))
def test_every_token_lies_on_one_rank(seed: int, count: int) -> None:
    batch = pack([s for unit in units(seed) for s in unit])
    held = parts(batch, count)
    assert len({len(part.ids_n) for part in held}) == 1
    own = torch.cat([part.local_T for part in held])
    assert own.sort().values.tolist() == list(range(len(batch.ids_T)))
    for part in held:
        # each trained token is predicted from the token before it
        before = batch.ids_N[batch.from_T[part.local_T]]
        assert part.ids_n[part.from_t].equal(before)
        assert part.position_n[part.from_t].equal(batch.position_N[batch.from_T[part.local_T]])
        sizes = [part.runs[place].end - part.runs[place].start for place in part.local_runs]
        assert sum(sizes) == len(part.ids_n)


def test_ranks_have_the_same_work_in_a_long_text() -> None:
    [unit] = units(0, groups=1, group=1, prompt=400)
    held = parts(pack(unit), 4)
    work = [
        sum(len(places) for token, places in seen(list(part.runs)).items() if _holds(part, token))
        for part in held
    ]
    assert max(work) < 1.05 * np.mean(work)


def _holds(part: ContextShard, token: int) -> bool:
    return any(part.runs[p].start <= token < part.runs[p].end for p in part.local_runs)
