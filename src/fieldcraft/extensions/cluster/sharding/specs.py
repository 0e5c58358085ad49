"""Specs of a rank's models, and results of its calls: plain values that can be sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fieldcraft.config.rl import CriticConfig
from fieldcraft.config.sections import Dtype, LoraConfig, Optim
from fieldcraft.train.batch import Float32Array


@dataclass(frozen=True, kw_only=True)
class PolicySpec:
    """Spec of a trained model. With `lora` an adapter is trained, a new one (from the seed) or the
    one in the folder `adapter`, and the model itself is loaded in `dtype`."""

    folder: Path
    optim: Optim
    steps: int
    dtype: Dtype = "float32"
    lora: LoraConfig | None = None
    seed: int = 0
    adapter: Path | None = None


@dataclass(frozen=True, kw_only=True)
class ReferenceSpec:
    """Spec of a read-only model in `dtype`. Of `optim` only `micro_batch_tokens` is used."""

    folder: Path
    optim: Optim
    dtype: Dtype = "float32"


@dataclass(frozen=True, kw_only=True)
class InitialAdapterSpec:
    """Spec of a reference: a policy with its initial adapter."""

    policy: str


@dataclass(frozen=True, kw_only=True)
class CriticSpec:
    """Spec of a critic on the model of a policy or, if the settings require a separate backbone, on
    the model of a folder."""

    settings: CriticConfig
    optim: Optim
    steps: int
    policy: str
    folder: Path
    dtype: Dtype = "float32"


RankModelSpec = PolicySpec | ReferenceSpec | InitialAdapterSpec | CriticSpec


@dataclass(frozen=True)
class RankResult:
    """Metrics of a rank's share of a step, and the changed fields of its samples, in their
    order."""

    metrics: Mapping[str, float]
    changes: Sequence[Mapping[str, Float32Array]]
