"""The part of a stage that trains and reads, in this process or shared out over several.

`Trainer` and `Critic` obey these protocols in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fieldcraft.algos.losses import LossFunction
from fieldcraft.config.sections import Dtype
from fieldcraft.engine.vllm.weights import ProbeLogprobs
from fieldcraft.train.batch import PackedBatch, SampleUnit
from fieldcraft.train.output_layer import TokenScores

ScoresCallback = Callable[[PackedBatch, TokenScores], None]


def ignore_scores(batch: PackedBatch, scores: TokenScores) -> None:
    """Do nothing with what the model says, apart from the loss."""


def store_scores(batch: PackedBatch, scores: TokenScores) -> None:
    """Keep what the policy says of the tokens that it is trained on."""
    batch.scatter_field("entropy", scores.entropy_T)
    batch.scatter_field("new_logp", scores.logp_T)


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Log-probabilities that a policy gives the probe, see `train.parity`, and the type in which it
    computes."""

    probe: ProbeLogprobs
    dtype: Dtype


class ReferenceModel(Protocol):
    """A model that is only read: what a KL term is taken to, or a teacher."""

    def fill_logprobs(self, units: Sequence[SampleUnit], field: str, temperature: float) -> None:
        """Write its log-probabilities of all trained tokens into a field of the samples."""
        ...


@dataclass(frozen=True, slots=True)
class TeacherReference:
    """A teacher whose distributions an objective compares the model's with. `model` is where the
    trainer is: beside a `Trainer` another one, or an `InitialAdapter`. `top_k` is that of
    `algos.distillation.reverse_kl`."""

    model: Any
    top_k: int | None = None


class TrainablePolicy(ReferenceModel, Protocol):
    """A policy that is trained. `done` counts the steps behind it, of `steps`."""

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
        """Run one optimiser step; see `Trainer.step`. `loss_fn` and `on_scores` can be pickled."""
        ...

    def drop_gradients(self) -> None:
        """Free the memory of the last step's gradients: what is sampled next needs it."""
        ...

    def snapshot_reference(self) -> ReferenceModel | None:
        """Return the policy as it is now, to be read while it is trained, where that costs no
        second model (with an adapter); None where it does. To be asked once."""
        ...

    def write(self, folder: Path, tokenizer: Any) -> None:
        """Write the model and its tokenizer into a folder, as transformers loads them, or the
        adapter, as PEFT does. Raises UserError if the model is another one when it is read back."""
        ...

    def run_probe(self) -> ProbeResult:
        """Return the log-probabilities that the policy gives the probe as it is now."""
        ...

    def save(self, target: Path, tokenizer: Any, extra: dict[str, Any]) -> None:
        """Make the folder `target`, which appears when it is complete: what `load` takes over, and
        `extra`. It may be complete only when `wait_for_saves` returns."""
        ...

    def load(self, folder: Path) -> dict[str, Any]:
        """Take over what was saved, and return its `extra`. Raises UserError for damaged files."""
        ...

    def wait_for_saves(self) -> None:
        """Wait until all that was saved is on the disk. Raises what went wrong with it."""
        ...


class ValueModel(Protocol):
    """The critic of PPO; see `Critic`. `done` counts the steps behind it."""

    done: int

    def step(self, units: Sequence[SampleUnit], total: float) -> dict[str, float]: ...

    def fill_values(self, units: Sequence[SampleUnit]) -> None: ...

    def drop_gradients(self) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        """Return the state that the policy's checkpoint is to keep of it."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...
