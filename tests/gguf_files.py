"""Files for llama.cpp (GGUF), written from tiny checkpoints with llama.cpp's own library."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file

Q8, F32 = gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.F32


def write_gguf(
    file: Path,
    checkpoint: Path,
    *,
    pre: str = "gpt-2",
    architecture: str = "qwen2",
    quantised: bool = False,
    values: dict[str, Any] | None = None,
    tensors: dict[str, np.ndarray] | None = None,
) -> Path:
    """Write a tiny Qwen 2 as a GGUF file; `values` and `tensors` are written in addition to its
    own."""
    writer = gguf.GGUFWriter(file, architecture)
    config = json.loads((checkpoint / "config.json").read_bytes())
    _write_shape(writer, config)
    _write_tokenizer(writer, checkpoint, pre)
    for key, value in (values or {}).items():
        (writer.add_string if isinstance(value, str) else writer.add_uint32)(key, value)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, config["num_hidden_layers"])
    own = load_file(checkpoint / "model.safetensors")
    for name, tensor in own.items():
        written = names.get_name(name, try_suffixes=(".weight", ".bias"))
        packed = quantised and tensor.ndim > 1
        data = gguf.quants.quantize(tensor, Q8) if packed else tensor.astype(np.float32)
        writer.add_tensor(written, data, raw_dtype=Q8 if packed else F32)
    for name, tensor in (tensors or {}).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _write_shape(writer: Any, config: dict[str, Any]) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])


def _write_tokenizer(writer: Any, checkpoint: Path, pre: str) -> None:
    tokenizer = json.loads((checkpoint / "tokenizer.json").read_bytes())
    settings = json.loads((checkpoint / "tokenizer_config.json").read_bytes())
    vocabulary = tokenizer["model"]["vocab"] | {
        t["content"]: t["id"] for t in tokenizer["added_tokens"]
    }
    special = {token["content"] for token in tokenizer["added_tokens"]}
    tokens = sorted(vocabulary, key=lambda token: vocabulary[token])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in special else 1 for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in tokenizer["model"]["merges"]])
    writer.add_eos_token_id(vocabulary[settings["eos_token"]])
    writer.add_pad_token_id(vocabulary[settings["pad_token"]])
    writer.add_chat_template((checkpoint / "chat_template.jinja").read_text("utf-8"))
