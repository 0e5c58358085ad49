"""Parity checks of training with plain forward passes, on probe texts.

Before training, the log-probabilities of a packed batch are compared, and afterwards those of the
exported weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from fieldcraft.config.sections import Dtype
from fieldcraft.engine.parity import (
    MAX_DIFFERENCE_STDS,
    compute_tolerance_nats,
    gather_logprobs,
    make_probe_texts,
    require_equal_logprobs,
)
from fieldcraft.engine.weights import ProbeLogprobs, make_probe_ids, run_probe
from fieldcraft.train.batch import Sample, pack
from fieldcraft.train.model import load_model, to_dtype_name
from fieldcraft.train.output_layer import OutputLayer, TokenPredictions, score_tokens
from fieldcraft.train.parallel import ParallelStrategy
from fieldcraft.train.protocols import ProbeResult, ReferenceModel
from fieldcraft.train.train_mode import set_train_mode
from fieldcraft.types import UserError


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


def probe_model(model: Any) -> ProbeResult:
    """Return the result of the probe for a model in this process."""
    return ProbeResult(run_probe(model), to_dtype_name(model.dtype))


def probe_policy(policy: ReferenceModel, config: Any, dtype: Dtype) -> ProbeResult:
    """Return the result of the probe for a policy that may be sharded or have an adapter; `config`
    is the model's configuration."""
    return ProbeResult(run_policy_probe(policy, config), dtype)


def run_policy_probe(policy: ReferenceModel, config: Any) -> ProbeLogprobs:
    """Return the log-probabilities of a policy on the probe."""
    ids = make_probe_ids(config.get_text_config())
    sample = _make_probe_sample(ids)
    policy.fill_logprobs([(sample,)], "old_logp", 1.0)
    return ProbeLogprobs(ids, sample.old_logp[1:], None)


def require_export_parity(folder: Path, probe: ProbeResult, dtype: Dtype) -> None:
    """Raise UserError unless the model in a folder, loaded by transformers, gives the same probe
    log-probabilities as a policy. `dtype` is the dtype of the written model; it is loaded in the
    coarser of the two dtypes, which needs less memory. The random state is preserved."""
    coarser = max(probe.dtype, dtype, key=MAX_DIFFERENCE_STDS.__getitem__)
    with torch.random.fork_rng(devices=[]):
        exported = run_probe(load_model(folder, torch.device("cpu"), coarser))
    gap = probe.probe.mean_abs_difference(exported.logprobs)
    max_gap = compute_tolerance_nats(coarser, torch.tensor(probe.probe.logprobs))
    if not gap <= max_gap:  # also true if either is NaN
        raise UserError(
            "the exported model differs from the policy: their log-probabilities of a probe text"
            f" differ by {gap:.3g} nats, and rounding explains at most {max_gap:.3g}; choose a"
            " model of another architecture, or train without lora."
        )
