"""The one optimiser step that every kind of training shares."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from fieldcraft.algos.losses import Metrics, Objective, TokenBatch
from fieldcraft.config.sections import Optim
from fieldcraft.engine.attention import refuse_special_attention
from fieldcraft.records.files import atomic_folder, writing
from fieldcraft.train.attention import attend_by_runs
from fieldcraft.train.batch import PackedBatch, Sample, Unit, as_seen, pack
from fieldcraft.train.comparison import require_packed
from fieldcraft.train.learning import Guide, Look, ProbeResult, Reference, nobody_looks
from fieldcraft.train.lora import Adapter
from fieldcraft.train.model import load_model, name_of_type
from fieldcraft.train.output_layer import OutputLayer, Predictions, Scores, score
from fieldcraft.train.parity import said_by_policy
from fieldcraft.train.saving import STATE, read_state, save_model
from fieldcraft.train.spread import ALONE, Spread
from fieldcraft.train.train_mode import checkpoint_activations, remove_dropout, set_to_train
from fieldcraft.train.weights import Weights, make_adamw
from fieldcraft.types import UserError


def learning_rate(optim: Optim, step: int, steps: int) -> float:
    """Return the learning rate of step `step` (0-based) of `steps`."""
    warm = min(1.0, (step + 1) / (optim.warmup_steps(steps) + 1))
    left = 1 - step / max(steps, 1)
    falling = {
        "constant": 1.0,
        "linear": left,
        "cosine": 0.5 * (1 + math.cos(math.pi * (1 - left))),
    }
    return optim.lr * warm * falling[optim.schedule]


class Learner:
    """Weights and their optimiser: a step is gradients accumulated over micro-batches.

    Args:
        weights: what is trained, changed in place.
        optim: settings.
        steps: length of the schedule.
        spread: over which processes weights and tokens lie.
    """

    def __init__(self, weights: Weights, optim: Optim, steps: int, spread: Spread) -> None:
        self.spread = spread
        self.optim = optim
        self.steps = steps
        self.done = 0
        self.weights = weights
        self.adamw = make_adamw(self.weights.masters, optim)

    @property
    def device(self) -> torch.device:
        return self.weights.masters[0].device

    def descend(
        self, units: Sequence[Unit], loss_of: Callable[[PackedBatch], tuple[Tensor, Metrics]]
    ) -> dict[str, float]:
        """Run one optimiser step on the sum of `loss_of` over the micro-batches. Returns the sums
        of its metrics, the norm of the gradient and the learning rate.

        Raises UserError if a gradient is not finite; the parameters are left untouched.
        """
        rate = learning_rate(self.optim, self.done, self.steps)
        for group in self.adamw.param_groups:
            group["lr"] = rate
        self.drop_gradients()
        sums: dict[str, Tensor] = {}
        for batch in self._micro_batches(units):
            loss, metrics = loss_of(batch)
            if batch.idle:
                loss, metrics = 0 * loss, {}
            loss.backward()
            for name, value in metrics.items():
                sums[name] = sums[name] + value if name in sums else value
        clipped = nn.utils.clip_grad_norm_(self.weights.masters, self.optim.clip_norm)
        norm = self.spread.whole(clipped)
        if not torch.isfinite(norm):
            raise UserError(
                f"step {self.done} has a gradient that is not finite, and the weights were left as"
                " they were: lower the learning rate (lr)."
            )
        self.adamw.step()
        self.weights.round()
        self.done += 1
        return {k: float(v) for k, v in sums.items()} | {"grad_norm": float(norm), "lr": rate}

    def drop_gradients(self) -> None:
        """Free the memory of the last step's gradients: what is sampled next needs it."""
        self.adamw.zero_grad(set_to_none=True)

    def _fill(
        self, units: Sequence[Unit], field: str, values_of: Callable[[PackedBatch], Tensor]
    ) -> None:
        """Write a value for every trained token into a field of the samples."""
        for batch in self._micro_batches(units):
            batch.write(field, values_of(batch))

    def _micro_batches(self, units: Sequence[Unit]) -> Iterator[PackedBatch]:
        return self.spread.batches(units, self.optim.micro_tokens)


@final
class Trainer(Learner):
    """A model and its optimiser. Callers produce samples; `step` is the same for SFT and RL.

    Args:
        model: a transformers causal LM; its parameters are changed in place.
        optim: settings.
        steps: length of the schedule.
        adapter: on that model, if it is all that is trained.
        dtype: in which the model computes; see `Weights`.
        spread: over which processes its weights and tokens lie.

    Raises:
        UserError: the model's attention is more than plain, or a packed batch is otherwise another
            one than the texts in it.
    """

    def __init__(
        self,
        model: Any,
        optim: Optim,
        steps: int,
        adapter: Adapter | None = None,
        dtype: torch.dtype | None = None,
        spread: Spread = ALONE,
    ) -> None:
        refuse_special_attention(model)
        attend_by_runs(model)
        remove_dropout(model)
        self.model = model
        self.output_layer = OutputLayer(model)
        self.adapter = adapter
        if optim.activation_checkpointing:
            checkpoint_activations(model)
        super().__init__(spread.weights(model, dtype), optim, steps, spread)
        self.dtype = name_of_type(model.dtype if dtype is None else dtype)
        if spread is ALONE:  # ranks do so when all of them have their parts
            self.compare()

    def compare(self) -> None:
        """Raise UserError if a packed batch is another one than the texts in it; see
        `comparison.require_packed`."""
        require_packed(self.model, self.output_layer, self.spread, self.device, self.dtype)

    def step(
        self,
        units: Sequence[Unit],
        objective: Objective,
        total: float,
        temperature: float = 1.0,
        guide: Guide | None = None,
        look: Look = nobody_looks,
    ) -> dict[str, float]:
        """Run one optimiser step.

        Args:
            units: samples, in tuples that the objective looks at together.
            objective: the loss.
            total: what the loss is divided by: the weight of the whole step.
            temperature: of the sampling distribution whose log-probabilities are trained.
            guide: the teacher that the objective compares with. It is asked before the model is
                run, so that only its hidden states are in memory together with the activations.
            look: is shown what the model says of each micro-batch.

        Raises:
            UserError: the loss or a gradient is not finite; the weights are left untouched.
        """

        def loss_of(batch: PackedBatch) -> tuple[Tensor, Metrics]:
            teacher = None if guide is None else self._ask(guide, batch, temperature)
            top_k = None if guide is None else guide.top_k
            set_to_train(self.model)
            scores = self._scores(batch, temperature, teacher, top_k)
            look(batch, scores)
            return objective(self._token_batch(batch, scores), total)

        return self.descend(units, loss_of)

    @torch.no_grad()
    def fill_logprobs(self, units: Sequence[Unit], field: str, temperature: float) -> None:
        """Write this model's log-probabilities into a field of the samples, such as `old_logp`."""
        self.model.eval()

        def logp_of(batch: PackedBatch) -> Tensor:
            return self._scores(batch, temperature).logp_T

        self._fill(units, field, logp_of)

    @torch.no_grad()
    def predict(self, samples: Sequence[Sample], temperature: float) -> Predictions:
        """Predict the trained tokens of the samples, each in its place, one sample after the
        other."""
        self.model.eval()
        batch = pack(samples)
        hidden_TH = self.spread.join(self._states(batch), batch)
        return Predictions(hidden_TH, self.output_layer, temperature)

    def at_start(self) -> Reference | None:
        """Return the policy as it is now, to be read, as `learning.Learning` has it."""
        if self.adapter is None:
            return None
        self.adapter.keep_start()
        return AdapterStart(self, self.adapter)

    def write(self, folder: Path, tokenizer: Any) -> None:
        """Write the model with its masters, and the tokenizer, into a folder as transformers loads
        them, or the adapter, as PEFT does."""
        if self.adapter is None:
            self.drop_gradients()  # in their place the model is read back
            save_model(folder, self.model, tokenizer, self.weights.state_of(self.model))
        else:
            self.adapter.save(folder)

    def said(self) -> ProbeResult:
        """Return what the policy says of the probe, as `learning.Learning` has it."""
        return said_by_policy(self, self.model.config, name_of_type(self.model.dtype))

    def save(self, target: Path, tokenizer: Any, extra: dict[str, Any]) -> None:
        """Save what is trained, `state_dict`, and `extra`, plain values, into the folder
        `target`."""
        with atomic_folder(target) as draft, writing(target):
            self.write(draft, tokenizer)
            torch.save({"trainer": self.state_dict(), "extra": extra}, draft / STATE)

    def load(self, folder: Path) -> dict[str, Any]:
        """Take over what `save` wrote, and return its `extra`.

        The weights are read by transformers, as they were written: it may have renamed them, cut
        them into several files, or split the experts of a layer into tensors of their own.

        Raises UserError if a file is damaged.
        """
        if self.adapter is None:
            self.weights.load(self.model, load_model(folder, torch.device("cpu")).state_dict())
        else:
            self.adapter.load(folder)
        with read_state(folder, self.device) as state:
            self.load_state_dict(state["trainer"])
            extra: dict[str, Any] = state["extra"]
        return extra

    def settle(self) -> None:
        """Do nothing: `save` has waited."""

    def state_dict(self) -> dict[str, Any]:
        """Return all but the weights: optimiser, position in the schedule, random state."""
        return {
            "adamw": self.adamw.state_dict(),
            "done": self.done,
            "rng": torch.get_rng_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.adamw.load_state_dict(state["adamw"])
        self.done = state["done"]
        torch.set_rng_state(state["rng"].cpu())

    def _states(self, batch: PackedBatch) -> Tensor:
        """Run the model over a packed batch. Only positions that predict a trained token reach the
        output layer; the others would cost rows of vocabulary size for nothing."""
        return self.spread.states(self.model, batch, self.device)

    def _scores(
        self,
        batch: PackedBatch,
        temperature: float,
        teacher: Predictions | None = None,
        top_k: int | None = None,
    ) -> Scores:
        """Compute what the model says of the trained tokens of a packed batch."""
        said = Predictions(self._states(batch), self.output_layer, temperature)
        targets_t = batch.ids_T[self.spread.here(batch)].to(self.device)
        found = score(said, targets_t, teacher, top_k)
        kl_t = found.teacher_kl_T
        join = partial(self.spread.join, batch=batch)
        return Scores(
            join(found.logp_T), join(found.entropy_T), None if kl_t is None else join(kl_t)
        )

    def _ask(self, guide: Guide, batch: PackedBatch, temperature: float) -> Predictions:
        """Return the predictions of a teacher, as it reads the samples, in the place of each
        trained token."""
        said: Predictions = guide.model.predict([as_seen(s) for s in batch.samples], temperature)
        return replace(said, hidden_TH=said.hidden_TH[self.spread.here(batch)])

    def _token_batch(self, batch: PackedBatch, scores: Scores) -> TokenBatch:
        to = partial(Tensor.to, device=self.device)
        return TokenBatch(
            logp_T=scores.logp_T,
            entropy_T=scores.entropy_T,
            teacher_kl_T=scores.teacher_kl_T,
            weight_T=to(batch.flat("weight")),
            seq_T=to(batch.seq_T),
            turn_T=to(batch.turn_T),
            advantage_T=to(batch.flat("advantage")),
            old_logp_T=to(batch.flat("old_logp")),
            sampled_logp_T=to(batch.flat("sampled_logp")),
            ref_logp_T=to(batch.flat("ref_logp")),
            num_sequences=len(batch.samples),
            fresh_T=to(batch.flat("version") == self.done),
        )


class AdapterStart:
    """The reference of a trainer with an adapter: the same model with the adapter as it was when
    its start was kept, so there is no second copy of the model."""

    def __init__(self, trainer: Trainer, adapter: Adapter) -> None:
        self.trainer = trainer
        self.adapter = adapter

    def fill_logprobs(self, units: Sequence[Unit], field: str, temperature: float) -> None:
        with self.adapter.at_start():
            self.trainer.fill_logprobs(units, field, temperature)

    def predict(self, samples: Sequence[Sample], temperature: float) -> Predictions:
        with self.adapter.at_start():
            said = self.trainer.predict(samples, temperature)
        return replace(said, layer=said.layer.within(self.adapter.at_start))
