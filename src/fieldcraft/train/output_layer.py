"""Chunked output layer: scores of the trained tokens without materialising all logits.

32,768 tokens with a vocabulary of 152,064 have 20 GB of logits. So logits are computed for a few
hundred tokens at a time, and recomputed in the backward pass. Shape letters: T trained tokens, R
tokens of a chunk, H features of a hidden state, V vocabulary entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_outputs import MoeModelOutputWithPast

from fieldcraft.train.logprobs import (
    logits_grad,
    logp_and_entropy,
    logp_entropy_logsumexp,
    reverse_kl,
)
from fieldcraft.types import UserError

MAX_CHUNK_LOGITS = 2**25  # logits of a chunk


class OutputLayer:
    """Part of a transformers causal LM that computes logits from the last hidden states: usually
    one matrix, in some models also a factor or a softcap."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.context: Callable[[], AbstractContextManager[object]] = nullcontext
        self.vocab_size = int(model.config.get_text_config().vocab_size)
        self.logit_scale = _measure_logit_scale(model)

    def __call__(self, hidden_RH: Tensor) -> Tensor:
        """Compute the logits in float32; shape [R, V]. They equal those of the model's own forward
        pass."""
        with self.context():
            return _compute_model_logits(self.model, hidden_RH).float()

    def with_context(self, context: Callable[[], AbstractContextManager[object]]) -> OutputLayer:
        """Return a copy of the layer that runs inside a context, such as with other weights."""
        other = copy(self)
        other.context = context
        return other

    @property
    def linear(self) -> nn.Linear:
        """Linear layer; the logits are `logit_scale` times its output if there is a factor."""
        layer: nn.Linear = self.model.get_output_embeddings()
        return layer


@dataclass(frozen=True, slots=True)
class TokenPredictions:
    """Predictions of tokens: hidden states [T, H] and the output layer. The logits are divided by
    the temperature."""

    hidden_TH: Tensor
    layer: OutputLayer
    temperature: float

    def compute_logits(self, rows: slice) -> Tensor:
        """Return the logits of the selected tokens; shape [R, V]."""
        return self.layer(self.hidden_TH[rows]) / self.temperature


@dataclass(frozen=True, slots=True)
class TokenScores:
    """Scores of each token, shape T: its log-probability, the entropy of its distribution, and the
    reverse KL to a teacher (None without one)."""

    logp_T: Tensor
    entropy_T: Tensor
    teacher_kl_T: Tensor | None = None


def score_tokens(
    predictions: TokenPredictions,
    targets_T: Tensor,
    teacher: TokenPredictions | None = None,
    top_k: int | None = None,
) -> TokenScores:
    """Compute the scores of the tokens, differentiable in the model; the teacher is a constant.

    `top_k` is passed to `logprobs.reverse_kl`.
    """
    layer = predictions.layer
    if teacher is None and layer.logit_scale is not None:
        scale = layer.logit_scale / predictions.temperature
        weight_VH, bias_V = layer.linear.weight, layer.linear.bias
        return TokenScores(
            *_LinearScores.apply(predictions.hidden_TH, weight_VH, bias_V, targets_T, scale)
        )
    chunks = list(_split_chunks(len(targets_T), layer.vocab_size))
    if len(chunks) == 1:
        return TokenScores(*_score_chunk(predictions, targets_T, teacher, top_k, slice(None)))
    chunk_scores = [
        checkpoint(_score_chunk, predictions, targets_T, teacher, top_k, rows, use_reentrant=False)
        for rows in chunks
    ]
    columns = [torch.cat(column) for column in zip(*chunk_scores, strict=True)]
    return TokenScores(*columns)


def _score_chunk(
    predictions: TokenPredictions,
    targets_T: Tensor,
    teacher: TokenPredictions | None,
    top_k: int | None,
    rows: slice,
) -> tuple[Tensor, ...]:
    """Compute the fields of `TokenScores` for the selected tokens."""
    logits_RV = predictions.compute_logits(rows)
    scores = logp_and_entropy(logits_RV, targets_T[rows])
    if teacher is None:
        return scores
    with torch.no_grad():
        teacher_RV = teacher.compute_logits(rows)
    return (*scores, reverse_kl(logits_RV, teacher_RV, top_k))


def _split_chunks(count: int, vocab_size: int) -> Iterator[slice]:
    rows = max(MAX_CHUNK_LOGITS // vocab_size, 1)
    for start in range(0, max(count, 1), rows):
        yield slice(start, start + rows)


# -- a layer that is one matrix --------------------------------------------------------------------


class _LinearScores(torch.autograd.Function):
    """Log-probability and entropy of each token. All chunks share two arrays of logits: allocating
    memory for each chunk would take half as long as the matrix product. If there is a single chunk,
    its logits are kept for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_TH: Tensor,
        weight_VH: Tensor,
        bias_V: Tensor | None,
        targets_T: Tensor,
        logit_scale: float,
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        logp_T, entropy_T, lse_T = hidden_TH.new_empty((3, len(targets_T)), dtype=torch.float32)
        for rows, logits_RV, buffer_RV in _iter_logits(hidden_TH, weight_VH, bias_V, logit_scale):
            logp_T[rows], entropy_T[rows], lse_T[rows] = logp_entropy_logsumexp(
                logits_RV, targets_T[rows], buffer_RV
            )
        ctx.save_for_backward(hidden_TH, weight_VH, bias_V, targets_T, lse_T, entropy_T)
        ctx.logit_scale = logit_scale
        ctx.single_chunk = [(rows, logits_RV)] if len(logits_RV) == len(targets_T) else None
        return logp_T, entropy_T

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, logp_grad_T: Tensor | None, entropy_grad_T: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None, None, None]:
        hidden_TH, weight_VH, bias_V, targets_T, lse_T, entropy_T = ctx.saved_tensors
        hidden_grad_TH = torch.empty_like(hidden_TH)
        # sums over chunks; in the dtype of the weight, every addition would be rounded
        weight_grad_VH = _make_zeros(weight_VH) if ctx.needs_input_grad[1] else None
        bias_grad_V = _make_zeros(bias_V) if ctx.needs_input_grad[2] else None
        single_chunk, ctx.single_chunk = ctx.single_chunk, None  # it is overwritten
        for rows, logits_RV, *_ in single_chunk or _iter_logits(
            hidden_TH, weight_VH, bias_V, ctx.logit_scale
        ):
            grad_RV = logits_grad(
                logits_RV.sub_(lse_T[rows, None]),
                targets_T[rows],
                entropy_T[rows],
                _slice_rows(logp_grad_T, rows),
                _slice_rows(entropy_grad_T, rows),
            )
            if ctx.logit_scale != 1:
                grad_RV.mul_(ctx.logit_scale)
            grad_RV = grad_RV.to(weight_VH.dtype)
            torch.mm(grad_RV, weight_VH, out=hidden_grad_TH[rows])
            if weight_grad_VH is not None:
                _add_product(weight_grad_VH, grad_RV.T, hidden_TH[rows])
            if bias_grad_V is not None:
                bias_grad_V += grad_RV.sum(0, dtype=torch.float32)
        return (
            hidden_grad_TH,
            None if weight_grad_VH is None else weight_grad_VH.to(weight_VH.dtype),
            None if bias_grad_V is None else bias_grad_V.to(bias_V.dtype),
            None,
            None,
        )


def _make_zeros(weight: Tensor) -> Tensor:
    return torch.zeros_like(weight, dtype=torch.float32)


def _add_product(sum_VH: Tensor, left_VR: Tensor, right_RH: Tensor) -> None:
    """Add a matrix product to a sum in float32."""
    if left_VR.dtype == sum_VH.dtype:
        sum_VH.addmm_(left_VR, right_RH)
    else:
        sum_VH += left_VR @ right_RH


def _slice_rows(grad_T: Tensor | None, rows: slice) -> Tensor | None:
    return None if grad_T is None else grad_T[rows]


def _iter_logits(
    hidden_TH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, logit_scale: float
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Yield (rows, their logits, a buffer of the same shape); the next chunk overwrites both
    arrays."""
    count, vocab_size = len(hidden_TH), len(weight_VH)
    raw_RV = hidden_TH.new_empty(min(max(MAX_CHUNK_LOGITS // vocab_size, 1), count), vocab_size)
    buffer_RV = torch.empty_like(raw_RV, dtype=torch.float32)
    for rows in _split_chunks(count, vocab_size):
        chunk_RH = hidden_TH[rows]
        product_RV = torch.mm(chunk_RH, weight_VH.T, out=raw_RV[: len(chunk_RH)])
        if bias_V is not None:
            product_RV += bias_V
        logits_RV = product_RV.float()
        yield (
            rows,
            logits_RV if logit_scale == 1 else logits_RV.mul_(logit_scale),
            buffer_RV[: len(chunk_RH)],
        )


# -- the model's own forward pass ------------------------------------------------------------------


def get_decoder(model: Any) -> Any:
    """Return the decoder of a transformers causal LM: the model without its output layer, whose
    `last_hidden_state` [B, L, H] is the input of that layer. Raises UserError if it is not a
    separate module."""
    for module in (model.get_decoder(), model.base_model):
        if isinstance(module, PreTrainedModel) and module is not model:
            return module
    raise UserError(
        f"{type(model).__name__} is not supported for training or sampling because it has no"
        " decoder apart from its output layer: choose an architecture listed in"
        " docs/lab-notes/architectures.md."
    )


class _DecoderOutput(MoeModelOutputWithPast):
    """Last hidden states, and None for all other attributes that a causal LM reads from its
    decoder's output, such as cross attentions (GPT-2)."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("_"):
            raise AttributeError(name)


def _compute_model_logits(model: Any, hidden_RH: Tensor) -> Tensor:
    """Run the rest of the model's own forward pass after its last hidden states, and return its
    logits."""
    output = _DecoderOutput(last_hidden_state=hidden_RH[None])
    with patch.object(get_decoder(model), "forward", lambda *_, **__: output):
        logits: Tensor = model(inputs_embeds=hidden_RH[None], use_cache=False).logits
    return logits[0]


@torch.no_grad()
def _measure_logit_scale(model: Any) -> float | None:
    """Return the ratio of the logits to the output of the linear output layer: 1 for most models.
    None if they are not a multiple of it, such as softcapped ones, or if the layer is wrapped."""
    layer = model.get_output_embeddings()
    if type(layer) is not nn.Linear:
        return None
    probe_RH = torch.linspace(-1, 1, 2 * layer.in_features).view(2, -1).to(layer.weight)
    plain_RV, own_RV = layer(probe_RH).float(), _compute_model_logits(model, probe_RH).float()
    scale = float((plain_RV * own_RV).sum() / plain_RV.square().sum())
    is_multiple = torch.allclose(own_RV, scale * plain_RV, rtol=1e-4, atol=1e-5)
    return scale if is_multiple else None
