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
from typing import Any, NamedTuple

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


class Span(NamedTuple):
    """Where a sequence is in a packed batch: from `start` to before `end`."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """Several sequences laid end to end: N tokens, no padding.

    `position_N` begins at 0 with each sequence, and a token may attend only within its span. The
    flat fields list the T tokens with a weight: `at_T` are their places, `seq_T` numbers their
    sequence in the order of `samples`, `turn_T` their unbroken runs.
    """

    ids_N: Tensor
    position_N: Tensor
    spans: Sequence[Span]
    at_T: Tensor
    seq_T: Tensor
    turn_T: Tensor
    samples: Sequence[Sample]

    @property
    def targets_T(self) -> Tensor:
        """The ids of the tokens with a weight."""
        return self.ids_N[self.at_T]

    def flat(self, name: str) -> Tensor:
        """A field of the samples over the T listed tokens."""
        return torch.from_numpy(
            np.concatenate([getattr(s, name)[s.weight > 0] for s in self.samples])
        )


def pack(samples: Sequence[Sample]) -> PackedBatch:
    """The samples in their order, one behind the other."""
    ends = np.cumsum([len(s) for s in samples])
    spans = [Span(int(end) - len(s), int(end)) for s, end in zip(samples, ends, strict=True)]
    trained = [np.flatnonzero(s.weight > 0) for s in samples]
    at_T = np.concatenate([t + span.start for t, span in zip(trained, spans, strict=True)])
    seq_T = np.concatenate([np.full(len(t), i) for i, t in enumerate(trained)])
    breaks_T = (np.diff(at_T, prepend=-2) != 1) | (np.diff(seq_T, prepend=-1) != 0)
    return PackedBatch(
        torch.from_numpy(np.concatenate([s.ids for s in samples])),
        torch.from_numpy(np.concatenate([np.arange(len(s)) for s in samples])),
        spans,
        torch.from_numpy(at_T),
        torch.from_numpy(seq_T),
        torch.from_numpy(np.cumsum(breaks_T) - 1),
        samples,
    )


def micro_batches(units: Sequence[Unit], max_tokens: int) -> Iterator[PackedBatch]:
    """Split a step into packed micro-batches of at most `max_tokens` tokens (one unit at least)."""
    batch: list[Sample] = []
    tokens = 0
    for unit in sorted(units, key=lambda u: -sum(map(len, u))):
        size = sum(map(len, unit))
        if batch and tokens + size > max_tokens:
            yield pack(batch)
            batch, tokens = [], 0
        batch += unit
        tokens += size
    yield pack(batch)
