"""Compare steps of RL on rollouts with shared prefixes, computed once or for each rollout.

    python bench/prefixes.py [--groups 8] [--group 8] [--prompt 236] [--answer 40] [--features 256]
                             [--layers 4] [--words 923] [--device cpu] [--threads 1]
                             [--repeats 5]

Three contenders alternate with the same model and rollouts: prefixes computed once; rollouts
computed separately, without padding; and padded batches of transformers with a mask, in
micro-batches of the same number of tokens, as in a plain training loop. The output has the loss and
gradient norm of all contenders.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from unittest.mock import patch

import numpy as np
import torch
import typer
from torch.nn.utils import get_total_norm
from transformers import Qwen2Config, Qwen2ForCausalLM

from fieldcraft.config.sections import Optim
from fieldcraft.train import batch
from fieldcraft.train.batch import Sample, SampleUnit
from fieldcraft.train.losses import PolicyGradientLoss
from fieldcraft.train.trainer import Trainer

TOTAL = 1000.0


def make_model(features: int, layers: int, words: int, device: str) -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=words,
        hidden_size=features,
        intermediate_size=3 * features,
        num_hidden_layers=layers,
        num_attention_heads=features // 32,
        num_key_value_heads=features // 32,
        tie_word_embeddings=True,
    )
    return Qwen2ForCausalLM(config).to(device)


def make_units(groups: int, group: int, prompt: int, answer: int, words: int) -> list[SampleUnit]:
    rng = np.random.default_rng(0)
    units: list[SampleUnit] = []
    for _ in range(groups):
        asked = rng.integers(1, words, prompt)
        for _ in range(group):
            ids = np.concatenate([asked, rng.integers(1, words, answer)])
            weight = np.where(np.arange(len(ids)) < prompt, 0, 1).astype(np.float32)
            advantage = np.full(len(ids), rng.normal(), np.float32)
            logp = np.full(len(ids), -np.log(words), np.float32)
            units.append((Sample(ids, weight, advantage, logp, logp, logp),))
    return units


def with_transformers(model: Qwen2ForCausalLM, units: list[SampleUnit], micro_tokens: int) -> float:
    """Compute the same loss by a plain forward pass; all rollouts have the same length."""
    model.train()
    model.zero_grad()
    loss = 0.0
    rows = max(micro_tokens // len(units[0][0]), 1)
    for start in range(0, len(units), rows):
        samples = [sample for (sample,) in units[start : start + rows]]
        ids_BL = torch.from_numpy(np.stack([s.ids for s in samples])).to(model.device)
        logits_BLV = model(input_ids=ids_BL, attention_mask=torch.ones_like(ids_BL)).logits
        logp_BLV = logits_BLV[:, :-1].float().log_softmax(-1)
        logp_BL = logp_BLV.gather(2, ids_BL[:, 1:, None])[..., 0]

        def field(name: str, samples: list[Sample] = samples) -> torch.Tensor:
            values = np.stack([getattr(s, name)[1:] for s in samples])
            return torch.from_numpy(values).to(model.device)

        ratio_BL = (logp_BL - field("old_logp")).exp()
        advantage_BL = field("advantage")
        gain_BL = torch.minimum(ratio_BL * advantage_BL, ratio_BL.clamp(0.8, 1.2) * advantage_BL)
        part = -(field("weight") * gain_BL).sum() / TOTAL
        part.backward()
        loss += part.item()
    return loss


def main(
    groups: int = 8,
    group: int = 8,
    prompt: int = 236,
    answer: int = 40,
    features: int = 256,
    layers: int = 4,
    words: int = 923,
    device: str = "cpu",
    threads: int = 1,
    repeats: int = 5,
) -> None:
    torch.set_num_threads(threads)
    units = make_units(groups, group, prompt, answer, words)
    optim = Optim(lr=1e-12, max_grad_norm=1e9)  # so small that all rounds compute the same loss
    trainer = Trainer(make_model(features, layers, words, device), optim, 1000)
    plain = make_model(features, layers, words, device)

    def step() -> tuple[float, float]:
        row = trainer.step(units, PolicyGradientLoss(), TOTAL)
        return row["loss"], row["grad_norm"]

    def alone() -> tuple[float, float]:
        with patch.object(batch, "MIN_SHARED_PREFIX_TOKENS", 10**9):
            return step()

    def padded() -> tuple[float, float]:
        loss = with_transformers(plain, units, optim.micro_batch_tokens)
        norm = get_total_norm([p.grad for p in plain.parameters() if p.grad is not None])
        return loss, norm.item()

    contenders: dict[str, Callable[[], tuple[float, float]]] = {
        "shared prefixes": step,
        "separate rollouts": alone,
        "padded batch of transformers": padded,
    }
    times: dict[str, list[float]] = {name: [] for name in contenders}
    found = {}
    for round_ in range(1 + repeats):  # the first is not counted: allocations, selection of kernels
        for name, run in contenders.items():
            began = time.perf_counter()
            found[name] = run()
            if round_:
                times[name].append(time.perf_counter() - began)
    print(f"{groups} groups of {group}, {prompt} of {prompt + answer} tokens shared in each")
    print("| | seconds | ratio | loss | gradient norm |\n|---|---|---|---|---|")
    fastest = statistics.median(times["shared prefixes"])
    for name, taken in times.items():
        median, (loss, norm) = statistics.median(taken), found[name]
        print(f"| {name} | {median:.2f} | {median / fastest:.2f} | {loss:.6f} | {norm:.6f} |")


if __name__ == "__main__":
    typer.run(main)
