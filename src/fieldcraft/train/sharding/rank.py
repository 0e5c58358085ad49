"""The process of a rank: its shards of every model, and its shares of every step.

All ranks are called alike, each with its own share: they compute together. What one of them refuses
with a `UserError` all of them refuse, and the weights are untouched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, final

from fieldcraft.algos.losses import Objective
from fieldcraft.engine.writing import write_model
from fieldcraft.train.batch import Floats, Sample, Unit
from fieldcraft.train.critic import Critic
from fieldcraft.train.learning import Guide, Look
from fieldcraft.train.memory import release_memory
from fieldcraft.train.model import load_model, torch_type
from fieldcraft.train.sharding.checkpoint import Writer
from fieldcraft.train.sharding.mesh import Mesh, Place
from fieldcraft.train.sharding.policies import CPU, load_policy
from fieldcraft.train.sharding.shards import Shards
from fieldcraft.train.sharding.specs import (
    Answer,
    CriticSpec,
    PolicySpec,
    ReaderSpec,
    Spec,
    StartSpec,
)
from fieldcraft.train.sharding.state import Kept, gathered
from fieldcraft.train.trainer import AdapterStart, Trainer
from fieldcraft.types import UserError

ARRAYS = [field.name for field in fields(Sample) if field.name != "seen"]


@final
class Rank:
    """Models by name, in shards. The methods are called in all ranks at once, in one order."""

    def __init__(self, place: Place) -> None:
        self.mesh = Mesh(place)
        self.shards = Shards(self.mesh)
        self.models: dict[str, Any] = {}
        self.kept: dict[str, Kept] = {}  # what checkpoints hold, of those that are trained
        self.writer = Writer(self.mesh)

    def make(self, name: str, spec: Spec) -> None:
        """Make a model. Raises UserError for a folder that cannot be read, for settings that cannot
        be had in shards, and for a model that a packed batch computes otherwise than a plain
        forward pass."""
        with self.mesh.in_turn():  # for a while the whole model is in memory
            match spec:
                case PolicySpec():
                    self.models[name] = self._policy(name, spec)
                case ReaderSpec():
                    model = load_model(spec.folder, CPU, spec.dtype)
                    self.models[name] = Trainer(model, spec.optim, 1, spread=self.shards)
                case StartSpec():
                    policy = self.models[spec.policy]
                    self.models[name] = AdapterStart(policy, policy.adapter)
                case CriticSpec():
                    self.models[name] = self._critic(name, spec)
            release_memory()
        if isinstance(made := self.models[name], Trainer):
            made.compare()

    def step(
        self,
        name: str,
        units: Sequence[Unit],
        done: int,
        objective: Objective,
        total: float,
        temperature: float,
        teacher: str | None,
        top_k: int | None,
        look: Look,
    ) -> Answer:
        """Run a step as `Trainer.step` does; `done` is that of the driver, `teacher` the name of a
        model here."""
        policy: Trainer = self.models[name]
        policy.done = done
        guide = None if teacher is None else Guide(self.models[teacher], top_k)
        return self._answer(
            units, lambda: policy.step(units, objective, total, temperature, guide, look)
        )

    def fill_logprobs(
        self, name: str, units: Sequence[Unit], field: str, temperature: float
    ) -> Answer:
        """Fill log-probabilities as `Trainer.fill_logprobs` does."""
        return self._answer(
            units, lambda: self.models[name].fill_logprobs(units, field, temperature)
        )

    def step_critic(self, name: str, units: Sequence[Unit], done: int, total: float) -> Answer:
        """Run a step as `Critic.step` does."""
        critic: Critic = self.models[name]
        critic.done = done
        return self._answer(units, lambda: critic.step(units, total))

    def fill_values(self, name: str, units: Sequence[Unit]) -> Answer:
        """Fill values as `Critic.fill_values` does."""
        return self._answer(units, lambda: self.models[name].fill_values(units))

    def drop_gradients(self, name: str) -> None:
        """Free gradients as `Trainer.drop_gradients` does."""
        self.models[name].drop_gradients()

    def write(self, name: str, folder: Path) -> None:
        """Write the model as transformers loads it, or its adapter as PEFT does, by rank 0, in
        whose memory it is whole."""
        policy: Trainer = self.models[name]
        kept, first = self.kept[name], self.mesh.rank == 0
        if policy.adapter is None:
            state = gathered(kept.weights, first)
            if first:
                write_model(folder, policy.model, state)
        else:
            adapter = gathered(kept.trained, first)
            if first:
                policy.adapter.save(folder, adapter)

    def save(self, draft: Path, target: Path) -> None:
        """Begin to write a checkpoint of all that is trained into the folder `draft`, which is
        there; when it is complete it is renamed to `target`. Returns when it is copied: training
        may go on then. To be called when the one before it is settled."""
        self.writer.save(self.kept, draft, target)

    def settle(self) -> None:
        """Wait until the last checkpoint is complete. Raises UserError if it cannot be written."""
        self.writer.settle()

    def load(self, folder: Path) -> None:
        """Take over a checkpoint, of however many ranks, when the last one is settled. Raises
        UserError if it is damaged, or of other models."""
        self.writer.load(self.kept, folder)
        self.shards.forget()

    def close(self) -> None:
        """Let the others go, when the last checkpoint is complete. Raises UserError as `settle`."""
        try:
            self.writer.settle()
        finally:
            self.writer.close()
            self.mesh.close()

    def _policy(self, name: str, spec: PolicySpec) -> Trainer:
        _refuse_other_moments(spec.optim.moments)
        model, adapter = load_policy(spec.folder, spec.dtype, spec.lora, spec.seed, spec.adapter)
        dtype = None
        if adapter is None:
            dtype = torch_type(spec.dtype)
        else:
            adapter.keep_start()  # as long as it is whole
        policy = Trainer(model, spec.optim, spec.steps, adapter, dtype, self.shards)
        self.kept[name] = Kept.of(policy, model)
        return policy

    def _critic(self, name: str, spec: CriticSpec) -> Critic:
        _refuse_other_moments((spec.settings.optim or spec.optim).moments)
        own = spec.settings.backbone == "own"
        model = load_model(spec.folder, CPU) if own else self.models[spec.policy].model
        dtype = torch_type(spec.dtype)
        critic = Critic(model, spec.settings, spec.optim, spec.steps, dtype, self.shards)
        self.kept[name] = Kept.of(critic, critic.head, *([model] if own else []))
        return critic

    def _answer(
        self, units: Sequence[Unit], act: Callable[[], Mapping[str, float] | None]
    ) -> Answer:
        """Return the answer of a call. The first rank of a micro-batch gives what all of its ranks
        know."""
        samples = [sample for unit in units for sample in unit]
        before = [_arrays(sample) for sample in samples]
        row = act() or {}
        if self.mesh.part:
            return Answer({}, [])
        return Answer(row, list(map(_written, before, samples)))


def _arrays(sample: Sample) -> dict[str, Floats]:
    return {name: getattr(sample, name) for name in ARRAYS}


def _written(before: Mapping[str, Floats], sample: Sample) -> dict[str, Floats]:
    """Return the fields of a sample that have changed."""
    return {name: now for name, now in _arrays(sample).items() if now is not before[name]}


def _refuse_other_moments(moments: str) -> None:
    if moments != "float32":
        raise UserError(
            f"moments: {moments} cannot be spread over ranks, each of which holds a part of the"
            " moments anyway: remove it."
        )
