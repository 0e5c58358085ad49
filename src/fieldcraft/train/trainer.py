"""The one optimiser step that every kind of training shares."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn

from fieldcraft.algos.logprobs import token_logprobs
from fieldcraft.algos.losses import Metrics, Objective, TokenBatch
from fieldcraft.config.sections import Optim
from fieldcraft.engine.attention import refuse_special_attention
from fieldcraft.train.batch import PackedBatch, Sample, Unit, micro_batches, pack
from fieldcraft.train.lora import Adapter
from fieldcraft.types import UserError


def learning_rate(optim: Optim, step: int, steps: int) -> float:
    """The rate of step `step` (0-based) of `steps`."""
    warm = min(1.0, (step + 1) / (optim.warmup + 1))
    left = 1 - step / max(steps, 1)
    falling = {
        "constant": 1.0,
        "linear": left,
        "cosine": 0.5 * (1 + math.cos(math.pi * (1 - left))),
    }
    return optim.lr * warm * falling[optim.schedule]


Logits = Callable[[Sequence[Sample], float], Tensor]  # of samples at a temperature, as in `logits`


class Learner:
    """Parameters and their optimiser: a step is gradients accumulated over micro-batches.

    Args:
        parameters: what is trained, changed in place.
        optim: settings.
        steps: length of the schedule.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], optim: Optim, steps: int) -> None:
        self.optim = optim
        self.steps = steps
        self.done = 0
        self.parameters = [p for p in parameters if p.requires_grad]
        decay = [p for p in self.parameters if p.dim() > 1]
        plain = [p for p in self.parameters if p.dim() <= 1]
        self.adamw = torch.optim.AdamW(
            [
                {"params": decay, "weight_decay": optim.weight_decay},
                {"params": plain, "weight_decay": 0.0},
            ],
            lr=optim.lr,
            betas=(optim.beta1, optim.beta2),
            fused=True,
        )

    @property
    def device(self) -> torch.device:
        return self.parameters[0].device

    def descend(
        self, units: Sequence[Unit], loss_of: Callable[[PackedBatch], tuple[Tensor, Metrics]]
    ) -> dict[str, float]:
        """One optimiser step on the sum of `loss_of` over the micro-batches; returns the sums of
        its metrics, the norm of the gradient and the learning rate.

        Raises UserError if a gradient is not finite; the parameters are left untouched.
        """
        rate = learning_rate(self.optim, self.done, self.steps)
        for group in self.adamw.param_groups:
            group["lr"] = rate
        self.adamw.zero_grad(set_to_none=True)
        sums: dict[str, Tensor] = {}
        for batch in self._micro_batches(units):
            loss, metrics = loss_of(batch)
            loss.backward()
            for name, value in metrics.items():
                sums[name] = sums[name] + value if name in sums else value
        norm = nn.utils.clip_grad_norm_(self.parameters, self.optim.clip_norm)
        if not torch.isfinite(norm):
            raise UserError(
                f"step {self.done} has a gradient that is not finite, and the weights were left as"
                " they were: lower the learning rate (lr) or turn off autocast."
            )
        self.adamw.step()
        self.done += 1
        return {k: float(v) for k, v in sums.items()} | {"grad_norm": float(norm), "lr": rate}

    def _fill(
        self, units: Sequence[Unit], field: str, values_of: Callable[[PackedBatch], Tensor]
    ) -> None:
        """Write a value for every trained token into a field of the samples."""
        for batch in self._micro_batches(units):
            values_T = values_of(batch).cpu().numpy()
            start = 0
            for sample in batch.samples:
                count = int((sample.weight > 0).sum())
                setattr(sample, field, sample.spread(values_T[start : start + count]))
                start += count

    def _micro_batches(self, units: Sequence[Unit]) -> Iterator[PackedBatch]:
        return micro_batches(
            units, row_length=self.optim.row_length, max_tokens=self.optim.micro_tokens
        )

    def _forward(self, model: nn.Module, batch: PackedBatch, **options: Any) -> Any:
        """What a transformers model says about a packed batch."""
        with self._autocast():
            return model(
                input_ids=batch.ids_BL.to(self.device),
                attention_mask=batch.mask_B1LL.to(self.device),
                position_ids=batch.position_BL.to(self.device),
                use_cache=False,
                **options,
            )

    def _autocast(self) -> AbstractContextManager[object]:
        if not self.optim.autocast:
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)


@final
class Trainer(Learner):
    """A model and its optimiser. Callers produce samples; `step` is the same for SFT and RL.

    Args:
        model: a transformers causal LM; its parameters are changed in place.
        optim: settings.
        steps: length of the schedule.
        adapter: on that model, if it is all that is trained.

    Raises:
        UserError: the model's attention is more than plain, so packed sequences would see each
            other.
    """

    def __init__(
        self, model: Any, optim: Optim, steps: int, adapter: Adapter | None = None
    ) -> None:
        refuse_special_attention(model)
        super().__init__(model.parameters(), optim, steps)
        self.model = model
        self.adapter = adapter
        if optim.activation_checkpointing:
            model.activation_checkpointing_enable()

    def step(
        self,
        units: Sequence[Unit],
        objective: Objective,
        total: float,
        temperature: float = 1.0,
        teacher: Logits | None = None,
    ) -> dict[str, float]:
        """One optimiser step.

        Args:
            units: samples, in tuples that the objective looks at together.
            objective: the loss.
            total: what the loss is divided by: the weight of the whole step.
            temperature: of the sampling distribution whose log-probabilities are trained.
            teacher: what the objective compares each micro-batch with. It is asked before the model
                is run, so that only its logits are in memory together with the activations.

        Raises:
            UserError: the loss or a gradient is not finite; the weights are left untouched.
        """

        def loss_of(batch: PackedBatch) -> tuple[Tensor, Metrics]:
            teacher_TV = None if teacher is None else teacher(batch.samples, temperature)
            self.model.train()
            tokens = self._token_batch(batch, temperature)
            return objective(replace(tokens, teacher_TV=teacher_TV), total)

        return self.descend(units, loss_of)

    @torch.no_grad()
    def fill_logprobs(self, units: Sequence[Unit], field: str, temperature: float) -> None:
        """Write this model's log-probabilities into a field of the samples, such as `old_logp`."""
        self.model.eval()
        self._fill(units, field, lambda batch: self._token_batch(batch, temperature).logp_T)

    @torch.no_grad()
    def logits(self, samples: Sequence[Sample], temperature: float) -> Tensor:
        """This model's logits where each trained token of the samples is predicted, one sample
        after the other, divided by the temperature; shape [T, V]."""
        self.model.eval()
        return self._logits(pack(samples, self.optim.row_length), temperature)

    def state_dict(self) -> dict[str, Any]:
        """Everything but the weights: optimiser, position in the schedule, random state."""
        return {
            "adamw": self.adamw.state_dict(),
            "done": self.done,
            "rng": torch.get_rng_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.adamw.load_state_dict(state["adamw"])
        self.done = state["done"]
        torch.set_rng_state(state["rng"].cpu())

    def _logits(self, batch: PackedBatch, temperature: float) -> Tensor:
        """Run the model over a packed batch; shape [T, V]. Only positions that predict a trained
        token in some row reach the output layer; the others would cost rows of vocabulary size for
        nothing."""
        to = partial(Tensor.to, device=self.device)
        kept_K, place_T = torch.unique(batch.col_T - 1, return_inverse=True)
        logits_BKV = self._forward(self.model, batch, logits_to_keep=to(kept_K)).logits
        logits_TV: Tensor = logits_BKV[to(batch.row_T), to(place_T)]
        return logits_TV.float() / temperature

    def _token_batch(self, batch: PackedBatch, temperature: float) -> TokenBatch:
        to = partial(Tensor.to, device=self.device)
        logits_TV = self._logits(batch, temperature)
        return TokenBatch(
            logp_T=token_logprobs(logits_TV, to(batch.ids_BL[batch.row_T, batch.col_T])),
            logits_TV=logits_TV,
            weight_T=to(batch.flat("weight")),
            seq_T=to(batch.seq_T),
            turn_T=to(batch.turn_T),
            advantage_T=to(batch.flat("advantage")),
            old_logp_T=to(batch.flat("old_logp")),
            sampled_logp_T=to(batch.flat("sampled_logp")),
            ref_logp_T=to(batch.flat("ref_logp")),
            num_sequences=len(batch.samples),
        )
