import json
import logging
import warnings
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from checkpoints import Architecture, tiny_tokenizer, write_tiny_checkpoint


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "llama"])
def test_checkpoint_loads_silently_and_runs(
    tmp_path: Path, architecture: Architecture, caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("transformers").propagate = True
    with caplog.at_level(logging.WARNING), warnings.catch_warnings():
        warnings.simplefilter("error")
        write_tiny_checkpoint(tmp_path, architecture, seed=3)
        tokenizer = AutoTokenizer.from_pretrained(tmp_path)
        model = AutoModelForCausalLM.from_pretrained(tmp_path)
    logging.getLogger("transformers").propagate = False
    assert caplog.messages == []
    assert model.config.model_type == architecture
    assert model.dtype == torch.float32
    ids = tokenizer.encode("who directed the film?", return_tensors="pt")
    assert model(ids).logits.shape == (1, ids.shape[1], len(tokenizer))
    assert tokenizer.decode([tokenizer.eos_token_id]) == "<|im_end|>"
    assert tokenizer.pad_token == "<|endoftext|>"


def test_seed_decides_the_weights(tmp_path: Path) -> None:
    def weights(name: str, seed: int) -> bytes:
        folder = write_tiny_checkpoint(tmp_path / name, "qwen3", seed)
        return (folder / "model.safetensors").read_bytes()

    assert weights("a", 1) == weights("b", 1) != weights("c", 2)


def test_chat_template_writes_tools_calls_and_responses() -> None:
    tool = {"type": "function", "function": {"name": "search"}}
    call = {"type": "function", "function": {"name": "search", "arguments": {"query": "x"}}}
    text = tiny_tokenizer(think_prefilled=True).apply_chat_template(
        [
            {"role": "user", "content": "who?"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "Ada"},
        ],
        tools=[tool],
        tokenize=False,
        add_generation_prompt=True,
    )
    system, rest = text.split("<|im_end|>\n", 1)
    assert system.startswith("<|im_start|>system\n# Tools\n")
    assert f"<tools>\n{json.dumps(tool)}\n</tools>" in system
    assert rest == (
        "<|im_start|>user\nwho?<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "search", "arguments": {"query": "x"}}\n'
        "</tool_call><|im_end|>\n"
        "<|im_start|>user\n<tool_response>\nAda\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n<think>\n"
    )
