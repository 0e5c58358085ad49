"""The check, by a probe text, that written weights give what the policy gave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from fieldcraft.config.sections import Dtype
from fieldcraft.engine.parity import MAX_DIFFERENCE_STDS, compute_tolerance_nats
from fieldcraft.engine.vllm.weights import ProbeLogprobs, make_probe_ids, run_probe
from fieldcraft.train.batch import Sample
from fieldcraft.train.model import load_model, to_dtype_name
from fieldcraft.train.protocols import ProbeResult, ReferenceModel
from fieldcraft.types import UserError


def probe_model(model: Any) -> ProbeResult:
    """Return the result of the probe for a model in this process."""
    return ProbeResult(run_probe(model), to_dtype_name(model.dtype))


def probe_policy(policy: ReferenceModel, config: Any, dtype: Dtype) -> ProbeResult:
    """Return the result of the probe for a policy that may lie in shards, or have an adapter;
    `config` is its model's."""
    return ProbeResult(run_policy_probe(policy, config), dtype)


def run_policy_probe(policy: ReferenceModel, config: Any) -> ProbeLogprobs:
    """Return the log-probabilities that a policy gives the probe, as it does of any text."""
    ids = np.array(make_probe_ids(config.get_text_config()), np.int64)
    zeros = np.zeros(len(ids), np.float32)
    weight = np.ones(len(ids), np.float32)
    weight[0] = 0.0
    sample = Sample(ids, weight, zeros, zeros, zeros, zeros, zeros, zeros)
    policy.fill_logprobs([(sample,)], "old_logp", 1.0)
    return ProbeLogprobs(ids.tolist(), sample.old_logp[1:], None)


def require_export_parity(folder: Path, probe: ProbeResult, dtype: Dtype) -> None:
    """Raise UserError unless the model in a folder, as transformers reads it, says of the probe
    what a policy said. `dtype` is that of the model that was written; it is read in the coarser of
    the two types, which needs less memory. The state of random numbers stays as it is."""
    coarser = max(probe.dtype, dtype, key=MAX_DIFFERENCE_STDS.__getitem__)
    with torch.random.fork_rng(devices=[]):
        exported = run_probe(load_model(folder, torch.device("cpu"), coarser))
    gap = probe.probe.mean_abs_difference(exported)
    max_gap = compute_tolerance_nats(coarser, torch.tensor(probe.probe.logprobs))
    if not gap <= max_gap:  # so it is also if one of them is not a number
        raise UserError(
            "the exported model differs from the policy: their log-probabilities of a probe text"
            f" differ by {gap:.3g} nats, and rounding explains at most {max_gap:.3g}; choose a"
            " model of another architecture, or train without lora."
        )
