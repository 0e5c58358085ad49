"""Every causal architecture of transformers as a small model, with a verdict for each: either
training and sampling agree with a plain forward pass, or the architecture is refused."""

import asyncio
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from checkpoints import tiny_tokenizer
from fieldcraft.config.sections import Optim
from fieldcraft.engine.attention import describe_special_attention
from fieldcraft.engine.local.engine import LocalEngine
from fieldcraft.sampling import SamplingParams
from fieldcraft.train import output_layer
from fieldcraft.train.batch import Sample
from fieldcraft.train.trainer import Trainer
from fieldcraft.types import UserError

NAMES: tuple[str, ...] = tuple(sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))
WORDS, LARGEST, EQUAL = 400, 8_000_000, 1e-3

# Configuration keys and their values in a small model.
SIZES: dict[int, str] = {
    WORDS: "vocab_size vocab_size_per_layer_input entity_vocab_size",
    32: "hidden_size d_model n_embd dim embed_dim emb_dim word_embed_proj_dim embedding_size"
    " moe_intermediate_size shared_expert_intermediate_size hidden_size_per_layer_input"
    " moe_shared_expert_intermediate_size expert_ffn_hidden_size linear_value_head_dim"
    " linear_key_head_dim mamba_head_dim lru_width index_head_dim kv_channels",
    64: "intermediate_size ffn_dim n_inner d_ff dff ffn_hidden_size decoder_ffn_dim encoder_ffn_dim"
    " dense_intermediate_size intermediate_size_mlp mamba_expand_dim d_inner",
    2: "num_hidden_layers n_layer n_layers num_layers num_decoder_layers decoder_layers"
    " encoder_layers num_key_value_heads num_kv_heads n_head_kv num_experts_per_tok moe_k"
    " num_experts_per_token moe_topk moe_top_k top_k_experts linear_num_key_heads n_hash_layers",
    4: "num_attention_heads n_head n_heads num_heads decoder_attention_heads"
    " encoder_attention_heads num_experts num_local_experts n_routed_experts moe_num_experts"
    " mamba_n_heads linear_num_value_heads index_n_heads zero_expert_num num_experts_moe",
    8: "head_dim qk_nope_head_dim v_head_dim kv_lora_rank mamba_d_state state_size ssm_state_size"
    " mamba_d_head rotary_dim qk_rope_head_dim attention_head_dim",
    16: "q_lora_rank qk_head_dim mamba_d_ssm time_step_rank",
    128: "max_position_embeddings n_positions n_ctx max_seq_len max_sequence_length",
    1: "n_group topk_group first_k_dense_replace n_shared_experts num_shared_experts bos_token_id"
    " num_nextn_predict_layers",
    3: "eos_token_id",
    0: "pad_token_id num_dense_layers",
}
SMALL = {key: size for size, keys in SIZES.items() for key in keys.split()}
# Additional values that single architectures require.
WITH_WINDOW, WINDOW = ["sliding_attention", "full_attention"], {"sliding_window": 8}
INDEXED = {"layer_types": ["indexed_attention"] * 2}
OWN: dict[str, dict[str, Any]] = {
    "axk2": INDEXED,
    "deepseek_v32": INDEXED,
    "glm_moe_dsa": INDEXED,
    "bamba": {"mamba_n_heads": 8},
    "falcon_h1": {"mamba_n_heads": 2, "mamba_d_head": 8},
    "granitemoehybrid": {"mamba_n_heads": 8},
    "gpt_neo": {"attention_types": [[["global"], 2]]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2_moe": {"layer_types": ["full_attention"] * 2},
    "mamba2": {"num_heads": 8},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
    "roc_bert": {"shape_embed_dim": 32, "pronunciation_embed_dim": 32},
    "xmod": {"default_language": "en_XX"},
    "zaya": {"num_experts_per_tok": 1},
    "minimax": {"layer_types": ["linear_attention", "full_attention"]},
}


@dataclass(frozen=True)
class Verdict:
    """Verdict on an architecture.

    Attributes:
        gap: largest difference of a log-probability from a plain forward pass, in nats.
        why: the refusal message, or the reason why no small model can be made.
        own: layer features of its default configuration, if that configuration is refused and
            only a model with full attention in all layers agrees.
    """

    name: str
    kind: Literal["equal", "refused", "different", "not made"]
    gap: float = 0.0
    why: str = ""
    own: str = ""

    @property
    def row(self) -> str:
        """Return the row of the table in docs/lab-notes/architectures.md."""
        if self.kind != "refused":
            only = (
                f", if all layers attend to everything: by default {self.own}" if self.own else ""
            )
            return f"| {self.name} | {self.kind}{only} |"
        why = self.why.partition(" because ")[2].partition(": choose")[0]
        how, differs, rest = why.partition(
            " its log-probabilities of probe texts differ from a plain forward pass by "
        )
        if differs:
            why = f"{how} it is {float(rest.split()[0]):.1g} nats from a plain forward pass"
        return f"| {self.name} | refused: {why} |"


def judge(name: str) -> Verdict:
    """Return the verdict on an architecture with small random weights."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the configurations emit many unrelated warnings
        try:
            return _judge(name)
        except NotMade as error:
            return Verdict(name, "not made", why=str(error))


def _judge(name: str) -> Verdict:
    """Return the verdict on a model with windows if the architecture has them by default. If that
    fails, return the verdict on a model with full attention, if the architecture supports it."""
    own = ""
    with suppress(NotMade):
        verdict = _compared(name, small_model(name, window_keys(name)))
        if verdict.kind == "equal":
            return verdict
        own = verdict.why.partition(" because ")[2].partition(": choose")[0]
    model = small_model(name, (*full_keys(name), *default_keys(name)))
    verdict = _compared(name, model)
    if verdict.kind != "equal":
        return verdict
    return replace(verdict, own=own or describe_special_attention(by_default(model)) or "")


def _compared(name: str, model: Any) -> Verdict:
    try:
        gap = max(trained_gap(model), sampled_gap(model))
    except UserError as error:
        return Verdict(name, "refused", why=str(error))
    return Verdict(name, "equal" if gap < EQUAL else "different", gap)


class NotMade(Exception):
    """Error raised if no small model of an architecture can be made."""


# -- small models --------------------------------------------------------------------------------


def small_model(name: str, tried: Iterable[dict[str, Any]]) -> Any:
    """Return a model with random weights that all matter, from the first configuration that works.
    Raises NotMade."""
    problems = []
    for keys in tried:
        try:
            model = made(name, keys)
            plain_logprobs(model, TEXTS[0])
        except Exception as error:  # noqa: BLE001 - configurations raise arbitrary exceptions
            problems.append(f"{type(error).__name__}: {error}".replace("\n", " "))
        else:
            return model
    raise NotMade(" / ".join(dict.fromkeys(problems)))


def by_default(model: Any) -> Any:
    """Return the model's attention as set by its default configuration."""
    attributes = ("_is_stateful", "_supports_attention_backend")
    return SimpleNamespace(
        config=type(model.config)(), **{a: getattr(model, a) for a in attributes}
    )


def window_keys(name: str) -> Iterator[dict[str, Any]]:
    """Return the keys of a small configuration with windows, if the architecture has them by
    default."""
    known = configuration(name).to_dict()
    kinds = set(known.get("layer_types") or ())
    if WITH_WINDOW[0] in kinds and kinds <= set(WITH_WINDOW):
        yield small_keys(name) | OWN.get(name, {}) | WINDOW | {"layer_types": WITH_WINDOW}
    elif not kinds and known.get("sliding_window") is not None:
        yield small_keys(name) | OWN.get(name, {}) | WINDOW


def full_keys(name: str) -> Iterator[dict[str, Any]]:
    """Return the keys of a small configuration with full attention in all layers."""
    known, own = configuration(name).to_dict(), OWN.get(name, {})
    full = {"layer_types": ["full_attention"] * 2} if known.get("layer_types") else {}
    window = {"sliding_window": None} if "sliding_window" in known else {}
    yield small_keys(name) | full | window | own
    yield small_keys(name) | full | own


def default_keys(name: str) -> Iterator[dict[str, Any]]:
    """Return the keys of a small configuration whose layers follow from its size or are the first
    ones."""
    kinds, own = configuration(name).to_dict().get("layer_types"), OWN.get(name, {})
    for layers in ({"layer_types": None}, {"layer_types": list(kinds[:2])}) if kinds else ():
        yield small_keys(name) | layers | own
    yield small_keys(name) | own


def small_keys(name: str) -> dict[str, Any]:
    known = configuration(name).to_dict()
    keys = {key: size for key, size in SMALL.items() if key in known}
    if "kv_lora_rank" in known:  # latent attention, where every head has keys
        keys["num_key_value_heads"] = SMALL["num_attention_heads"]
    return keys


def configuration(name: str) -> Any:
    """Return the default configuration of an architecture. For a multimodal one raises NotMade,
    because its text part is registered under a separate name."""
    try:
        config = AutoConfig.for_model(name)
    except StrictDataclassError as error:  # can only be made together with a larger model
        raise NotMade(str(error)) from error
    if len(config.sub_configs) > 1 or any(part in name for part in ("vision", "audio")):
        raise NotMade("it also reads images or sounds")
    return config


def made(name: str, keys: dict[str, Any]) -> Any:
    """Return a model with these keys. Raises NotMade if it is too large to be tested."""
    config = type(configuration(name))(**keys)
    with torch.device("meta"):
        count = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
    if count > LARGEST:
        raise NotMade(f"{count / 1e6:.0f} million parameters")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config).eval()
        for weight in model.parameters():
            weight.data.add_(torch.randn(weight.shape) * 0.15)
    return model


# -- comparisons ---------------------------------------------------------------------------------


def _text(seed: int, length: int) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(4, WORDS, length)]


# The second one starts with the same tokens as the first one.
TEXTS = [_text(0, 44), [*_text(0, 44)[:37], *_text(1, 5)], _text(2, 9)]


@torch.no_grad()
def plain_logprobs(model: Any, ids: Sequence[int]) -> np.ndarray[Any, Any]:
    """Return the log-probabilities of all ids but the first, from a forward pass over this text
    alone."""
    logits = model(torch.tensor([list(ids)]), use_cache=False).logits[0, :-1].float()
    return logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0].numpy()


def trained_gap(model: Any) -> float:
    """Return the gap of training with a packed, shared prefix and a chunked output layer."""
    expected = [plain_logprobs(model, ids) for ids in TEXTS]
    trainer = Trainer(model, Optim(lr=1e-3), steps=1)
    gaps = []
    for piece in (output_layer.MAX_CHUNK_LOGITS, 7 * WORDS):
        samples = [_sample(ids) for ids in TEXTS]
        with _pieces(piece):
            trainer.fill_logprobs([tuple(samples)], "old_logp", 1.0)
        gaps += [
            np.abs(sample.old_logp[1:] - plain).max()
            for sample, plain in zip(samples, expected, strict=True)
        ]
    return float(max(gaps))


@contextmanager
def _pieces(size: int) -> Iterator[None]:
    before, output_layer.MAX_CHUNK_LOGITS = output_layer.MAX_CHUNK_LOGITS, size
    try:
        yield
    finally:
        output_layer.MAX_CHUNK_LOGITS = before


def sampled_gap(model: Any) -> float:
    """Return the gap of sampling with the engine, in sessions that share cache blocks and
    continue."""
    engine = LocalEngine(model, tiny_tokenizer(), max_num_seqs=4, max_model_len=100)

    async def converse(place: int) -> float:
        ids, gaps = list(TEXTS[place]), [0.0]
        for turn in range(2):
            done = await engine.generate(ids, SamplingParams(6, seed=turn), session=str(place))
            ids += done.ids
            plain = plain_logprobs(model, ids)[-len(done.ids) :]
            gaps.append(float(np.abs(plain - np.array(done.logprobs)).max()))
            ids += TEXTS[2][:3]
        return max(gaps)

    async def all_of_them() -> float:
        return max(await asyncio.gather(*map(converse, range(len(TEXTS)))))

    return asyncio.run(all_of_them())


def _sample(ids: list[int]) -> Sample:
    zeros, weight = np.zeros(len(ids), np.float32), np.ones(len(ids), np.float32)
    weight[0] = 0
    return Sample(np.array(ids), weight, zeros, zeros, zeros, zeros)
