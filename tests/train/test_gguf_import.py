"""Conversion of files for llama.cpp into equivalent model folders."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from checkpoints import tiny_tokenizer
from cli_parts import sentence, status
from engine_parity import sharp_model
from fieldcraft.engine.generation_config import read_eos_token_ids
from fieldcraft.train.gguf_import import compute_llama3_factors, write_from_gguf
from fieldcraft.train.model import load_model, load_tokenizer
from fieldcraft.train.saving import save_model
from fieldcraft.types import UserError
from gguf_files import write_gguf

CPU = torch.device("cpu")
IDS = torch.arange(3, 40)[None]
TEXT = "In 2024  it's 1,234 \n\n the film <|im_end|>"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "model"
    save_model(folder, sharp_model(folder, "qwen2"), tiny_tokenizer())
    return folder


def made(tmp_path: Path, file: Path) -> Path:
    folder = tmp_path / "made"
    folder.mkdir()
    write_from_gguf(folder, file)
    return folder


def refused(file: Path) -> str:
    with pytest.raises(UserError) as raised:
        write_from_gguf(file.parent / "made", file)
    return str(raised.value)


@torch.no_grad()
def logits(folder: Path) -> torch.Tensor:
    return load_model(folder, CPU)(IDS).logits.float()


def test_weights_tokenizer_and_template_are_the_files(tmp_path: Path, tiny: Path) -> None:
    folder = made(tmp_path, write_gguf(tmp_path / "m.gguf", tiny))
    assert torch.equal(logits(folder), logits(tiny))
    before, after = load_tokenizer(tiny), load_tokenizer(folder)
    assert after.get_vocab() == before.get_vocab()
    assert after(TEXT).input_ids == before(TEXT).input_ids
    assert after.chat_template == before.chat_template
    assert (after.eos_token, after.pad_token) == (before.eos_token, before.pad_token)
    assert read_eos_token_ids(folder) == (before.eos_token_id,)


def test_quantised_weights_are_unpacked(tmp_path: Path, tiny: Path) -> None:
    folder = made(tmp_path, write_gguf(tmp_path / "m.gguf", tiny, quantised=True))
    assert load_model(folder, CPU, "bfloat16").dtype == torch.bfloat16
    unlike = (logits(folder) - logits(tiny)).abs().max() / logits(tiny).abs().max()
    assert 0 < unlike < 0.1
    assert "quantization_config" not in (folder / "config.json").read_text()


def test_the_token_that_ends_a_turn_ends_a_sequence_too(tmp_path: Path, tiny: Path) -> None:
    values = {"tokenizer.ggml.eot_token_id": 1}
    folder = made(tmp_path, write_gguf(tmp_path / "m.gguf", tiny, values=values))
    assert read_eos_token_ids(folder) == (load_tokenizer(tiny).eos_token_id, 1)


def test_digits_are_split_where_the_file_says_so(tmp_path: Path, tiny: Path) -> None:
    folder = made(tmp_path, write_gguf(tmp_path / "m.gguf", tiny, pre="smollm"))
    split = load_tokenizer(folder).backend_tokenizer.pre_tokenizer.pre_tokenize_str("a  24")
    assert [piece for piece, _ in split] == ["a", "ĠĠ", "2", "4"]


def test_an_unknown_way_to_split_needs_the_tokenizer_beside(tmp_path: Path, tiny: Path) -> None:
    file = write_gguf(tmp_path / "m.gguf", tiny, pre="nobody-knows")
    assert "tokenizer.ggml.pre is 'nobody-knows'" in refused(file)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny / name, tmp_path)
    folder = made(tmp_path, file)
    assert load_tokenizer(folder)(TEXT).input_ids == load_tokenizer(tiny)(TEXT).input_ids
    assert load_tokenizer(folder).chat_template == load_tokenizer(tiny).chat_template
    tokenizer_file = tmp_path / "tokenizer.json"
    content = json.loads(tokenizer_file.read_bytes())
    ids = content["model"]["vocab"]
    ids["a"], ids["b"] = ids["b"], ids["a"]
    tokenizer_file.write_text(json.dumps(content))
    assert "belongs to another model, because token" in refused(file)


def test_what_transformers_does_not_read(tmp_path: Path, tiny: Path) -> None:
    file = write_gguf(tmp_path / "m.gguf", tiny, architecture="whatever")
    assert "has the architecture 'whatever', which transformers does not read" in refused(file)
    file = write_gguf(tmp_path / "m.gguf", tiny, values={"qwen2.rope.scaling.type": "yarn"})
    assert "has rotary scaling (yarn), which transformers does not read" in refused(file)
    factors = {"rope_freqs.weight": np.full(8, 2.0, np.float32)}
    file = write_gguf(tmp_path / "m.gguf", tiny, tensors=factors)
    assert "has custom rotary frequencies (rope_freqs)" in refused(file)
    whole = write_gguf(tmp_path / "m.gguf", tiny).read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    assert str(file) in refused(file)
    file.write_bytes(b"GGUF")
    assert str(file) in refused(file)


def test_scaled_positions_of_llama_3_are_recognised(tmp_path: Path, tiny: Path) -> None:
    width = load_model(tiny, CPU).config.head_dim or 16
    scaling = {
        "rope_type": "llama3",
        "rope_theta": load_model(tiny, CPU).config.rope_parameters["rope_theta"],
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    factors = np.array(compute_llama3_factors(scaling, width), np.float32)
    file = write_gguf(tmp_path / "m.gguf", tiny, tensors={"rope_freqs.weight": factors})
    assert load_model(made(tmp_path, file), CPU).config.rope_parameters == scaling


def test_scaled_positions_are_those_of_transformers() -> None:
    parameters = {"rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0}
    parameters |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    config = LlamaConfig(
        hidden_size=128,
        num_attention_heads=1,
        rope_parameters={"rope_type": "llama3", **parameters},
    )
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, CPU)
    plain = 1 / 500000.0 ** (torch.arange(0, 128, 2) / 128)
    expected = torch.tensor(compute_llama3_factors(parameters, 128))
    torch.testing.assert_close(plain / scaled, expected, rtol=1e-4, atol=0)


@pytest.mark.long
def test_a_file_is_converted_once_by_a_process_of_its_own(
    tmp_path: Path,
    tiny: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = write_gguf(tmp_path / "m.gguf", tiny)
    assert status("ask", "Who?", "--model", file, "--dialect", "hermes") == 0
    captured = capsys.readouterr()
    assert "Who?" in captured.out
    assert "m.gguf to" in captured.err
    assert status("ask", "Who?", "--model", tmp_path, "--dialect", "hermes") == 0
    assert "Converting" not in capsys.readouterr().err
    write_gguf(file, tiny, architecture="whatever")
    assert status("ask", "Who?", "--model", file, "--dialect", "hermes") == 2
    assert "has the architecture 'whatever'" in capsys.readouterr().err.splitlines()[-1]
    shutil.copy(file, tmp_path / "n.gguf")
    assert status("ask", "Who?", "--model", tmp_path) == 2
    assert sentence(capsys).startswith(f"{tmp_path} has 2 GGUF files: give one, such as ")
    shutil.copy(file, tmp_path / "big-00001-of-00003.gguf")
    assert status("ask", "Who?", "--model", tmp_path / "big-00001-of-00003.gguf") == 2
    assert "is one of 3 parts of a model" in sentence(capsys)
