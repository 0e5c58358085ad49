"""The specs that a rank makes its models from, and its answers: plain values that can be sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fieldcraft.config.rl import CriticConfig
from fieldcraft.config.sections import Dtype, LoraConfig, Optim
from fieldcraft.train.batch import Float32Array


@dataclass(frozen=True, kw_only=True)
class PolicySpec:
    """A model that is trained. With `lora` it is an adapter on it, new (from the seed) or that of
    the folder `adapter`, and the model itself is loaded in `dtype`."""

    folder: Path
    optim: Optim
    steps: int
    dtype: Dtype = "float32"
    lora: LoraConfig | None = None
    seed: int = 0
    adapter: Path | None = None


@dataclass(frozen=True, kw_only=True)
class ReferenceSpec:
    """A model that is only read, in `dtype`. Of `optim` only `micro_batch_tokens` is used."""

    folder: Path
    optim: Optim
    dtype: Dtype = "float32"


@dataclass(frozen=True, kw_only=True)
class InitialAdapterSpec:
    """The adapter of a policy as it began."""

    policy: str


@dataclass(frozen=True, kw_only=True)
class CriticSpec:
    """A critic on the model of a policy, or, where the settings ask for one of its own, on the
    model of a folder."""

    settings: CriticConfig
    optim: Optim
    steps: int
    policy: str
    folder: Path
    dtype: Dtype = "float32"


RankModelSpec = PolicySpec | ReferenceSpec | InitialAdapterSpec | CriticSpec


@dataclass(frozen=True)
class RankResult:
    """The metrics of a rank's share of a step, and what was written into its samples: of each one,
    in their order, the fields that have changed."""

    metrics: Mapping[str, float]
    changes: Sequence[Mapping[str, Float32Array]]
