"""The output layer computed in pieces or in one piece, for models of different output layers."""

from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from fieldcraft.train import output_layer
from fieldcraft.train.logprobs import reverse_kl
from fieldcraft.train.output_layer import (
    OutputLayer,
    TokenPredictions,
    get_decoder,
    score_tokens,
)
from training_parts import Largest

WORDS, TOKENS = 50, 21
SHAPE = {
    **{"vocab_size": WORDS, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2},
    **{"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64},
    "pad_token_id": 0,
}
# Factor between the model's logits and those of the linear layer; None: not a multiple.
MODELS = {
    "qwen2": ({"tie_word_embeddings": True}, 1.0),
    "llama": ({"tie_word_embeddings": False}, 1.0),
    "granite": ({"logits_scaling": 4.0}, 0.25),
    "cohere": ({"logit_scale": 0.5}, 0.5),
    "gemma2": ({"final_logit_softcapping": 2.0, "head_dim": 8}, None),
    "gpt_neox": ({"tie_word_embeddings": False}, 1.0),
    "phi": ({}, 1.0),  # with a bias
}


def model_of(kind: str) -> Any:
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **SHAPE | MODELS[kind][0])
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # also biases, which start at 0
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


@pytest.fixture(params=MODELS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def pieces_of_four(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_layer, "MAX_CHUNK_LOGITS", 4 * WORDS + 7)


IDS = torch.arange(TOKENS)[None] * 7 % WORDS
TARGETS = torch.arange(TOKENS) * 3 % WORDS


def predictions(model: Any, temperature: float = 0.7) -> TokenPredictions:
    hidden_TH = get_decoder(model)(input_ids=IDS).last_hidden_state[0]
    return TokenPredictions(hidden_TH, OutputLayer(model), temperature)


def gradients(model: Any, teacher: Any | None, top_k: int | None = None) -> dict[str, Tensor]:
    """Return the gradients of a loss that uses all scores, and the scores themselves."""
    model.zero_grad()
    guide = None
    if teacher is not None:
        with torch.no_grad():
            guide = predictions(teacher)
    scores = score_tokens(predictions(model), TARGETS, guide, top_k)
    weight_T = torch.linspace(-1, 1, TOKENS)
    loss = (weight_T * scores.logp_T).sum() + (weight_T**2 * scores.entropy_T).sum()
    found = {"logp": scores.logp_T, "entropy": scores.entropy_T}
    if scores.teacher_kl_T is not None:
        loss = loss + (weight_T.exp() * scores.teacher_kl_T).sum()
        found["kl"] = scores.teacher_kl_T
    loss.backward()
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {name: value.detach().clone() for name, value in (found | grads).items()}


def test_the_logits_are_those_of_the_model(kind: str) -> None:
    model = model_of(kind)
    with torch.no_grad():
        logits = predictions(model, 0.5).compute_logits(slice(None))
        torch.testing.assert_close(logits, model(input_ids=IDS).logits[0] / 0.5)
    factor = OutputLayer(model).logit_scale
    assert factor == (None if MODELS[kind][1] is None else pytest.approx(MODELS[kind][1]))


@pytest.mark.parametrize("guided", [False, True])
def test_pieces_are_the_whole(
    kind: str, guided: bool, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Values and gradients agree to 1e-5 of the largest, and also with the formulas."""
    model, teacher = model_of(kind), model_of("qwen2") if guided else None
    with patch.object(
        output_layer, "_measure_logit_scale", return_value=None
    ):  # computed by the model's own layers
        whole = gradients(model, teacher, 5 if guided else None)
    one_piece = gradients(model, teacher, 5 if guided else None)
    request.getfixturevalue("pieces_of_four")
    pieces = gradients(model, teacher, 5 if guided else None)
    assert whole.keys() == pieces.keys() == one_piece.keys()
    for name, value in whole.items():
        bound = 1e-5 * max(float(value.abs().max()), 1.0)
        for found in (pieces, one_piece):
            torch.testing.assert_close(found[name], value, rtol=0, atol=bound, msg=name)
    logp_TV = predictions(model).compute_logits(slice(None)).log_softmax(-1)
    picked_T = logp_TV[torch.arange(TOKENS), TARGETS]
    torch.testing.assert_close(pieces["logp"], picked_T.detach(), rtol=1e-5, atol=1e-5)
    entropy_T = -(logp_TV.exp() * logp_TV).sum(-1).detach()
    torch.testing.assert_close(pieces["entropy"], entropy_T, rtol=1e-5, atol=1e-5)
    if teacher is not None:
        teacher_TV = predictions(teacher).compute_logits(slice(None))
        kl_T = reverse_kl(predictions(model).compute_logits(slice(None)), teacher_TV, 5).detach()
        torch.testing.assert_close(pieces["kl"], kl_T, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("guided", [False, True])
@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_all_logits_are_never_there_at_once(
    kind: str, guided: bool, pieces_of_four: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound holds in the forward and in the backward pass."""
    model, teacher = model_of(kind), model_of("qwen2") if guided else None
    with Largest() as seen:
        gradients(model, teacher, None)
    assert seen.size < TOKENS * WORDS
    monkeypatch.undo()
    with Largest() as seen:
        gradients(model, teacher, None)
    assert seen.size == TOKENS * WORDS


def test_logits_that_were_kept_are_computed_again_for_a_second_backward_pass() -> None:
    model = model_of("llama")
    logp_T = score_tokens(predictions(model), TARGETS).logp_T
    first, second = (
        torch.autograd.grad(logp_T.sum(), model.lm_head.weight, retain_graph=True)[0]
        for _ in range(2)
    )
    torch.testing.assert_close(first, second)


def test_a_frozen_layer_gets_no_gradient(pieces_of_four: None) -> None:
    model = model_of("llama")
    trained = gradients(model, None)
    model.lm_head.weight.requires_grad_(False)
    found = gradients(model, None)
    assert "lm_head.weight" not in found
    name = "model.layers.0.mlp.up_proj.weight"
    torch.testing.assert_close(found[name], trained[name])


def test_no_gradient_is_kept_where_none_is_wanted(pieces_of_four: None) -> None:
    with torch.no_grad():
        scores = score_tokens(predictions(model_of("llama")), TARGETS)
    assert not scores.logp_T.requires_grad


def test_computing_in_bfloat16(pieces_of_four: None) -> None:
    """Sums are computed in float32; only the matrix products are rounded."""
    model = model_of("llama")
    exact = gradients(model, None)
    rounded = gradients(model.bfloat16(), None)
    assert rounded["logp"].dtype == torch.float32
    assert (rounded["logp"] - exact["logp"]).abs().max() < 0.2
    assert rounded["lm_head.weight"].dtype == torch.bfloat16


@pytest.mark.parametrize("kind", ["llama", "phi"])  # without and with a bias
def test_gradients_in_bfloat16_are_not_rounded_in_every_piece(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = OutputLayer(model_of(kind).bfloat16())
    torch.manual_seed(1)
    hidden_TH = torch.randn(400, SHAPE["hidden_size"]).bfloat16()
    targets_T = torch.randint(0, WORDS, (400,))

    def compute_gradients() -> list[Tensor]:
        scores = score_tokens(TokenPredictions(hidden_TH, layer, 1.0), targets_T)
        return list(torch.autograd.grad(scores.logp_T.sum(), layer.linear.parameters()))

    in_one_piece = compute_gradients()
    monkeypatch.setattr(output_layer, "MAX_CHUNK_LOGITS", WORDS)  # one token per piece
    in_pieces = compute_gradients()
    layer.linear.float()
    hidden_TH = hidden_TH.float()
    for exact, *rounded in zip(compute_gradients(), in_one_piece, in_pieces, strict=True):
        one_error, error = (float((found - exact).norm() / exact.norm()) for found in rounded)
        assert error < 1.5 * one_error < 0.01


def test_a_layer_inside_a_context() -> None:
    model = model_of("llama")
    entered = []

    class Around:
        def __enter__(self) -> None:
            entered.append("in")

        def __exit__(self, *_: object) -> None:
            entered.append("out")

    OutputLayer(model).with_context(Around)(torch.zeros(2, 16))
    assert entered == ["in", "out"]
