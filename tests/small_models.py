"""Folders with the formats of small models: their configurations, tokenizer layouts, chat templates
and generation stop tokens. Weights are random, vocabularies are learned from a few lines, and
templates are written here."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedTokenizerFast,
)
from transformers.utils.logging import disable_progress_bar

from checkpoints import CHAT_TEMPLATE, SENTENCES
from families import GEMMA_3, IM, LLAMA, headers

disable_progress_bar()  # tests compare the output of commands

# Like Qwen3's: thoughts of earlier turns are omitted, and are closed at once on demand.
THINKING = CHAT_TEMPLATE.replace(
    "{%- set content = message.content or '' -%}",
    "{%- set content = (message.content or '').split('</think>')[-1].lstrip('\\n') -%}",
).replace(
    "%(prefill)s",
    "{%- if enable_thinking is defined and enable_thinking is false -%}"
    "{{ '<think>\\n\\n</think>\\n\\n' }}{%- endif -%}",
)
SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
SPLIT += r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA_3 = headers("<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>")
LLAMA_3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@dataclass(frozen=True)
class Shape:
    """Format of a small model.

    Attributes:
        config: keys of its configuration, in addition to `sizes`.
        sizes: size keys of its configuration.
        parameters: number of parameters, in millions.
        template: its chat template.
        special: its special tokens.
        stops: stop tokens of its generation settings; the first one ends a turn.
        layout: layout of its tokenizer.
        dialect: default dialect of a recipe with search.
        own: sizes of its tiny copy.
    """

    model_type: str
    config: dict[str, Any]
    sizes: dict[str, int]
    parameters: int
    template: str
    special: tuple[str, ...]
    stops: tuple[str, ...]
    dialect: str
    bos: str | None = None
    eos: str = ""
    layout: Literal["bytes", "pieces"] = "bytes"
    own: dict[str, Any] = field(default_factory=dict)


SHAPES = {
    "Qwen2.5-0.5B": Shape(
        "qwen2",
        {"tie_word_embeddings": True, "max_position_embeddings": 32768, "sliding_window": 32768},
        {
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "vocab_size": 151936,
        },
        494,
        CHAT_TEMPLATE.replace("%(prefill)s", ""),
        IM,
        ("<|im_end|>", "<|endoftext|>"),
        "hermes",
    ),
    "Qwen3-0.6B": Shape(
        "qwen3",
        {"tie_word_embeddings": True, "max_position_embeddings": 40960},
        {
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 151936,
        },
        596,
        THINKING,
        IM,
        ("<|im_end|>", "<|endoftext|>"),
        "hermes",
        own={"head_dim": 16},
    ),
    "Llama-3.2-1B": Shape(
        "llama",
        {
            "tie_word_embeddings": True,
            "max_position_embeddings": 131072,
            "rope_parameters": LLAMA_3_ROPE,
        },
        {
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 16,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "vocab_size": 128256,
        },
        1236,
        LLAMA_3,
        (*LLAMA, "<|eom_id|>", "<|eot_id|>"),
        ("<|eot_id|>", "<|end_of_text|>", "<|eom_id|>"),
        "autocoa",
        bos="<|begin_of_text|>",
        own={"head_dim": 8},
    ),
    "Gemma-3-270M": Shape(
        "gemma3_text",
        {
            "tie_word_embeddings": True,
            "max_position_embeddings": 32768,
            "sliding_window": 512,
            "query_pre_attn_scalar": 256,
        },
        {
            "hidden_size": 640,
            "intermediate_size": 2048,
            "num_hidden_layers": 18,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "head_dim": 256,
            "vocab_size": 262144,
        },
        268,
        GEMMA_3,
        ("<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"),
        ("<end_of_turn>", "<eos>"),
        "autocoa",
        bos="<bos>",
        eos="<eos>",
        layout="pieces",
        own={"num_hidden_layers": 6, "sliding_window": 64, "head_dim": 16},
    ),
}
TINY = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def config_of(shape: Shape, **changed: Any) -> Any:
    """Return the transformers configuration of a shape, with other keys."""
    return AutoConfig.for_model(shape.model_type, **shape.config | shape.sizes | changed)


def tokenizer_of(shape: Shape) -> PreTrainedTokenizerFast:
    """Return a tokenizer of its layout that adds the BOS token to every whole text."""
    backend = pieces_tokenizer() if shape.layout == "pieces" else bytes_tokenizer()
    backend.add_special_tokens([AddedToken(text, normalized=False) for text in shape.special])
    if shape.bos is not None:
        place = backend.token_to_id(shape.bos)
        backend.post_processor = TemplateProcessing(
            single=f"{shape.bos} $A",
            pair=f"{shape.bos} $A {shape.bos} $B",
            special_tokens=[(shape.bos, place)],
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=shape.bos,
        eos_token=shape.eos or shape.stops[0],
        pad_token=shape.special[0],
        chat_template=shape.template,
        clean_up_tokenization_spaces=False,
    )


def bytes_tokenizer() -> Tokenizer:
    """Tokenize like Qwen and Llama 3: split the text by a regular expression, and the pieces into
    bytes."""
    backend = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(SPLIT), "isolated")
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_of])
    backend.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(SENTENCES, trainer)
    return backend


def pieces_tokenizer() -> Tokenizer:
    """Tokenize like Gemma: spaces are symbols, and characters missing from the vocabulary are
    bytes."""
    backend = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    fall_back = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence(fall_back)
    unknown = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = BpeTrainer(vocab_size=600, special_tokens=unknown, show_progress=False)
    backend.train_from_iterator(SENTENCES, trainer)
    # Bytes are not special tokens, so a tokenizer that has them as such is built again.
    plain = Tokenizer.from_str(json.dumps(json.loads(backend.to_str()) | {"added_tokens": []}))
    plain.add_special_tokens([AddedToken("<unk>", normalized=False)])
    return plain


def write_small_model(folder: Path, shape: Shape, **sizes: Any) -> Path:
    """Write a random model of a shape with other sizes; return the folder."""
    tokenizer = tokenizer_of(shape)
    ends = [tokenizer.convert_tokens_to_ids(stop) for stop in shape.stops]
    config = config_of(shape, **sizes)
    for name in ("bos", "eos", "pad"):
        setattr(config, f"{name}_token_id", getattr(tokenizer, f"{name}_token_id"))
    config.eos_token_id = ends
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.generation_config = GenerationConfig(eos_token_id=ends, bos_token_id=config.bos_token_id)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_tiny_model(folder: Path, shape: Shape) -> Path:
    """Write the same architecture with a few thousand parameters."""
    words = {"vocab_size": len(tokenizer_of(shape))}
    heads = {} if shape.sizes["num_key_value_heads"] > 1 else {"num_key_value_heads": 1}
    return write_small_model(folder, shape, **TINY | words | heads | shape.own)
