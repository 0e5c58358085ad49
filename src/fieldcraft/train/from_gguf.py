"""A file for llama.cpp (GGUF) as a folder that transformers loads: weights, tokenizer, template.

transformers unpacks the weights. What it does not take over from the file is completed here, or the
file is refused: how texts are split before the tokenizer joins bytes, frequencies of the positions,
and the token that ends a turn.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from fieldcraft.engine.writing import add_end
from fieldcraft.hub.converted import GGUF
from fieldcraft.records.reading import reading
from fieldcraft.train.model import UNREADABLE, load_tokenizer
from fieldcraft.train.saving import save_model
from fieldcraft.types import UserError

_TAKE = "give the folder, or the name on the hub, of the model that it was made from"
# Ways to split texts, by `tokenizer.ggml.pre`: GPT-2's, and GPT-2's with each digit by itself.
_AS_GPT2 = ("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling")
_BY_DIGITS = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")
_EXACT = ("F32", "F16", "F64")  # types of weights that bfloat16 would round


def write_from_gguf(folder: Path, file: Path) -> None:
    """Write the model of a GGUF file, in bfloat16 if its weights are quantised or bfloat16 and else
    in float32.

    Raises UserError for a file that is damaged, or that holds what is not understood.
    """
    header = GgufHeader(file)
    tokenizer = _tokenizer(header)
    model = _model(header)
    save_model(folder, model, tokenizer)
    for end in header.ends:
        add_end(folder, end)


class GgufHeader:
    """The header of a GGUF file, with what it says of its model.

    Args:
        file: its path.

    Raises:
        UserError: it is damaged, or the package gguf is not installed.
    """

    def __init__(self, file: Path) -> None:
        try:
            import gguf
        except ImportError as error:
            raise UserError(
                f"{file} needs the package gguf: pip install 'fieldcraft[gguf]'."
            ) from error
        self.file = file
        with reading(file, "fetch the file again"):
            self._reader = gguf.GGUFReader(file)
        self._types = gguf.GGMLQuantizationType

    def value(self, key: str) -> Any:
        """Return the value of a key, None where the file has none."""
        field = self._reader.get_field(key)
        return None if field is None else field.contents()

    @property
    def architecture(self) -> str:
        return str(self.value("general.architecture"))

    @cached_property
    def tokens(self) -> list[str]:
        return self.value("tokenizer.ggml.tokens") or []

    @property
    def ends(self) -> list[int]:
        """Tokens that end a sequence and, if another one does, a turn."""
        found = [self.value(f"tokenizer.ggml.{end}_token_id") for end in ("eos", "eot")]
        return list(dict.fromkeys(int(end) for end in found if end is not None))

    @property
    def dtype(self) -> torch.dtype:
        """Smallest type that loses nothing of the matrices, but for quantised ones."""
        types = {tensor.tensor_type for tensor in self._reader.tensors if len(tensor.shape) > 1}
        exact = {self._types[name] for name in _EXACT}
        return torch.float32 if types & exact else torch.bfloat16

    def tensor(self, name: str) -> np.ndarray | None:
        """Return a tensor that is not quantised, None where the file has none of that name."""
        return next((t.data for t in self._reader.tensors if t.name == name), None)


# -- weights -----------------------------------------------------------------------------------


def _model(header: GgufHeader) -> Any:
    from transformers import GgufConfig

    folder, file = header.file.parent, {"gguf_file": header.file.name}
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, **file)
        _complete_positions(config, header)
        model, found = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=header.dtype,
            quantization_config=GgufConfig(dequantize=True),
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            **file,
        )
    except UserError:
        raise
    except UNREADABLE as error:
        raise UserError(_unreadable(header, error)) from error
    if lost := sorted({*found["missing_keys"], *(key[0] for key in found["mismatched_keys"])}):
        raise UserError(f"{header.file} does not hold the tensor {lost[0]} as it must be: {_TAKE}.")
    model.name_or_path = model.config.name_or_path = ""  # nothing beside the file is copied
    return model


def _unreadable(header: GgufHeader, error: Exception) -> str:
    said = str(error).strip().split("\n")[0].rstrip(".")
    if "not supported" in said or "architecture" in said:
        return (
            f"{header.file} has the architecture '{header.architecture}', which transformers does"
            f" not read from GGUF: {_TAKE}."
        )
    return f"{header.file} cannot be read ({said or type(error).__name__}): {_TAKE}."


def _complete_positions(config: Any, header: GgufHeader) -> None:
    """Set how positions are scaled. Raises UserError for a way that the file does not tell."""
    factors = header.tensor("rope_freqs.weight")
    if factors is not None:
        config.rope_parameters = _llama3_positions(config, np.asarray(factors), header)
        return
    scaling = header.value(f"{header.architecture}.rope.scaling.type") or "none"
    known = (config.rope_parameters or {}).get("rope_type", "default") != "default"
    unread = any(header.tensor(f"rope_factors_{n}.weight") is not None for n in ("long", "short"))
    if unread or (scaling != "none" and not known):
        raise UserError(
            f"{header.file} scales its positions ({scaling}), which transformers does not read from"
            f" GGUF: {_TAKE}."
        )


def _llama3_positions(config: Any, factors: np.ndarray, header: GgufHeader) -> dict[str, Any]:
    """Return the scaling of Llama 3.1 and its kin, of which the file holds the result alone."""
    before = dict(config.rope_parameters)
    for factor in (8.0, 16.0, 32.0):
        scaling = {
            "rope_type": "llama3",
            "rope_theta": before["rope_theta"],
            "factor": factor,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
        if np.allclose(llama3_factors(scaling, 2 * len(factors)), factors, rtol=1e-3):
            return scaling
    raise UserError(
        f"{header.file} has frequencies of its own (rope_freqs), which transformers does not read"
        f" from GGUF: {_TAKE}."
    )


def llama3_factors(scaling: dict[str, Any], width: int) -> list[float]:
    """Return the factors by which each frequency of a head is divided under Llama 3's scaling;
    `width` is that of the head."""
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    found = []
    for place in range(0, width, 2):
        wavelength = 2 * math.pi * scaling["rope_theta"] ** (place / width)
        turns = scaling["original_max_position_embeddings"] / wavelength
        smooth = min(max((turns - low) / (high - low), 0.0), 1.0)
        found.append(1 / ((1 - smooth) / scaling["factor"] + smooth))
    return found


# -- tokenizer ---------------------------------------------------------------------------------


def _tokenizer(header: GgufHeader) -> Any:
    """Return the tokenizer that lies beside the file, else that in it."""
    folder = header.file.parent
    beside = (folder / "tokenizer.json").exists()
    tokenizer = load_tokenizer(folder) if beside else _own_tokenizer(header)
    _refuse_other_tokens(header, tokenizer)
    if tokenizer.chat_template is None:
        tokenizer.chat_template = header.value("tokenizer.chat_template")
    tokenizer.name_or_path = tokenizer.name_or_path if beside else ""
    return tokenizer


def _own_tokenizer(header: GgufHeader) -> Any:
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            header.file.parent,
            gguf_file=header.file.name,
            local_files_only=True,
            trust_remote_code=False,
        )
    except UNREADABLE as error:
        raise UserError(_unreadable(header, error)) from error
    if header.value("tokenizer.ggml.model") == "gpt2":
        _complete_splitting(header, tokenizer.backend_tokenizer)
    return tokenizer


def _complete_splitting(header: GgufHeader, backend: Any) -> None:
    """Set how a tokenizer of bytes splits texts, where it splits them as GPT-2 does and the file
    says otherwise. Raises UserError for a way that is not known."""
    kept = json.loads(backend.to_str())["pre_tokenizer"]["type"] != "ByteLevel"
    way = header.value("tokenizer.ggml.pre")
    if kept or way in _AS_GPT2:
        return
    if way not in _BY_DIGITS:
        raise UserError(
            f"{header.file} does not tell how its tokenizer splits texts (tokenizer.ggml.pre is"
            f" {way!r}): copy tokenizer.json and tokenizer_config.json of the model that it was"
            " made from beside it."
        )
    digits = pre_tokenizers.Digits(individual_digits=True)
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence([digits, plain])


def _refuse_other_tokens(header: GgufHeader, tokenizer: Any) -> None:
    """Raise UserError for a tokenizer with other tokens than the file's. Those of other signs than
    letters are spelled in several ways."""
    there: Sequence[str | None] = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    pairs = enumerate(zip(header.tokens, there, strict=False))
    unlike = (number for number, (own, other) in pairs if own.isalpha() and own != other)
    number = len(header.tokens) if len(tokenizer) > len(header.tokens) else next(unlike, None)
    if number is not None:
        raise UserError(
            f"the tokenizer beside {header.file} is another model's, as its token {number} differs:"
            f" remove it, or copy that of the model that the {GGUF} file was made from there."
        )
