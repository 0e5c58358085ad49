"""From trajectories to packed batches: the only place where loss masks are made.

A worked example. The trajectory

    PROMPT  <user> who? <assistant>     POLICY  I must search. <q> Kalo </q>
    TOOL    <r> Kalo is .. </r>         POLICY  It is Kalo. <eos>

trained on {POLICY} gives weight 1 to every token of the two POLICY segments, `</q>` and `<eos>`
included, and 0 to all others. Trained on {POLICY, TOOL} the observation counts too (a world model).

A folded rollout gives a sample for each of its chains, and they are one unit: they share its reward
and its place in a mini-batch. The summary that ends a chain is the policy's and has weight 1; the
request for it, and its copy in the next prompt, have weight 0.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fieldcraft.records.chains import chains
from fieldcraft.types import Author, Trajectory

Floats = NDArray[np.float32]


@dataclass(slots=True)
class Sample:
    """One token sequence to train on; every array has the shape of `ids` (T).

    `weight[t]` is the loss weight of predicting token t from those before it. `advantage` and the
    log-probabilities matter to reinforcement learning only, `value` (of the tokens before t) and
    `target` (the return from t on) only where there is a critic, which fills them, and
    `teacher_logp` only where there is a teacher. `seen` is what that reads in place of this sample,
    if it is another text: the same trained tokens after another prompt.
    """

    ids: NDArray[np.int64]
    weight: Floats
    advantage: Floats
    sampled_logp: Floats
    old_logp: Floats
    ref_logp: Floats
    value: Floats = field(default_factory=lambda: np.zeros(0, np.float32))
    target: Floats = field(default_factory=lambda: np.zeros(0, np.float32))
    teacher_logp: Floats = field(default_factory=lambda: np.zeros(0, np.float32))
    seen: Sample | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def spread(self, values: NDArray[Any]) -> Floats:
        """One value for each trained token, in their places; 0 at all others."""
        whole = np.zeros(len(self), np.float32)
        whole[self.weight > 0] = values
        return whole


# Samples that belong together: the chains of a rollout, or a pair that a loss compares.
Unit = tuple[Sample, ...]


def to_samples(
    trajectory: Trajectory, train_on: Collection[Author], advantage: float = 0.0
) -> Unit:
    """A sample of each chain, in order."""
    parts = [Trajectory(trajectory.task, chain) for chain in chains(trajectory)]
    return tuple(to_sample(part, train_on, advantage) for part in parts)


def to_sample(
    trajectory: Trajectory, train_on: Collection[Author], advantage: float = 0.0
) -> Sample:
    """The one writer of loss masks. A sampled token whose log-probability is not finite is never
    trained on (its ratio would be meaningless).

    A sample ends with its last trained token: nothing is predicted from what follows it, such as an
    observation that used up the budget. Without a trained token it is its first token alone.
    Raises ValueError for a trajectory of several chains: `to_samples` has one of each.
    """
    if trajectory.folds:
        raise ValueError("a folded trajectory is several samples: use to_samples")
    ids = np.array(trajectory.ids, dtype=np.int64)
    weight = np.concatenate(
        [np.full(len(s.ids), float(s.author in train_on), np.float32) for s in trajectory.segments]
    )
    logp = np.concatenate(
        [np.array(s.logprobs or [0.0] * len(s.ids), np.float32) for s in trajectory.segments]
    )
    weight[0] = 0.0  # nothing stands before the first token
    weight[~np.isfinite(logp)] = 0.0
    logp = np.nan_to_num(logp, neginf=0.0, posinf=0.0)
    end = int(np.flatnonzero(weight).max(initial=0)) + 1
    ids, weight, logp = ids[:end], weight[:end], logp[:end]
    advantages = np.where(weight > 0, np.float32(advantage), np.float32(0)).astype(np.float32)
    return Sample(ids, weight, advantages, logp, logp, logp)


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """Several sequences laid end to end in rows.

    ids_BL, position_BL: padded with 0. mask_B1LL: True where a query may attend (same sequence, not
    later). The flat fields list the T tokens with a weight: `row_T`, `col_T` locate them, `seq_T`
    numbers their sequence in the order of `samples`, `turn_T` their unbroken runs.
    """

    ids_BL: Tensor
    position_BL: Tensor
    mask_B1LL: Tensor
    row_T: Tensor
    col_T: Tensor
    seq_T: Tensor
    turn_T: Tensor
    samples: Sequence[Sample]

    def flat(self, name: str) -> Tensor:
        """A field of the samples over the T listed tokens."""
        return torch.from_numpy(
            np.concatenate([getattr(s, name)[s.weight > 0] for s in self.samples])
        )


def pack(samples: Sequence[Sample], row_length: int) -> PackedBatch:
    """First-fit packing of sequences into rows of `row_length` tokens (or the longest sequence)."""
    length = max(row_length, max(len(s) for s in samples))
    fill: list[int] = []
    places: list[tuple[int, int]] = [(0, 0)] * len(samples)
    for index in sorted(range(len(samples)), key=lambda i: -len(samples[i])):
        size = len(samples[index])
        row = next((r for r, used in enumerate(fill) if used + size <= length), len(fill))
        if row == len(fill):
            fill.append(0)
        places[index] = (row, fill[row])
        fill[row] += size
    length = max(fill)
    ids = np.zeros((len(fill), length), np.int64)
    position = np.zeros((len(fill), length), np.int64)
    segment = np.zeros((len(fill), length), np.int64)  # 0 is padding, attending to itself only
    for number, (sample, (row, start)) in enumerate(zip(samples, places, strict=True)):
        span = slice(start, start + len(sample))
        ids[row, span] = sample.ids
        position[row, span] = np.arange(len(sample))
        segment[row, span] = number + 1
    segment_BL = torch.from_numpy(segment)
    causal_LL = torch.ones(length, length, dtype=torch.bool).tril()
    mask_B1LL = ((segment_BL[:, :, None] == segment_BL[:, None, :]) & causal_LL)[:, None]
    trained = [np.flatnonzero(s.weight > 0) for s in samples]
    row_T = np.concatenate([np.full(len(t), r) for t, (r, _) in zip(trained, places, strict=True)])
    col_T = np.concatenate([t + c for t, (_, c) in zip(trained, places, strict=True)])
    seq_T = np.concatenate([np.full(len(t), i) for i, t in enumerate(trained)])
    breaks_T = (np.diff(col_T, prepend=-2) != 1) | (np.diff(seq_T, prepend=-1) != 0)
    return PackedBatch(
        torch.from_numpy(ids),
        torch.from_numpy(position),
        mask_B1LL,
        torch.from_numpy(row_T),
        torch.from_numpy(col_T),
        torch.from_numpy(seq_T),
        torch.from_numpy(np.cumsum(breaks_T) - 1),
        samples,
    )


def micro_batches(
    units: Sequence[Unit], *, row_length: int, max_tokens: int
) -> Iterator[PackedBatch]:
    """Split a step into packed micro-batches of at most `max_tokens` tokens (one unit at least).

    Units of similar length go together, so that little of a row is padding.
    """
    batch: list[Sample] = []
    tokens = 0
    for unit in sorted(units, key=lambda u: -sum(map(len, u))):
        size = sum(map(len, unit))
        if batch and tokens + size > max_tokens:
            yield pack(batch, row_length)
            batch, tokens = [], 0
        batch += unit
        tokens += size
    yield pack(batch, row_length)
