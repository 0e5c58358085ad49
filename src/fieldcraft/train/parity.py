"""The proof that written weights say what the policy said, by a probe text, read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from fieldcraft.config.sections import Dtype
from fieldcraft.engine.comparison import TOLERANCE, allowed
from fieldcraft.engine.vllm.weights import Proof, probe_ids, prove
from fieldcraft.train.batch import Sample
from fieldcraft.train.learning import ProbeResult, Reference
from fieldcraft.train.model import load_model, name_of_type
from fieldcraft.types import UserError


def said_by_model(model: Any) -> ProbeResult:
    """Return the result of the probe for a model in this process."""
    return ProbeResult(prove(model), name_of_type(model.dtype))


def said_by_policy(policy: Reference, config: Any, dtype: Dtype) -> ProbeResult:
    """Return the result of the probe for a policy that may lie in shards, or have an adapter;
    `config` is its model's."""
    return ProbeResult(prove_policy(policy, config), dtype)


def prove_policy(policy: Reference, config: Any) -> Proof:
    """Return the log-probabilities that a policy gives the probe, as it does of any text."""
    ids = np.array(probe_ids(config.get_text_config()), np.int64)
    zeros = np.zeros(len(ids), np.float32)
    weight = np.ones(len(ids), np.float32)
    weight[0] = 0.0
    text = Sample(ids, weight, zeros, zeros, zeros, zeros, zeros, zeros)
    policy.fill_logprobs([(text,)], "old_logp", 1.0)
    return Proof(ids.tolist(), text.old_logp[1:], None)


def require_written(folder: Path, said: ProbeResult, dtype: Dtype) -> None:
    """Raise UserError unless the model in a folder, as transformers reads it, says of the probe
    what a policy said. `dtype` is that of the model that was written; it is read in the coarser of
    the two types, which needs less memory. The state of random numbers stays as it is."""
    coarser = max(said.dtype, dtype, key=TOLERANCE.__getitem__)
    with torch.random.fork_rng(devices=[]):
        read = prove(load_model(folder, torch.device("cpu"), coarser))
    gap = said.proof.distance(read)
    most = allowed(coarser, torch.tensor(said.proof.logprobs))
    if not gap <= most:  # so it is also if one of them is not a number
        raise UserError(
            "the model as it was written is another one than the policy: their log-probabilities"
            f" of a probe text are {gap:.3g} nats apart, more than the {most:.3g} that rounding"
            " explains; choose a model of another architecture, or train without lora."
        )
