"""Helpers that run the same training in one process and in ranks, with tiny models and samples."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from checkpoints import tiny_tokenizer
from fieldcraft.config.rl import CriticConfig as CriticSettings
from fieldcraft.config.sections import LoraConfig, Optim
from fieldcraft.extensions.cluster.sharding.specs import CriticSpec, PolicySpec, ReferenceSpec
from fieldcraft.extensions.cluster.sharding.trainer import (
    ShardedCritic,
    ShardedTrainer,
    make_reference,
)
from fieldcraft.train.batch import Sample, SampleUnit
from fieldcraft.train.critic import Critic
from fieldcraft.train.lora import LoraAdapter
from fieldcraft.train.model import load_model, to_torch_dtype
from fieldcraft.train.protocols import ReferenceModel, TrainablePolicy, ValueModel
from fieldcraft.train.trainer import Trainer
from rank_processes import Pool

Kind = Literal["qwen3", "llama", "mla"]
WORDS = 400  # vocabulary size of the tokenizer
CPU = torch.device("cpu")
SHAPE: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "eos_token_id": 0,
    "bos_token_id": None,
    "pad_token_id": 0,
}


def write_model(folder: Path, kind: Kind = "qwen3", tied: bool = False, seed: int = 0) -> Path:
    """Write a tiny random model whose weight rows do not divide evenly among four ranks."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _made(kind, tied)
    model.save_pretrained(folder)
    return folder


def _made(kind: Kind, tied: bool) -> Any:
    if kind == "qwen3":
        return Qwen3ForCausalLM(Qwen3Config(**SHAPE, tie_word_embeddings=tied, head_dim=6))
    if kind == "llama":
        return LlamaForCausalLM(LlamaConfig(**SHAPE, tie_word_embeddings=tied))
    shape = SHAPE | {"num_key_value_heads": SHAPE["num_attention_heads"]}
    ranks = {"q_lora_rank": 10, "kv_lora_rank": 6, "first_k_dense_replace": 2}
    heads = {"qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 6}  # keys are wider
    return DeepseekV3ForCausalLM(DeepseekV3Config(**shape, **ranks, **heads))


def units(seed: int, groups: int = 3, group: int = 3, prompt: int = 20) -> list[SampleUnit]:
    """Return random units for a step.

    The samples of a group have a common prompt that is longer than the minimum for sharing. Every
    second group has a second chain. Weights, advantages and log-probabilities are random.
    """
    rng = np.random.default_rng(seed)
    found: list[SampleUnit] = []
    for number in range(groups):
        shared = rng.integers(1, WORDS, prompt + 3 * number)
        for member in range(group):
            chains = 2 if member == 1 else 1
            found.append(tuple(_sample(rng, shared) for _ in range(chains)))
    return found


def pairs(seed: int) -> list[SampleUnit]:
    """Return pairs of a chosen and a rejected continuation of the same prompt."""
    rng = np.random.default_rng(seed + 7)  # no gradient of a first step is below 1e-7
    prompts = [rng.integers(1, WORDS, 18) for _ in range(5)]
    return [tuple(_sample(rng, prompt, even=True) for _ in range(2)) for prompt in prompts]


def _sample(rng: np.random.Generator, prompt: Any, even: bool = False) -> Sample:
    written = int(rng.integers(6, 30))
    size = len(prompt) + written
    weight = np.zeros(size, np.float32)
    weight[-written:] = 1 if even else rng.uniform(0.5, 1.5, written)
    if not even:
        weight[-written:][rng.random(written) < 0.2] = 0
        weight[-1] = 1
    logp = np.where(weight > 0, -np.log(WORDS) + rng.uniform(-1, 1, size), 0).astype(np.float32)
    return Sample(
        ids=np.concatenate([prompt, rng.integers(1, WORDS, written)]),
        weight=weight,
        advantage=np.where(weight > 0, rng.choice([-1.0, 1.0]), 0).astype(np.float32),
        sampled_logp=logp,
        old_logp=logp.copy(),
        ref_logp=logp.copy(),
        target=np.where(weight > 0, rng.uniform(-1, 1, size), 0).astype(np.float32),
    )


def weight_of(chosen: Sequence[SampleUnit]) -> float:
    return float(sum(sample.weight.sum() for unit in chosen for sample in unit))


@dataclass
class Models:
    """Models that a stage trains and reads."""

    trainer: TrainablePolicy
    reference: ReferenceModel | None = None
    critic: ValueModel | None = None
    teacher: ReferenceModel | None = None


@dataclass(frozen=True, kw_only=True)
class ModelsSpec:
    """Specification of the models to create."""

    start: Path
    optim: Optim
    steps: int = 20
    dtype: Literal["float32", "bfloat16"] = "float32"
    lora: LoraConfig | None = None
    reference: bool = False
    teacher: Path | None = None
    critic: CriticSettings | None = None


def plain(models_spec: ModelsSpec) -> Models:
    """Create the models in this process."""
    optim, steps = models_spec.optim, models_spec.steps
    if models_spec.lora is None:
        dtype = to_torch_dtype(models_spec.dtype)
        trainer = Trainer(load_model(models_spec.start, CPU), optim, steps, dtype=dtype)
    else:
        model = load_model(models_spec.start, CPU, models_spec.dtype)
        trainer = Trainer(model, optim, steps, LoraAdapter(model, models_spec.lora, 0))

    def reader(folder: Path) -> Trainer:
        return Trainer(load_model(folder, CPU, models_spec.dtype), optim, 1)

    critic = None
    if models_spec.critic is not None:
        own = models_spec.critic.backbone == "separate"
        model = load_model(models_spec.start, CPU) if own else trainer.model
        critic = Critic(model, models_spec.critic, optim, steps, to_torch_dtype(models_spec.dtype))
    reference = (
        trainer.snapshot_reference() or reader(models_spec.start) if models_spec.reference else None
    )
    return Models(
        trainer, reference, critic, reader(models_spec.teacher) if models_spec.teacher else None
    )


@contextmanager
def sharded(
    pool: Pool, folder: Path, models_spec: ModelsSpec, data: int, context: int = 1
) -> Iterator[Models]:
    """Create the models in ranks for the duration of the block."""
    optim, steps = models_spec.optim, models_spec.steps
    with pool.ranks(folder, data, context) as ranks:
        spec = PolicySpec(
            folder=models_spec.start,
            optim=optim,
            steps=steps,
            dtype=models_spec.dtype,
            lora=models_spec.lora,
        )
        models = Models(ShardedTrainer(ranks, spec))
        if models_spec.reference:
            read = ReferenceSpec(folder=models_spec.start, optim=optim, dtype=models_spec.dtype)
            models.reference = models.trainer.snapshot_reference() or make_reference(
                ranks, "reference", read
            )
        if models_spec.teacher is not None:
            read = ReferenceSpec(folder=models_spec.teacher, optim=optim, dtype=models_spec.dtype)
            models.teacher = make_reference(ranks, "teacher", read)
        if models_spec.critic is not None:
            models.critic = ShardedCritic(
                ranks,
                CriticSpec(
                    settings=models_spec.critic,
                    optim=optim,
                    steps=steps,
                    policy="policy",
                    folder=models_spec.start,
                    dtype=models_spec.dtype,
                ),
            )
        yield models


def written(models: Models, folder: Path) -> dict[str, torch.Tensor]:
    """Return the trained weights as stored in the files of the model or adapter."""
    folder.mkdir(parents=True)
    models.trainer.write(folder, tiny_tokenizer())
    [file] = folder.glob("*.safetensors")
    return load_file(file)


def gap(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """Return the largest absolute difference between corresponding weights."""
    assert a.keys() == b.keys()
    return max((a[name].float() - b[name].float()).abs().max().item() for name in a)


def parted(
    start: dict[str, torch.Tensor], a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]
) -> float:
    """Return the distance between two training results relative to the distance from the start.

    Adam moves a weight by about the learning rate, however small its gradient is. A single weight
    whose gradient is only rounding noise is therefore not informative.
    """
    assert start.keys() == a.keys() == b.keys()
    return distance(a, b) / distance(start, a)


def distance(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    return sum((a[name].double() - b[name].double()).square().sum().item() for name in a) ** 0.5
