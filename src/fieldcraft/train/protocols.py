"""Protocols of trained and read-only models, in this process or sharded over several.

`Trainer` and `Critic` implement them in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fieldcraft.config.sections import Dtype
from fieldcraft.engine.weights import ProbeLogprobs
from fieldcraft.train.batch import PackedBatch, SampleUnit
from fieldcraft.train.losses import LossFunction
from fieldcraft.train.output_layer import TokenScores

ScoresCallback = Callable[[PackedBatch, TokenScores], None]


def ignore_scores(batch: PackedBatch, scores: TokenScores) -> None:
    """Ignore the token scores, which are used only in the loss."""


def store_scores(batch: PackedBatch, scores: TokenScores) -> None:
    """Store the policy's scores of the trained tokens in the samples."""
    batch.scatter_field("entropy", scores.entropy_T)
    batch.scatter_field("new_logp", scores.logp_T)


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Log-probabilities of a policy on the probe, see `train.parity`, and its compute dtype."""

    probe: ProbeLogprobs
    dtype: Dtype


class TrainersLostError(Exception):
    """A process of a sharded trainer has crashed or hangs, and the state of all is lost."""


class ReferenceModel(Protocol):
    """Read-only model: the reference of a KL term, or a teacher."""

    def fill_logprobs(self, units: Sequence[SampleUnit], field: str, temperature: float) -> None:
        """Write the model's log-probabilities of all trained tokens to a field of the samples."""
        ...


@dataclass(frozen=True, slots=True)
class TeacherReference:
    """Teacher whose distributions the objective compares with the model's. `model` is in the same
    process as the trainer: another `Trainer`, or an `InitialAdapter`. `top_k` is passed to
    `logprobs.reverse_kl`."""

    model: Any
    top_k: int | None = None


class TrainablePolicy(ReferenceModel, Protocol):
    """Policy in training. `done` is the number of completed steps out of `steps`."""

    steps: int
    done: int

    def step(
        self,
        units: Sequence[SampleUnit],
        loss_fn: LossFunction,
        total: float,
        temperature: float = 1.0,
        teacher: TeacherReference | None = None,
        on_scores: ScoresCallback = ignore_scores,
    ) -> dict[str, float]:
        """Run one optimizer step; see `Trainer.step`. `loss_fn` and `on_scores` must be
        picklable."""
        ...

    def drop_gradients(self) -> None:
        """Free the memory of the last step's gradients for sampling."""
        ...

    def snapshot_reference(self) -> ReferenceModel | None:
        """Return a read-only snapshot of the current policy, if that does not need a second model
        (with an adapter); None otherwise. Call it only once."""
        ...

    def write(self, folder: Path, tokenizer: Any) -> None:
        """Write the model and its tokenizer to a folder in transformers format, or the adapter in
        PEFT format. Raises UserError if the model differs when it is read back."""
        ...

    def run_probe(self) -> ProbeResult:
        """Return the log-probabilities of the current policy on the probe."""
        ...

    def save(self, target: Path, tokenizer: Any, extra: dict[str, Any]) -> None:
        """Save the state for `load`, and `extra`, to the folder `target`, which is created
        atomically. It may be complete only after `wait_for_saves` returns."""
        ...

    def load(self, folder: Path) -> dict[str, Any]:
        """Restore a saved state, and return its `extra`. Raises UserError if files are damaged."""
        ...

    def wait_for_saves(self) -> None:
        """Wait until all saved states are on disk. Raises the error of a failed save."""
        ...


class ValueModel(Protocol):
    """Critic of PPO; see `Critic`. `done` is the number of completed steps."""

    done: int

    def step(self, units: Sequence[SampleUnit], total: float) -> dict[str, float]: ...

    def fill_values(self, units: Sequence[SampleUnit]) -> None: ...

    def drop_gradients(self) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        """Return the critic's state for the policy's checkpoint."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...
