"""Process of a rank: its shards of every model, and its share of every step.

All ranks get the same calls, each with its own share, because they compute collectively. If one
rank raises a `UserError`, all of them do, and the weights are not changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, final

from fieldcraft.engine.model_files import write_model
from fieldcraft.extensions.cluster.sharding.checkpoint import ShardCheckpointer
from fieldcraft.extensions.cluster.sharding.mesh import RankMesh, RankPlacement
from fieldcraft.extensions.cluster.sharding.shards import FsdpStrategy
from fieldcraft.extensions.cluster.sharding.specs import (
    CriticSpec,
    InitialAdapterSpec,
    PolicySpec,
    RankModelSpec,
    RankResult,
    ReferenceSpec,
)
from fieldcraft.extensions.cluster.sharding.state import ShardedState, gather_full
from fieldcraft.train.batch import Float32Array, Sample, SampleUnit
from fieldcraft.train.critic import Critic
from fieldcraft.train.lora import CPU, load_policy
from fieldcraft.train.losses import LossFunction
from fieldcraft.train.memory import release_memory
from fieldcraft.train.model import load_model, to_torch_dtype
from fieldcraft.train.protocols import ScoresCallback, TeacherReference
from fieldcraft.train.trainer import InitialAdapter, Trainer

ARRAY_FIELDS = [field.name for field in fields(Sample) if field.name != "teacher_view"]


@final
class TrainerRank:
    """Sharded models by name. Methods are called on all ranks at once, in the same order."""

    def __init__(self, placement: RankPlacement) -> None:
        self.mesh = RankMesh(placement)
        self.strategy = FsdpStrategy(self.mesh)
        self.models: dict[str, Any] = {}
        self.states: dict[str, ShardedState] = {}  # checkpointed states of the trained models
        self.checkpointer = ShardCheckpointer(self.mesh)

    def make(self, name: str, spec: RankModelSpec) -> None:
        """Make a model. Raises UserError if a folder cannot be read, if settings are not supported
        with sharding, or if log-probabilities in a packed batch differ from a plain forward
        pass."""
        with self.mesh.one_rank_at_a_time():  # the whole model is temporarily in memory
            match spec:
                case PolicySpec():
                    self.models[name] = self._make_policy(name, spec)
                case ReferenceSpec():
                    model = load_model(spec.folder, CPU, spec.dtype)
                    self.models[name] = Trainer(model, spec.optim, 1, strategy=self.strategy)
                case InitialAdapterSpec():
                    policy = self.models[spec.policy]
                    self.models[name] = InitialAdapter(policy, policy.adapter)
                case CriticSpec():
                    self.models[name] = self._make_critic(name, spec)
            release_memory()
        if isinstance(made := self.models[name], Trainer):
            made.require_parity()

    def step(
        self,
        name: str,
        units: Sequence[SampleUnit],
        done: int,
        loss_fn: LossFunction,
        total: float,
        temperature: float,
        teacher_name: str | None,
        top_k: int | None,
        on_scores: ScoresCallback,
    ) -> RankResult:
        """Run a step as `Trainer.step` does; `done` is the driver's number of completed steps, and
        `teacher_name` the name of a model on this rank."""
        policy: Trainer = self.models[name]
        policy.done = done
        teacher = (
            None if teacher_name is None else TeacherReference(self.models[teacher_name], top_k)
        )
        return self._run(
            units, lambda: policy.step(units, loss_fn, total, temperature, teacher, on_scores)
        )

    def fill_logprobs(
        self, name: str, units: Sequence[SampleUnit], field: str, temperature: float
    ) -> RankResult:
        """Fill log-probabilities as `Trainer.fill_logprobs` does."""
        return self._run(units, lambda: self.models[name].fill_logprobs(units, field, temperature))

    def step_critic(
        self, name: str, units: Sequence[SampleUnit], done: int, total: float
    ) -> RankResult:
        """Run a step as `Critic.step` does."""
        critic: Critic = self.models[name]
        critic.done = done
        return self._run(units, lambda: critic.step(units, total))

    def fill_values(self, name: str, units: Sequence[SampleUnit]) -> RankResult:
        """Fill values as `Critic.fill_values` does."""
        return self._run(units, lambda: self.models[name].fill_values(units))

    def drop_gradients(self, name: str) -> None:
        """Free gradients as `Trainer.drop_gradients` does."""
        self.models[name].drop_gradients()

    def write(self, name: str, folder: Path) -> None:
        """Write the model in transformers format, or its adapter in PEFT format. Rank 0 gathers the
        full weights and writes them."""
        policy: Trainer = self.models[name]
        state, first = self.states[name], self.mesh.rank == 0
        if policy.adapter is None:
            weights = gather_full(state.weights, first)
            if first:
                write_model(folder, policy.model, weights)
        else:
            adapter = gather_full(state.trained_weights, first)
            if first:
                policy.adapter.save(folder, adapter)

    def save(self, draft: Path, target: Path) -> None:
        """Start writing a checkpoint of all trained weights to the existing folder `draft`, which
        is renamed to `target` when complete. Returns when the tensors are copied, so that training
        can continue. Call it only after the previous checkpoint has finished."""
        self.checkpointer.save(self.states, draft, target)

    def wait_for_saves(self) -> None:
        """Wait until the last checkpoint is complete. Raises UserError if it cannot be written."""
        self.checkpointer.wait_for_saves()

    def load(self, folder: Path) -> None:
        """Load a checkpoint, written by any number of ranks, after the last save has finished.
        Raises UserError if it is damaged or belongs to other models."""
        self.checkpointer.load(self.states, folder)
        self.strategy.invalidate()

    def close(self) -> None:
        """Leave the mesh after the last checkpoint is complete. Raises UserError as
        `wait_for_saves` does."""
        try:
            self.checkpointer.wait_for_saves()
        finally:
            self.checkpointer.close()
            self.mesh.close()

    def _make_policy(self, name: str, spec: PolicySpec) -> Trainer:
        model, adapter = load_policy(spec.folder, spec.dtype, spec.lora, spec.seed, spec.adapter)
        dtype = None
        if adapter is None:
            dtype = to_torch_dtype(spec.dtype)
        else:
            adapter.save_initial()  # before it is sharded
        policy = Trainer(model, spec.optim, spec.steps, adapter, dtype, self.strategy)
        self.states[name] = ShardedState.collect(policy, model)
        return policy

    def _make_critic(self, name: str, spec: CriticSpec) -> Critic:
        is_separate = spec.settings.backbone == "separate"
        model = load_model(spec.folder, CPU) if is_separate else self.models[spec.policy].model
        dtype = to_torch_dtype(spec.dtype)
        critic = Critic(model, spec.settings, spec.optim, spec.steps, dtype, self.strategy)
        self.states[name] = ShardedState.collect(
            critic, critic.head, *([model] if is_separate else [])
        )
        return critic

    def _run(
        self, units: Sequence[SampleUnit], call: Callable[[], Mapping[str, float] | None]
    ) -> RankResult:
        """Return the result of a call. Only the first rank of a micro-batch returns data, because
        all of its ranks have the same."""
        samples = [sample for unit in units for sample in unit]
        before = [_get_arrays(sample) for sample in samples]
        row = call() or {}
        if self.mesh.context_rank:
            return RankResult({}, [])
        return RankResult(row, list(map(_find_changes, before, samples)))


def _get_arrays(sample: Sample) -> dict[str, Float32Array]:
    return {name: getattr(sample, name) for name in ARRAY_FIELDS}


def _find_changes(before: Mapping[str, Float32Array], sample: Sample) -> dict[str, Float32Array]:
    """Return the fields of a sample that have changed."""
    return {name: value for name, value in _get_arrays(sample).items() if value is not before[name]}
