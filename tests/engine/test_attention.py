"""Attention in packed batches: only models with standard attention are supported."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from fieldcraft.config.sections import Optim
from fieldcraft.engine.attention import describe_special_attention
from fieldcraft.train.batch import Sample, pack
from fieldcraft.train.losses import CrossEntropyLoss
from fieldcraft.train.trainer import Trainer
from fieldcraft.types import UserError
from small_sizes import DYNAMIC, LONG, SMALL
from training_parts import Largest, plain_logprobs_of, random_samples

SHAPE: dict[str, Any] = {
    **SMALL,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": 0,
}
SPECIAL: dict[str, tuple[dict[str, Any], str]] = {
    "qwen3_next": (
        {
            "layer_types": ["linear_attention", "full_attention"],
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
        },
        "kind linear_attention",
    ),
    "lfm2": ({"layer_types": ["conv", "full_attention"]}, "kind conv"),
    "mamba": ({"state_size": 4}, "kind linear_attention"),
}
PLAIN: dict[str, dict[str, Any]] = {
    "qwen2": {},
    "qwen3": {},
    "llama": {},
    "mistral": {"sliding_window": None},
    "gemma3_text": {"sliding_window": 4, "layer_types": ["full_attention"] * 2},
    "gpt2": {},
    "gpt_bigcode": {},
    "jetmoe": {"kv_channels": 8, "num_local_experts": 4, "num_experts_per_tok": 2},
    "mixtral": {"num_local_experts": 4, "sliding_window": None},
}


def model_of(name: str, keys: dict[str, Any]) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **SHAPE, **keys))
    with torch.no_grad():
        for parameter in model.parameters():  # every token of the history affects the output
            if parameter.dim() > 1:
                parameter.mul_(5)
    return model.eval()


def leak(model: Any) -> float:
    """Return the change of a sequence's log-probabilities when another one shares its row.

    A mask separates the two sequences.
    """
    samples: list[Sample] = random_samples(2, longest=20)
    batch = pack(samples)
    same_NN = torch.block_diag(
        *(torch.ones(end - start, end - start) for start, end, _ in batch.runs)
    )
    with torch.no_grad():
        logits = model(
            input_ids=batch.ids_N[None],
            attention_mask=same_NN.tril().bool()[None, None],
            position_ids=batch.position_N[None],
            use_cache=False,
        ).logits
    chosen = logits[0, batch.from_T].log_softmax(-1)
    packed = chosen.gather(1, batch.ids_T[:, None])[:, 0]
    alone = [plain_logprobs_of(model, s.ids.tolist())[s.weight[1:] > 0] for s in samples]
    return float((packed - torch.cat(alone)).abs().max())


@pytest.mark.parametrize("name", SPECIAL)
def test_a_model_that_would_leak_is_refused(name: str) -> None:
    keys, words = SPECIAL[name]
    model = model_of(name, keys)
    if name != "mamba":  # it takes no positions and no mask of this kind
        assert leak(model) > 0.01
    with pytest.raises(UserError, match=f"is not supported for training or sampling.*{words}"):
        Trainer(model, Optim(lr=1e-3), steps=1)


@pytest.mark.parametrize("name", PLAIN)
def test_a_model_that_is_trained_does_not_leak(name: str) -> None:
    """Sequences do not leak with a mask, nor with runs as in training."""
    model = model_of(name, PLAIN[name])
    assert describe_special_attention(model) is None
    assert leak(model) < 1e-3
    alone = [plain_logprobs_of(model, s.ids.tolist()) for s in random_samples(2, longest=20)]
    trainer = Trainer(model, Optim(lr=1e-3), steps=1)
    samples = random_samples(2, longest=20)
    trainer.fill_logprobs([tuple(samples)], "old_logp", 1.0)
    for sample, plain in zip(samples, alone, strict=True):
        trained = sample.weight > 0
        torch.testing.assert_close(
            torch.from_numpy(sample.old_logp[trained]), plain[trained[1:]], rtol=0, atol=1e-3
        )


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("llama", {"rope_parameters": DYNAMIC, "max_position_embeddings": 16}),
        ("phi3", {"rope_parameters": LONG, "original_max_position_embeddings": 16}),
    ],
)
def test_a_text_that_changes_those_beside_it_is_refused(name: str, keys: dict[str, Any]) -> None:
    """With rotary embeddings of the types dynamic and longrope short texts alone are unchanged."""
    [short], long = random_samples(1, longest=12), max(random_samples(9), key=len)
    model = model_of(name, keys | {"bos_token_id": 1, "eos_token_id": 2})
    trainer, alone = Trainer(model, Optim(lr=1e-3), steps=1), plain_logprobs_of(model, short.ids)
    trainer.fill_logprobs([(short,)], "old_logp", 1.0)
    trained = short.weight > 0
    found = torch.from_numpy(short.old_logp[trained])
    torch.testing.assert_close(found, alone[trained[1:]], rtol=0, atol=1e-4)
    with pytest.raises(UserError, match=f"beyond 16 tokens the rotary embeddings of {name} change"):
        trainer.fill_logprobs([(short,), (long,)], "old_logp", 1.0)


def test_a_model_that_asks_for_more_is_refused() -> None:
    model = model_of(
        "gemma2", {"layer_types": ["full_attention"] * 2, "attn_logit_softcapping": 5.0}
    )
    with pytest.raises(UserError, match="cannot be trained, because it uses softcap"):
        Trainer(model, Optim(lr=1e-3), steps=1)


def test_memory_is_linear_in_the_length() -> None:
    """No operation of a step creates a tensor of length x length."""
    model = model_of("qwen2", {"max_position_embeddings": 4096})
    trainer = Trainer(model, Optim(lr=1e-3, micro_batch_tokens=4096), steps=1)
    length = 1500
    ids = np.arange(length) % 400
    floats = [np.ones(length, np.float32) for _ in range(5)]
    floats[0][:-8] = 0
    sample = Sample(ids, *floats)
    with Largest() as seen:
        trainer.step([(sample,)], CrossEntropyLoss(), 1.0)
    assert seen.size < length * length / 4
