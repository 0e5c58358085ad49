"""Parity check between exported weights and the policy, on a probe text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from fieldcraft.config.sections import Dtype
from fieldcraft.engine.parity import MAX_DIFFERENCE_STDS, compute_tolerance_nats
from fieldcraft.extensions.vllm.weights import ProbeLogprobs, make_probe_ids, run_probe
from fieldcraft.train.batch import Sample
from fieldcraft.train.model import load_model, to_dtype_name
from fieldcraft.train.protocols import ProbeResult, ReferenceModel
from fieldcraft.types import UserError


def probe_model(model: Any) -> ProbeResult:
    """Return the result of the probe for a model in this process."""
    return ProbeResult(run_probe(model), to_dtype_name(model.dtype))


def probe_policy(policy: ReferenceModel, config: Any, dtype: Dtype) -> ProbeResult:
    """Return the result of the probe for a policy that may be sharded or have an adapter; `config`
    is the model's configuration."""
    return ProbeResult(run_policy_probe(policy, config), dtype)


def run_policy_probe(policy: ReferenceModel, config: Any) -> ProbeLogprobs:
    """Return the log-probabilities of a policy on the probe."""
    ids = np.array(make_probe_ids(config.get_text_config()), np.int64)
    zeros = np.zeros(len(ids), np.float32)
    weight = np.ones(len(ids), np.float32)
    weight[0] = 0.0
    sample = Sample(ids, weight, zeros, zeros, zeros, zeros, zeros, zeros)
    policy.fill_logprobs([(sample,)], "old_logp", 1.0)
    return ProbeLogprobs(ids.tolist(), sample.old_logp[1:], None)


def require_export_parity(folder: Path, probe: ProbeResult, dtype: Dtype) -> None:
    """Raise UserError unless the model in a folder, loaded by transformers, gives the same probe
    log-probabilities as a policy. `dtype` is the dtype of the written model; it is loaded in the
    coarser of the two dtypes, which needs less memory. The random state is preserved."""
    coarser = max(probe.dtype, dtype, key=MAX_DIFFERENCE_STDS.__getitem__)
    with torch.random.fork_rng(devices=[]):
        exported = run_probe(load_model(folder, torch.device("cpu"), coarser))
    gap = probe.probe.mean_abs_difference(exported)
    max_gap = compute_tolerance_nats(coarser, torch.tensor(probe.probe.logprobs))
    if not gap <= max_gap:  # also true if either is NaN
        raise UserError(
            "the exported model differs from the policy: their log-probabilities of a probe text"
            f" differ by {gap:.3g} nats, and rounding explains at most {max_gap:.3g}; choose a"
            " model of another architecture, or train without lora."
        )
