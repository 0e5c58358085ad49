"""Parity check of a packed batch with plain forward passes, on probe texts, before training."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fieldcraft.config.sections import Dtype
from fieldcraft.engine.parity import gather_logprobs, make_probe_texts, require_equal_logprobs
from fieldcraft.train.batch import Sample, pack
from fieldcraft.train.output_layer import OutputLayer, TokenPredictions, score_tokens
from fieldcraft.train.parallel import ParallelStrategy
from fieldcraft.train.train_mode import set_train_mode


@torch.no_grad()
def require_packed_parity(
    model: Any, layer: OutputLayer, strategy: ParallelStrategy, device: torch.device, dtype: Dtype
) -> None:
    """Raise UserError if a model's log-probabilities in a packed batch with a shared prefix, in
    training mode, differ from those of a plain forward pass of each text."""
    texts = make_probe_texts(model.config.get_text_config())
    batch = pack([_make_probe_sample(ids) for ids in texts])
    set_train_mode(model)
    predictions = TokenPredictions(strategy.compute_hidden_states(model, batch, device), layer, 1.0)
    scores = score_tokens(predictions, batch.ids_T[strategy.select_local_tokens(batch)].to(device))
    packed = strategy.all_gather_tokens(scores.logp_T, batch)
    model.eval()
    logits = [
        strategy.compute_plain_logits(model, layer, torch.tensor(ids, device=device))
        for ids in texts
    ]
    plain = [
        gather_logprobs(text_logits[:-1], ids[1:])
        for text_logits, ids in zip(logits, texts, strict=True)
    ]
    require_equal_logprobs(model, "in a packed batch", dtype, [packed], plain)


def _make_probe_sample(ids: list[int]) -> Sample:
    """Return a sample in which all ids except the first have a weight."""
    zeros, weight = np.zeros(len(ids), np.float32), np.ones(len(ids), np.float32)
    weight[0] = 0.0
    return Sample(np.array(ids, np.int64), weight, zeros, zeros, zeros, zeros)
