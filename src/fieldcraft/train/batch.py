"""Packed batches from trajectories: the only place where loss masks are created.

Example: the trajectory

    PROMPT  <user> who? <assistant>     POLICY  I must search. <q> Kalo </q>
    TOOL    <r> Kalo is .. </r>         POLICY  It is Kalo. <eos>

trained on {POLICY} gives weight 1 to every token of the two POLICY segments, including `</q>` and
`<eos>`, and 0 to all others. Trained on {POLICY, TOOL}, the observation counts too (a world model).

A folded rollout gives one sample per chain, and the samples form one unit: they share the reward
and the mini-batch. The summary that ends a chain is the policy's and has weight 1; the summary
prompt, and the copy of the summary in the next prompt, have weight 0.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fieldcraft.records.chains import split_chains
from fieldcraft.types import Author, Segment, Trajectory

Float32Array = NDArray[np.float32]
MIN_SHARED_PREFIX_TOKENS = (
    16  # minimum tokens of a shared prefix; each run costs a separate attention kernel
)


@dataclass(slots=True)
class Sample:
    """Token sequence to train on; every array has the shape of `ids` (T).

    `weight[t]` is the loss weight of predicting token t from the tokens before it. `advantage` and
    the log-probabilities are used only in reinforcement learning, `value` (of the tokens before t)
    and `target` (the return from t on) only with a critic, which fills them, and `teacher_logp`
    only with a teacher. `teacher_view` is the teacher's sample if it differs: the same trained
    tokens after a different prompt. `teacher_weight` is the weight of a token's KL to the teacher,
    by default 1. `version` is the policy version that sampled a token, and 0 for all other tokens.
    `entropy` and `new_logp` are the model's scores of a token when it was last trained, if the
    learner requests them.
    """

    ids: NDArray[np.int64]
    weight: Float32Array
    advantage: Float32Array
    sampled_logp: Float32Array
    old_logp: Float32Array
    ref_logp: Float32Array
    value: Float32Array = field(default_factory=lambda: np.zeros(0, np.float32))
    target: Float32Array = field(default_factory=lambda: np.zeros(0, np.float32))
    teacher_logp: Float32Array = field(default_factory=lambda: np.zeros(0, np.float32))
    teacher_weight: Float32Array = field(default_factory=lambda: np.zeros(0, np.float32))
    version: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    teacher_view: Sample | None = None
    entropy: Float32Array = field(default_factory=lambda: np.zeros(0, np.float32))
    new_logp: Float32Array = field(default_factory=lambda: np.zeros(0, np.float32))

    def __post_init__(self) -> None:
        if not self.version.size:
            self.version = np.zeros(len(self), np.int64)
        if not self.teacher_weight.size:
            self.teacher_weight = np.ones(len(self), np.float32)

    def __len__(self) -> int:
        return len(self.ids)

    def scatter(self, values: NDArray[Any]) -> Float32Array:
        """Scatter values to the positions of the trained tokens; all others get 0."""
        scattered = np.zeros(len(self), np.float32)
        scattered[self.weight > 0] = values
        return scattered


def get_teacher_view(sample: Sample) -> Sample:
    """Return the teacher's view of a sample, or the sample itself."""
    return sample if sample.teacher_view is None else sample.teacher_view


# Samples that belong together: the chains of a rollout, or a pair that a loss compares.
SampleUnit = tuple[Sample, ...]


def to_samples(
    trajectory: Trajectory, train_on: Collection[Author], advantage: float = 0.0
) -> SampleUnit:
    """Convert a trajectory to one sample per chain, in order."""
    chain_trajectories = [Trajectory(trajectory.task, chain) for chain in split_chains(trajectory)]
    return tuple(to_sample(part, train_on, advantage) for part in chain_trajectories)


def to_sample(
    trajectory: Trajectory, train_on: Collection[Author], advantage: float = 0.0
) -> Sample:
    """Convert a trajectory of one chain to a sample. This is the only function that creates loss
    masks. A sampled token with a non-finite log-probability is never trained on (its ratio would be
    meaningless).

    A sample ends with its last trained token: nothing is predicted from later tokens, such as an
    observation that exhausted the budget. Without a trained token it has only its first token.
    Raises ValueError for a trajectory of several chains; use `to_samples`.
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
    version = np.concatenate([_expand_versions(s) for s in trajectory.segments])
    weight[0] = 0.0  # the first token has no context
    weight[~np.isfinite(logp)] = 0.0
    logp = np.nan_to_num(logp, neginf=0.0, posinf=0.0)
    end = int(np.flatnonzero(weight).max(initial=0)) + 1
    ids, weight, logp = ids[:end], weight[:end], logp[:end]
    advantages = np.where(weight > 0, np.float32(advantage), np.float32(0)).astype(np.float32)
    return Sample(ids, weight, advantages, logp, logp, logp, version=version[:end])


def _expand_versions(segment: Segment) -> NDArray[np.int64]:
    """Return the policy version that sampled each token; [tokens]."""
    if not segment.versions:
        return np.zeros(len(segment.ids), np.int64)
    versions, counts = np.array(segment.versions).T
    return np.repeat(versions, counts)


class TokenRun(NamedTuple):
    """Contiguous run of tokens in a packed batch, from `start` to before `end`. It continues the
    run with index `parent`, which precedes it in the list, and sees all tokens that the parent
    sees; None: it starts a sequence."""

    start: int
    end: int
    parent: int | None

    @property
    def size(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """Several sequences packed into N tokens, with shared prefixes stored once.

    A token sees the tokens of its run up to itself, and the runs that its run continues.
    `position_N` counts from the start of its sequence. The flat fields list the tokens with a
    weight, T over all samples: `ids_T` are the token ids, `from_T` the indices in N that predict
    them, `seq_T` the index of their sequence in the order of `samples`, and `turn_T` the index of
    their contiguous run.

    An `is_padding` batch has no effect: a process runs it while others have a real one, because
    they compute collectively.
    """

    ids_N: Tensor
    position_N: Tensor
    runs: Sequence[TokenRun]
    ids_T: Tensor
    from_T: Tensor
    seq_T: Tensor
    turn_T: Tensor
    samples: Sequence[Sample]
    is_padding: bool = False

    @property
    def max_sequence_tokens(self) -> int:
        """Number of tokens of the longest sequence."""
        return int(self.position_N.max()) + 1

    def gather_field(self, name: str) -> Tensor:
        """Return a field of the samples at the T listed tokens."""
        return torch.from_numpy(
            np.concatenate([getattr(s, name)[s.weight > 0] for s in self.samples])
        )

    def scatter_field(self, name: str, values_T: Tensor) -> None:
        """Write a value for each listed token to a field of the samples, the inverse of
        `gather_field`."""
        values, start = values_T.detach().cpu().numpy(), 0
        for sample in self.samples:
            count = int((sample.weight > 0).sum())
            setattr(sample, name, sample.scatter(values[start : start + count]))
            start += count


def pack(samples: Sequence[Sample]) -> PackedBatch:
    """Concatenate samples, with shared prefixes stored once.

    Example, if a prefix of two tokens is long enough to be shared: `a b c` and `a b d e` become the
    runs `a b` (0 to 2), `c` (2 to 3, after run 0) and `d e` (3 to 5, after run 0), with the
    positions 0 1, 2 and 2 3. Both `c` and `d` are predicted from index 1.
    """
    forest = _PrefixForest(samples)
    forest.grow(range(len(samples)), 0, None)
    trained = [np.flatnonzero(s.weight > 0) for s in samples]
    seq_T = np.concatenate([np.full(len(t), i) for i, t in enumerate(trained)])
    return PackedBatch(
        torch.from_numpy(np.concatenate(forest.ids)),
        torch.from_numpy(np.concatenate(forest.positions)),
        forest.runs,
        torch.from_numpy(np.concatenate([s.ids[t] for s, t in zip(samples, trained, strict=True)])),
        torch.from_numpy(
            np.concatenate([p[t - 1] for p, t in zip(forest.packed_indices, trained, strict=True)])
        ),
        torch.from_numpy(seq_T),
        torch.from_numpy(index_turns(trained)),
        samples,
    )


def index_turns(trained: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return the index of each token's turn, a contiguous run of tokens of a sequence, from the
    positions of the trained tokens of each sequence."""
    starts = [np.diff(positions, prepend=-2) != 1 for positions in trained]
    return np.cumsum(np.concatenate([np.zeros(0, bool), *starts])) - 1


class _PrefixForest:
    """Builder of the runs of a packed batch."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.samples = samples
        self.packed_indices = [np.zeros(len(s), np.int64) for s in samples]  # indices in N
        self.runs: list[TokenRun] = []
        self.ids: list[NDArray[np.int64]] = []
        self.positions: list[NDArray[np.int64]] = []

    def grow(self, members: Iterable[int], start: int, parent: int | None) -> None:
        """Add the runs after the first `start` tokens, which are already added for all members."""
        self._lay_group(members, start, start, parent)

    def _lay_group(
        self, members: Iterable[int], start: int, shared: int, parent: int | None
    ) -> None:
        """Add the tokens from `start` on of members whose first `shared` tokens are the same. If
        their common prefix is too short for a run, subsets of the members may share a longer
        one."""
        by_next: dict[int, list[int]] = {}
        for member in members:
            ids = self.samples[member].ids
            if shared < len(ids):
                by_next.setdefault(int(ids[shared]), []).append(member)
            elif start < shared:
                self._append_run([member], start, shared, parent)
        for part in by_next.values():
            end = shared + count_common_prefix([self.samples[m].ids[shared:] for m in part])
            if len(part) == 1:
                self._append_run(part, start, end, parent)
            elif end - start >= MIN_SHARED_PREFIX_TOKENS:
                self._append_run(part, start, end, parent)
                self.grow(part, end, len(self.runs) - 1)
            else:
                self._lay_group(part, start, end, parent)

    def _append_run(self, members: list[int], begin: int, end: int, parent: int | None) -> None:
        start = self.runs[-1].end if self.runs else 0
        self.runs.append(TokenRun(start, start + end - begin, parent))
        self.ids.append(self.samples[members[0]].ids[begin:end])
        self.positions.append(np.arange(begin, end))
        for member in members:
            self.packed_indices[member][begin:end] = np.arange(start, start + end - begin)


def count_common_prefix(sequences: Sequence[NDArray[np.int64]]) -> int:
    """Return the length of the common prefix of all sequences."""
    first, *others = sequences
    length = min(map(len, sequences))
    for other in others:
        differing = np.flatnonzero(first[:length] != other[:length])
        length = int(differing[0]) if len(differing) else length
    return length


def split_micro_batches(units: Sequence[SampleUnit], max_tokens: int) -> Iterator[PackedBatch]:
    """Split a step into packed micro-batches of at most `max_tokens` tokens (at least one unit).

    Units with common prefixes are placed next to each other, so that they share them; a shared
    prefix counts once.
    """
    batch: list[Sample] = []
    tokens = 0
    for unit in sort_by_prefix(units):
        size = count_new_tokens(batch[-1] if batch else None, unit)
        if batch and tokens + size > max_tokens:
            yield pack(batch)
            batch, tokens, size = [], 0, count_new_tokens(None, unit)
        batch += unit
        tokens += size
    yield pack(batch)


def sort_by_prefix(units: Sequence[SampleUnit]) -> list[SampleUnit]:
    """Sort units, so that those with common prefixes are neighbours."""
    return sorted(units, key=lambda unit: unit[0].ids.tolist())


def count_new_tokens(previous: Sample | None, unit: SampleUnit) -> int:
    """Return the number of tokens that a unit adds after the previous sample, without their shared
    prefix."""
    shared = 0 if previous is None else count_common_prefix([previous.ids, unit[0].ids])
    return sum(map(len, unit)) - (shared if shared >= MIN_SHARED_PREFIX_TOKENS else 0)
