"""The comparison of a packed batch with plain forward passes on probe texts, before training."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fieldcraft.config.sections import Dtype
from fieldcraft.engine.comparison import logprobs_of, probe_texts, require_equal
from fieldcraft.train.batch import Sample, pack
from fieldcraft.train.output_layer import OutputLayer, Predictions, score
from fieldcraft.train.spread import Spread
from fieldcraft.train.train_mode import set_to_train


@torch.no_grad()
def require_packed(
    model: Any, layer: OutputLayer, spread: Spread, device: torch.device, dtype: Dtype
) -> None:
    """Raise UserError for a model that a packed batch with a shared prefix computes otherwise than
    a plain forward pass of each text, and for one that computes otherwise when it is trained."""
    texts = probe_texts(model.config.get_text_config())
    batch = pack([_whole_text(ids) for ids in texts])
    set_to_train(model)
    said = Predictions(spread.states(model, batch, device), layer, 1.0)
    scores = score(said, batch.ids_T[spread.here(batch)].to(device))
    found = spread.join(scores.logp_T, batch)
    model.eval()
    logits = [spread.plain_logits(model, layer, torch.tensor(ids, device=device)) for ids in texts]
    plain = [logprobs_of(of[:-1], ids[1:]) for of, ids in zip(logits, texts, strict=True)]
    require_equal(model, "in a packed batch", dtype, [found], plain)


def _whole_text(ids: list[int]) -> Sample:
    """Return a sample in which all ids but the first have a weight."""
    zeros, weight = np.zeros(len(ids), np.float32), np.ones(len(ids), np.float32)
    weight[0] = 0.0
    return Sample(np.array(ids, np.int64), weight, zeros, zeros, zeros, zeros)
