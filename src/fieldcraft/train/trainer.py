"""Trainer: the optimizer step that all kinds of training share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from fieldcraft.config.sections import Optim
from fieldcraft.engine.attention import require_plain_attention
from fieldcraft.records.files import atomic_folder, raise_write_errors
from fieldcraft.train.batch import PackedBatch, Sample, SampleUnit, get_teacher_view, pack
from fieldcraft.train.lora import LoraAdapter
from fieldcraft.train.losses import LossFunction, Metrics, TokenBatch
from fieldcraft.train.master_weights import MasterWeights, make_adamw
from fieldcraft.train.memory import map_large_blocks
from fieldcraft.train.model import load_model, to_dtype_name
from fieldcraft.train.output_layer import OutputLayer, TokenPredictions, TokenScores, score_tokens
from fieldcraft.train.packed_attention import enable_packed_attention
from fieldcraft.train.parallel import SINGLE_PROCESS, ParallelStrategy
from fieldcraft.train.parity import probe_policy, require_packed_parity
from fieldcraft.train.protocols import (
    ProbeResult,
    ReferenceModel,
    ScoresCallback,
    TeacherReference,
    ignore_scores,
)
from fieldcraft.train.saving import STATE_FILE, load_state, save_model
from fieldcraft.train.train_mode import checkpoint_activations, remove_dropout, set_train_mode
from fieldcraft.types import UserError


def compute_learning_rate(optim: Optim, step: int, steps: int) -> float:
    """Return the learning rate of step `step` (0-based) of `steps`. It rises linearly to `lr` in
    the warm-up, and falls over the steps after it."""
    warmup = optim.count_warmup_steps(steps)
    if step < warmup:
        return optim.lr * (step + 1) / (warmup + 1)
    remaining = 1 - (step - warmup) / max(steps - warmup, 1)
    decay = {
        "constant": 1.0,
        "linear": remaining,
        "cosine": 0.5 * (1 + math.cos(math.pi * (1 - remaining))),
    }
    return optim.lr * decay[optim.schedule]


class OptimizedModule:
    """Weights and their optimizer, which accumulates gradients over micro-batches.

    Args:
        weights: trained weights, changed in place.
        optim: settings of the optimizer.
        steps: length of the schedule.
        strategy: parallel strategy of weights and tokens.
    """

    def __init__(
        self, weights: MasterWeights, optim: Optim, steps: int, strategy: ParallelStrategy
    ) -> None:
        self.strategy = strategy
        self.optim = optim
        self.steps = steps
        self.done = 0
        self.weights = weights
        self.adamw = make_adamw(self.weights.masters, optim)

    @property
    def device(self) -> torch.device:
        return self.weights.masters[0].device

    def optimizer_step(
        self,
        units: Sequence[SampleUnit],
        compute_loss: Callable[[PackedBatch], tuple[Tensor, Metrics]],
    ) -> dict[str, float]:
        """Run one optimizer step on the sum of `compute_loss` over the micro-batches. Returns the
        sums of its metrics, the gradient norm and the learning rate.

        Raises UserError if a gradient is not finite; the parameters are not changed.
        """
        rate = compute_learning_rate(self.optim, self.done, self.steps)
        for group in self.adamw.param_groups:
            group["lr"] = rate
        self.drop_gradients()
        sums: dict[str, Tensor] = {}
        for batch in self.strategy.make_micro_batches(units, self.optim.micro_batch_tokens):
            loss, metrics = compute_loss(batch)
            if batch.is_padding:
                loss, metrics = 0 * loss, {}
            loss.backward()
            for name, value in metrics.items():
                sums[name] = sums[name] + value if name in sums else value
        clipped = nn.utils.clip_grad_norm_(self.weights.masters, self.optim.max_grad_norm)
        norm = self.strategy.gather_value(clipped)
        if not torch.isfinite(norm):
            raise UserError(
                f"step {self.done} has a non-finite gradient; the weights were not changed:"
                " lower the learning rate (lr)."
            )
        self.adamw.step()
        self.weights.copy_to_model()
        self.done += 1
        return {k: float(v) for k, v in sums.items()} | {"grad_norm": float(norm), "lr": rate}

    def drop_gradients(self) -> None:
        """Free the memory of the last step's gradients for sampling."""
        self.adamw.zero_grad(set_to_none=True)

    def _fill_field(
        self,
        units: Sequence[SampleUnit],
        field: str,
        compute_values: Callable[[PackedBatch], Tensor],
    ) -> None:
        """Write a value for every trained token to a field of the samples."""
        for batch in self.strategy.make_micro_batches(units, self.optim.micro_batch_tokens):
            batch.scatter_field(field, compute_values(batch))


@final
class Trainer(OptimizedModule):
    """Model and its optimizer. Callers produce samples; `step` is the same for SFT and RL.

    Args:
        model: transformers causal LM; its parameters are changed in place.
        optim: settings of the optimizer.
        steps: length of the schedule.
        adapter: adapter on the model, if only that is trained.
        dtype: compute dtype of the model; see `MasterWeights`.
        strategy: parallel strategy of weights and tokens.

    Raises:
        UserError: the model's attention is not plain, or its log-probabilities in a packed batch
            differ from those of separate texts.
    """

    def __init__(
        self,
        model: Any,
        optim: Optim,
        steps: int,
        adapter: LoraAdapter | None = None,
        dtype: torch.dtype | None = None,
        strategy: ParallelStrategy = SINGLE_PROCESS,
    ) -> None:
        map_large_blocks()  # for the whole process
        require_plain_attention(model)
        enable_packed_attention(model)
        remove_dropout(model)
        self.model = model
        self.output_layer = OutputLayer(model)
        self.adapter = adapter
        if optim.activation_checkpointing:
            checkpoint_activations(model)
        super().__init__(strategy.shard(model, dtype), optim, steps, strategy)
        self.dtype = to_dtype_name(model.dtype if dtype is None else dtype)
        if strategy is SINGLE_PROCESS:  # ranks check it when all have their shards
            self.require_parity()

    def require_parity(self) -> None:
        """Raise UserError if log-probabilities in a packed batch differ from those of separate
        texts; see `parity.require_packed_parity`."""
        require_packed_parity(self.model, self.output_layer, self.strategy, self.device, self.dtype)

    def step(
        self,
        units: Sequence[SampleUnit],
        loss_fn: LossFunction,
        total: float,
        temperature: float = 1.0,
        teacher: TeacherReference | None = None,
        on_scores: ScoresCallback = ignore_scores,
    ) -> dict[str, float]:
        """Run one optimizer step.

        Args:
            units: samples, in tuples that the objective compares.
            loss_fn: loss function.
            total: divisor of the loss: the weight of the whole step.
            temperature: temperature of the sampling distribution whose log-probabilities are
                trained.
            teacher: model that the objective compares with. It runs before the trained model, so
                that only its hidden states are in memory together with the activations.
            on_scores: callback with the scores of each micro-batch.

        Raises:
            UserError: a gradient is not finite; the weights are not changed.
        """

        def compute_loss(batch: PackedBatch) -> tuple[Tensor, Metrics]:
            teacher_predictions = (
                None if teacher is None else self._predict_teacher(teacher, batch, temperature)
            )
            top_k = None if teacher is None else teacher.top_k
            set_train_mode(self.model)
            scores = self._score_batch(batch, temperature, teacher_predictions, top_k)
            on_scores(batch, scores)
            return loss_fn(self._make_token_batch(batch, scores), total)

        return self.optimizer_step(units, compute_loss)

    @torch.no_grad()
    def fill_logprobs(self, units: Sequence[SampleUnit], field: str, temperature: float) -> None:
        """Write the model's log-probabilities to a field of the samples, such as `old_logp`."""
        self.model.eval()

        def compute_logps(batch: PackedBatch) -> Tensor:
            return self._score_batch(batch, temperature).logp_T

        self._fill_field(units, field, compute_logps)

    @torch.no_grad()
    def predict(self, samples: Sequence[Sample], temperature: float) -> TokenPredictions:
        """Compute the predictions of the trained tokens of all samples, concatenated."""
        self.model.eval()
        batch = pack(samples)
        hidden_tH = self.strategy.compute_hidden_states(self.model, batch, self.device)
        hidden_TH = self.strategy.all_gather_tokens(hidden_tH, batch)
        return TokenPredictions(hidden_TH, self.output_layer, temperature)

    def snapshot_reference(self) -> ReferenceModel | None:
        """Return a read-only snapshot of the current policy; see `protocols.TrainablePolicy`."""
        if self.adapter is None:
            return None
        self.adapter.save_initial()
        return InitialAdapter(self, self.adapter)

    def write(self, folder: Path, tokenizer: Any) -> None:
        """Write the model with its master weights, and the tokenizer, to a folder in transformers
        format, or the adapter in PEFT format."""
        if self.adapter is None:
            self.drop_gradients()  # the memory is needed to read the model back
            save_model(folder, self.model, tokenizer, self.weights.make_state_dict(self.model))
        else:
            self.adapter.save(folder)

    def run_probe(self) -> ProbeResult:
        """Return the log-probabilities of the policy on the probe; see
        `protocols.TrainablePolicy`."""
        return probe_policy(self, self.model.config, to_dtype_name(self.model.dtype))

    def save(self, target: Path, tokenizer: Any, extra: dict[str, Any]) -> None:
        """Save the trained weights, `state_dict` and `extra` (plain values) to the folder
        `target`."""
        with atomic_folder(target) as draft, raise_write_errors(target):
            self.write(draft, tokenizer)
            torch.save({"trainer": self.state_dict(), "extra": extra}, draft / STATE_FILE)

    def load(self, folder: Path) -> dict[str, Any]:
        """Restore the state that `save` wrote, and return its `extra`.

        The weights are read by transformers, which wrote them: it may have renamed them, split them
        into several files, or stored the experts of a layer as separate tensors.

        Raises UserError if a file is damaged.
        """
        if self.adapter is None:
            self.weights.load(self.model, load_model(folder, torch.device("cpu")).state_dict())
        else:
            self.adapter.load(folder)
        with load_state(folder, self.device) as state:
            self.load_state_dict(state["trainer"])
            extra: dict[str, Any] = state["extra"]
        return extra

    def wait_for_saves(self) -> None:
        """Do nothing, because `save` is synchronous."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state without weights: optimizer, position in the schedule, random state."""
        return {
            "adamw": self.adamw.state_dict(),
            "done": self.done,
            "rng": torch.get_rng_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.adamw.load_state_dict(state["adamw"])
        self.done = state["done"]
        torch.set_rng_state(state["rng"].cpu())

    def _score_batch(
        self,
        batch: PackedBatch,
        temperature: float,
        teacher: TokenPredictions | None = None,
        top_k: int | None = None,
    ) -> TokenScores:
        """Compute the model's scores of the trained tokens of a packed batch. Only positions that
        predict one reach the output layer; the others would waste rows of vocabulary size."""
        hidden_tH = self.strategy.compute_hidden_states(self.model, batch, self.device)
        predictions = TokenPredictions(hidden_tH, self.output_layer, temperature)
        targets_t = batch.ids_T[self.strategy.select_local_tokens(batch)].to(self.device)
        scores = score_tokens(predictions, targets_t, teacher, top_k)
        kl_t = scores.teacher_kl_T
        all_gather = partial(self.strategy.all_gather_tokens, batch=batch)
        return TokenScores(
            all_gather(scores.logp_T),
            all_gather(scores.entropy_T),
            None if kl_t is None else all_gather(kl_t),
        )

    def _predict_teacher(
        self, teacher: TeacherReference, batch: PackedBatch, temperature: float
    ) -> TokenPredictions:
        """Return the predictions of a teacher for the trained tokens, from its view of the
        samples."""
        predictions: TokenPredictions = teacher.model.predict(
            [get_teacher_view(s) for s in batch.samples], temperature
        )
        return replace(
            predictions, hidden_TH=predictions.hidden_TH[self.strategy.select_local_tokens(batch)]
        )

    def _make_token_batch(self, batch: PackedBatch, scores: TokenScores) -> TokenBatch:
        to = partial(Tensor.to, device=self.device)
        return TokenBatch(
            logp_T=scores.logp_T,
            entropy_T=scores.entropy_T,
            teacher_kl_T=scores.teacher_kl_T,
            teacher_weight_T=to(batch.gather_field("teacher_weight")),
            weight_T=to(batch.gather_field("weight")),
            seq_T=to(batch.seq_T),
            turn_T=to(batch.turn_T),
            advantage_T=to(batch.gather_field("advantage")),
            old_logp_T=to(batch.gather_field("old_logp")),
            sampled_logp_T=to(batch.gather_field("sampled_logp")),
            ref_logp_T=to(batch.gather_field("ref_logp")),
            num_sequences=len(batch.samples),
            current_version_T=to(batch.gather_field("version") == self.done),
        )


class InitialAdapter:
    """Reference of a trainer with an adapter: the same model with the saved initial adapter, so
    that no second copy of the model is needed."""

    def __init__(self, trainer: Trainer, adapter: LoraAdapter) -> None:
        self.trainer = trainer
        self.adapter = adapter

    def fill_logprobs(self, units: Sequence[SampleUnit], field: str, temperature: float) -> None:
        with self.adapter.use_initial():
            self.trainer.fill_logprobs(units, field, temperature)

    def predict(self, samples: Sequence[Sample], temperature: float) -> TokenPredictions:
        with self.adapter.use_initial():
            predictions = self.trainer.predict(samples, temperature)
        return replace(predictions, layer=predictions.layer.with_context(self.adapter.use_initial))
