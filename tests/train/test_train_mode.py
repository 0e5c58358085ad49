"""Equality of training and sampling computations: no dropout, no jitter."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from fieldcraft.config.rl import CriticConfig as CriticSettings
from fieldcraft.config.sections import Optim
from fieldcraft.train.critic import Critic
from fieldcraft.train.losses import CrossEntropyLoss, Metrics, TokenBatch
from fieldcraft.train.train_mode import describe_dropout
from fieldcraft.train.trainer import Trainer
from fieldcraft.types import UserError
from small_sizes import SMALL
from training_parts import plain_logprobs_of, random_samples

SIZES: dict[str, Any] = {
    **SMALL,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
NOISY: dict[str, dict[str, Any]] = {
    "opt": SIZES | {"ffn_dim": 64, "word_embed_proj_dim": 32, "layerdrop": 0.9, "dropout": 0.3},
    "phimoe": SIZES
    | {
        "num_key_value_heads": 2,
        "num_local_experts": 4,
        "router_jitter_noise": 0.5,
        "input_jitter_noise": 0.5,
        "attention_dropout": 0.3,
        "sliding_window": None,
    },
    "ctrl": {
        "vocab_size": 400,
        "n_embd": 32,
        "dff": 64,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 64,
        "resid_pdrop": 0.3,
    },
    "seed_oss": SIZES | {"num_key_value_heads": 2, "head_dim": 8, "residual_dropout": 0.3},
    "gpt_neox": SIZES | {"hidden_dropout": 0.3, "attention_dropout": 0.3},
}


def noisy(name: str) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **NOISY[name]))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(5)
    return model


def trained_logps(trainer: Trainer) -> Iterator[torch.Tensor]:
    """Return the log-probabilities that a step uses."""
    seen: list[torch.Tensor] = []

    def objective(batch: TokenBatch, total: float) -> tuple[torch.Tensor, Metrics]:
        seen.append(batch.logp_T.detach())
        return CrossEntropyLoss()(batch, total)

    trainer.step([tuple(random_samples(3))], objective, 1.0)
    return iter(seen)


@pytest.mark.parametrize(
    ("name", "checkpointing"), [*((name, False) for name in NOISY), ("opt", True), ("phimoe", True)]
)
def test_a_step_sees_the_policy_that_samples(name: str, checkpointing: bool) -> None:
    optim = Optim(lr=1e-9, activation_checkpointing=checkpointing)
    model = noisy(name)
    samples = random_samples(3)
    plain = [plain_logprobs_of(model.eval(), s.ids.tolist())[s.weight[1:] > 0] for s in samples]
    trainer, expected = Trainer(model, optim, steps=2), torch.cat(plain)
    for _ in range(2):
        [found] = trained_logps(trainer)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def test_checkpointing_that_there_is_not_is_refused() -> None:
    optim = Optim(lr=1e-9, activation_checkpointing=True)
    with pytest.raises(UserError, match=r"does not support optim\.activation_checkpointing"):
        Trainer(noisy("ctrl"), optim, steps=2)


def test_a_critic_predicts_the_same_when_it_is_trained() -> None:
    optim = Optim(lr=1e-9)
    critic = Critic(noisy("opt"), CriticSettings(backbone="separate"), optim, steps=2)
    torch.nn.init.ones_(critic.head.weight)
    samples = random_samples(2)
    for sample in samples:
        sample.target = sample.advantage
    critic.fill_values([tuple(samples)])
    row = critic.step([tuple(samples)], 1.0)
    trained = torch.cat([torch.from_numpy((s.value - s.target)[s.weight > 0]) for s in samples])
    weight = torch.cat([torch.from_numpy(s.weight[s.weight > 0]) for s in samples])
    assert row["loss"] == pytest.approx(float((weight * trained**2).sum()) / 2, rel=1e-3)


def test_rates_are_named_once() -> None:
    [note] = describe_dropout(AutoConfig.for_model("phimoe", **NOISY["phimoe"]))
    assert "router_jitter_noise=0.5" in note
    assert note.endswith("of its config.json: dropout and jitter are off")
    assert describe_dropout(AutoConfig.for_model("qwen2")) == []
