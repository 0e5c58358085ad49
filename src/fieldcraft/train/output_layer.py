"""The output layer in pieces: what training asks about each trained token, without all logits.

32,768 tokens with a vocabulary of 152,064 words have 20 GB of logits. So they are computed for a
few hundred tokens at a time, and once more in the backward pass. Letters: T trained tokens, R those
of a piece, H features of a hidden state, V words.
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

from fieldcraft.algos.distillation import reverse_kl
from fieldcraft.algos.logprobs import logits_grad, logp_and_entropy, score_logits
from fieldcraft.types import UserError

PIECE = 2**25  # logits of a piece


class OutputLayer:
    """The part of a transformers causal LM that makes logits of the last hidden states: mostly one
    matrix, in some models also a factor or a bound."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.around: Callable[[], AbstractContextManager[object]] = nullcontext
        self.words = int(model.config.get_text_config().vocab_size)
        self.factor = _factor(model)

    def __call__(self, hidden_RH: Tensor) -> Tensor:
        """Compute the logits in float32; shape [R, V]. They are those of the model's own forward
        pass."""
        with self.around():
            return _own_logits(self.model, hidden_RH).float()

    def within(self, around: Callable[[], AbstractContextManager[object]]) -> OutputLayer:
        """Return the layer as it is inside a context, such as with other weights."""
        other = copy(self)
        other.around = around
        return other

    @property
    def matrix(self) -> nn.Linear:
        """The linear layer; the logits are `factor` times what it gives, if there is a factor."""
        layer: nn.Linear = self.model.get_output_embeddings()
        return layer


@dataclass(frozen=True, slots=True)
class Predictions:
    """The places where tokens are predicted: the hidden states there, of shape [T, H], and the
    layer that makes logits of them. The logits are divided by the temperature."""

    hidden_TH: Tensor
    layer: OutputLayer
    temperature: float

    def logits(self, rows: slice) -> Tensor:
        """Return the logits of some of the tokens; shape [R, V]."""
        return self.layer(self.hidden_TH[rows]) / self.temperature


@dataclass(frozen=True, slots=True)
class Scores:
    """The scores of each token, shape T: its log-probability, the entropy of its distribution, and
    the reverse KL to a teacher, where there is one."""

    logp_T: Tensor
    entropy_T: Tensor
    teacher_kl_T: Tensor | None = None


def score(
    said: Predictions,
    targets_T: Tensor,
    teacher: Predictions | None = None,
    top_k: int | None = None,
) -> Scores:
    """Compute the scores of the tokens, differentiable in the model; the teacher is a constant.

    `top_k` is that of `algos.distillation.reverse_kl`.
    """
    layer = said.layer
    if teacher is None and layer.factor is not None:
        return Scores(*_of_matrix(said, targets_T, layer.factor))
    pieces = list(_pieces(len(targets_T), layer.words))
    if len(pieces) == 1:
        return _whole(said, targets_T, teacher, top_k)
    found = [
        checkpoint(_piece, said, targets_T, teacher, top_k, rows, use_reentrant=False)
        for rows in pieces
    ]
    columns = [torch.cat(column) for column in zip(*found, strict=True)]
    return Scores(*columns)


def _whole(
    said: Predictions, targets_T: Tensor, teacher: Predictions | None, top_k: int | None
) -> Scores:
    return Scores(*_piece(said, targets_T, teacher, top_k, slice(None)))


def _piece(
    said: Predictions,
    targets_T: Tensor,
    teacher: Predictions | None,
    top_k: int | None,
    rows: slice,
) -> tuple[Tensor, ...]:
    """Compute the fields of `Scores` for some of the tokens."""
    logits_RV = said.logits(rows)
    scores = logp_and_entropy(logits_RV, targets_T[rows])
    if teacher is None:
        return scores
    with torch.no_grad():
        teacher_RV = teacher.logits(rows)
    return (*scores, reverse_kl(logits_RV, teacher_RV, top_k))


def _pieces(count: int, words: int) -> Iterator[slice]:
    rows = max(PIECE // words, 1)
    for start in range(0, max(count, 1), rows):
        yield slice(start, start + rows)


# -- a layer that is one matrix --------------------------------------------------------------------


def _of_matrix(said: Predictions, targets_T: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    matrix = said.layer.matrix
    found: tuple[Tensor, Tensor] = _MatrixScores.apply(
        said.hidden_TH, matrix.weight, matrix.bias, targets_T, factor / said.temperature
    )
    return found


class _MatrixScores(torch.autograd.Function):
    """Log-probability and entropy of each token. All pieces share two arrays of logits: new memory
    for each of them would cost as much time as half of the matrix product. The logits of a single
    piece are kept for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_TH: Tensor,
        weight_VH: Tensor,
        bias_V: Tensor | None,
        targets_T: Tensor,
        factor: float,
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        logp_T, entropy_T, lse_T = hidden_TH.new_empty((3, len(targets_T)), dtype=torch.float32)
        for rows, logits_RV, space_RV in _logits(hidden_TH, weight_VH, bias_V, factor):
            logp_T[rows], entropy_T[rows], lse_T[rows] = score_logits(
                logits_RV, targets_T[rows], space_RV
            )
        ctx.save_for_backward(hidden_TH, weight_VH, bias_V, targets_T, lse_T, entropy_T)
        ctx.factor = factor
        ctx.whole = [(rows, logits_RV)] if len(logits_RV) == len(targets_T) else None
        return logp_T, entropy_T

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, logp_grad_T: Tensor | None, entropy_grad_T: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None, None, None]:
        hidden_TH, weight_VH, bias_V, targets_T, lse_T, entropy_T = ctx.saved_tensors
        hidden_grad_TH = torch.empty_like(hidden_TH)
        weight_grad_VH = torch.zeros_like(weight_VH) if ctx.needs_input_grad[1] else None
        bias_grad_V = torch.zeros_like(bias_V) if ctx.needs_input_grad[2] else None
        whole, ctx.whole = ctx.whole, None  # which is overwritten
        for rows, logits_RV, *_ in whole or _logits(hidden_TH, weight_VH, bias_V, ctx.factor):
            grad_RV = logits_grad(
                logits_RV.sub_(lse_T[rows, None]),
                targets_T[rows],
                entropy_T[rows],
                _part(logp_grad_T, rows),
                _part(entropy_grad_T, rows),
            )
            if ctx.factor != 1:
                grad_RV.mul_(ctx.factor)
            grad_RV = grad_RV.to(weight_VH.dtype)
            torch.mm(grad_RV, weight_VH, out=hidden_grad_TH[rows])
            if weight_grad_VH is not None:
                weight_grad_VH.addmm_(grad_RV.T, hidden_TH[rows])
            if bias_grad_V is not None:
                bias_grad_V += grad_RV.sum(0)
        return hidden_grad_TH, weight_grad_VH, bias_grad_V, None, None


def _part(grad_T: Tensor | None, rows: slice) -> Tensor | None:
    return None if grad_T is None else grad_T[rows]


def _logits(
    hidden_TH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, factor: float
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Yield (rows, their logits, as much space again); the next piece overwrites both arrays."""
    count, words = len(hidden_TH), len(weight_VH)
    raw_RV = hidden_TH.new_empty(min(max(PIECE // words, 1), count), words)
    space_RV = torch.empty_like(raw_RV, dtype=torch.float32)
    for rows in _pieces(count, words):
        part_RH = hidden_TH[rows]
        made_RV = torch.mm(part_RH, weight_VH.T, out=raw_RV[: len(part_RH)])
        if bias_V is not None:
            made_RV += bias_V
        logits_RV = made_RV.float()
        yield rows, logits_RV if factor == 1 else logits_RV.mul_(factor), space_RV[: len(part_RH)]


# -- the model's own -------------------------------------------------------------------------------


def hidden_states(model: Any, **inputs: Any) -> Tensor:
    """Compute what the output layer reads, of a transformers causal LM; shape [B, L, H]."""
    states: Tensor = decoder_of(model)(**inputs).last_hidden_state
    return states


def decoder_of(model: Any) -> Any:
    """Return all of a transformers causal LM but its output layer. Raises UserError if that is no
    part."""
    for part in (model.get_decoder(), model.base_model):
        if isinstance(part, PreTrainedModel) and part is not model:
            return part
    raise UserError(
        f"{type(model).__name__} can be neither trained nor sampled from here, because it has no"
        " decoder apart from its output layer: choose a model of an architecture that"
        " docs/lab-notes/architectures.md lists."
    )


class _DecoderOutput(MoeModelOutputWithPast):
    """Last hidden states, and None for all else that a causal LM asks of its decoder, such as cross
    attentions (GPT-2)."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("_"):
            raise AttributeError(name)


def _own_logits(model: Any, hidden_RH: Tensor) -> Tensor:
    """Run the model's own forward pass behind its last hidden states, and return its logits."""
    given = _DecoderOutput(last_hidden_state=hidden_RH[None])
    with patch.object(decoder_of(model), "forward", lambda *_, **__: given):
        logits: Tensor = model(inputs_embeds=hidden_RH[None], use_cache=False).logits
    return logits[0]


@torch.no_grad()
def _factor(model: Any) -> float | None:
    """Return the factor of the logits, as a multiple of what the linear output layer gives: 1 for
    most models. None where they are something else, such as bounded, or where the layer is
    wrapped."""
    layer = model.get_output_embeddings()
    if type(layer) is not nn.Linear:
        return None
    probe_RH = torch.linspace(-1, 1, 2 * layer.in_features).view(2, -1).to(layer.weight)
    plain_RV, own_RV = layer(probe_RH).float(), _own_logits(model, probe_RH).float()
    factor = float((plain_RV * own_RV).sum() / plain_RV.square().sum())
    is_multiple = torch.allclose(own_RV, factor * plain_RV, rtol=1e-4, atol=1e-5)
    return factor if is_multiple else None
