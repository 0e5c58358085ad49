"""Critic of PPO: predicts the value of a context with a scalar head on hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn

from fieldcraft.config.rl import CriticConfig as Settings
from fieldcraft.config.sections import Optim
from fieldcraft.train.batch import PackedBatch, SampleUnit
from fieldcraft.train.losses import Metrics, ValueBatch, ValueLoss
from fieldcraft.train.packed_attention import enable_packed_attention
from fieldcraft.train.parallel import SINGLE_PROCESS, ParallelStrategy
from fieldcraft.train.train_mode import checkpoint_activations, remove_dropout, set_train_mode
from fieldcraft.train.trainer import OptimizedModule


@final
class Critic(OptimizedModule):
    """Linear head on a model's last hidden states, and its optimizer.

    With `backbone: separate` the model is trained together with the head; pass a copy of the
    policy's initial weights. With `backbone: policy` it is the policy's model, whose hidden states
    are used without gradient: only the head is trained, so errors of the critic cannot harm the
    policy. The head is initialised to 0, so the first advantages are the rewards themselves.

    Args:
        model: transformers causal LM.
        settings: backbone, and the clip range of a value in a step.
        optim: settings of the optimizer, unless `settings` has separate ones.
        steps: length of the schedule.
        dtype: compute dtype of a separate backbone; see `MasterWeights`.
        strategy: parallel strategy of weights and tokens.
    """

    def __init__(
        self,
        model: Any,
        settings: Settings,
        optim: Optim,
        steps: int,
        dtype: torch.dtype | None = None,
        strategy: ParallelStrategy = SINGLE_PROCESS,
    ) -> None:
        enable_packed_attention(model)
        remove_dropout(model)
        self.model = model
        self.trains_model = settings.backbone == "separate"
        self.loss = ValueLoss(clip=settings.clip)
        self.head = nn.Linear(model.config.get_text_config().hidden_size, 1).to(model.device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        optim = settings.optim or optim
        if self.trains_model and optim.activation_checkpointing:
            checkpoint_activations(model)
        weights = strategy.shard(model if self.trains_model else None, dtype, self.head)
        super().__init__(weights, optim, steps, strategy)

    def step(self, units: Sequence[SampleUnit], total: float) -> dict[str, float]:
        """Run one optimizer step towards the samples' `target`; `total` is the divisor of the loss.

        Raises UserError if a gradient is not finite; the weights are not changed.
        """
        set_train_mode(self.model)
        return self.optimizer_step(units, partial(self._loss, total=total))

    @torch.no_grad()
    def fill_values(self, units: Sequence[SampleUnit]) -> None:
        """Write the current predictions to `value` of the samples."""
        self.model.eval()
        self._fill_field(units, "value", self._predict_values)

    def state_dict(self) -> dict[str, Any]:
        """Return the full state, including weights, because the policy's checkpoint does not
        contain them."""
        return {
            "head": self.head.state_dict(),
            "model": self.weights.make_state_dict(self.model) if self.trains_model else {},
            "adamw": self.adamw.state_dict(),
            "done": self.done,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.head.load_state_dict(state["head"])
        if self.trains_model:
            self.weights.load(self.model, state["model"])
        self.adamw.load_state_dict(state["adamw"])
        self.done = state["done"]

    def _predict_values(self, batch: PackedBatch) -> Tensor:
        """Compute the value of the context before each trained token; shape T."""
        with torch.set_grad_enabled(self.trains_model and torch.is_grad_enabled()):
            hidden_tH = self.strategy.compute_hidden_states(self.model, batch, self.device)
        return self.strategy.all_gather_tokens(self.head(hidden_tH.float())[:, 0], batch)

    def _loss(self, batch: PackedBatch, total: float) -> tuple[Tensor, Metrics]:
        to = partial(Tensor.to, device=self.device)
        values = ValueBatch(
            value_T=self._predict_values(batch),
            weight_T=to(batch.gather_field("weight")),
            old_value_T=to(batch.gather_field("value")),
            target_T=to(batch.gather_field("target")),
        )
        return self.loss(values, total)
