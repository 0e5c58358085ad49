"""Tiny random checkpoints of real architectures, generated during the tests."""

import json
from pathlib import Path
from typing import Literal

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedTokenizerFast,
)
from transformers.utils.logging import disable_progress_bar

disable_progress_bar()  # tests compare the output of commands

# Template of a DeepSeek-R1-Distill model. A later revision added the prefilled `<think>`.
R1_TEMPLATE = """\
{%- if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif -%}
{{- bos_token -}}
{%- for message in messages if message.role == 'system' %}{{ message.content }}{% endfor -%}
{%- for message in messages -%}
{%- if message.role == 'user' -%}
{{- '<｜User｜>' + message.content -}}
{%- elif message.role == 'assistant' -%}
{{- '<｜Assistant｜>' + message.content.split('</think>')[-1] + '<｜end▁of▁sentence｜>' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<｜Assistant｜>%(prefill)s' -}}
{%- endif -%}
"""

Architecture = Literal["qwen2", "qwen3", "llama"]

SENTENCES = (
    "Question: who directed the film The Long Road and in which city was she born?",
    "I need to search for the director of the film. The search says that Ada Lind directed it.",
    "The capital of the country is the city where the company has its headquarters.",
    "You may think, search and answer. The final answer is written in the box.",
    "result 1: Ada Lind was born in Northport in 1931. result 2: Northport is a town.",
)

# Outline of Qwen's template: a system turn with the tools, calls and responses as tagged JSON.
CHAT_TEMPLATE = """\
{%- if tools -%}
<|im_start|>system
# Tools

You may call these functions, described by JSON within <tools></tools>:
<tools>
{{ tools | map('tojson') | join('\\n') }}
</tools>

Write a call as JSON within <tool_call></tool_call>:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call><|im_end|>
{{ '' }}
{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
{%- set content = '<tool_response>\\n' + message.content + '\\n</tool_response>' -%}
{%- else -%}
{%- set content = message.content or '' -%}
{%- endif -%}
{{ '<|im_start|>' + ('user' if message.role == 'tool' else message.role) + '\\n' + content }}
{%- for call in message.tool_calls or [] -%}
{{ '\\n' if content or not loop.first }}{{ '<tool_call>\\n{"name": "' + call.function.name + '", \
"arguments": ' }}{{ call.function.arguments | tojson }}{{ '}\\n</tool_call>' }}
{%- endfor -%}
{{ '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|im_start|>assistant\\n' }}%(prefill)s
{%- endif -%}
"""


def r1_tokenizer(think_prefilled: bool = True) -> PreTrainedTokenizerFast:
    """Return a tokenizer of 404 entries with the special tokens and the chat template of
    DeepSeek-R1's distilled models. As in these models, `<think>`, `</think>` and the roles are
    tokens that count as text.
    """
    backend = _byte_level(["<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>"])
    backend.add_tokens(
        [
            AddedToken(text, normalized=False, special=False)
            for text in ("<｜User｜>", "<｜Assistant｜>", "<think>", "</think>")
        ]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<｜begin▁of▁sentence｜>",
        eos_token="<｜end▁of▁sentence｜>",
        pad_token="<｜end▁of▁sentence｜>",
        chat_template=R1_TEMPLATE.replace("%(prefill)s", "<think>\\n" if think_prefilled else ""),
    )


def tiny_tokenizer(think_prefilled: bool = False) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer of 400 entries with a Qwen-style chat template.

    `<|im_end|>` ends a turn, `<|endoftext|>` pads, tags are ordinary text. With `think_prefilled`
    the generation prompt ends in `<think>` and a newline, as in the templates of DeepSeek-R1.
    """
    backend = _byte_level(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    prefill = "{{ '<think>\\n' }}" if think_prefilled else ""
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        chat_template=CHAT_TEMPLATE.replace("%(prefill)s", prefill),
    )


def _byte_level(special: list[str]) -> Tokenizer:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(SENTENCES, trainer)
    return backend


def write_tiny_r1(folder: Path, think_prefilled: bool = True) -> Path:
    """Write a tiny DeepSeek-R1-Distill-Qwen checkpoint with its architecture, tokens and chat
    template. Its files name a tokenizer class that differs from the one that `tokenizer.json`
    requires."""
    write_tiny_checkpoint(folder, "qwen2", tokenizer=r1_tokenizer(think_prefilled))
    file = folder / "tokenizer_config.json"
    config = json.loads(file.read_text("utf-8")) | {"tokenizer_class": "LlamaTokenizerFast"}
    file.write_text(json.dumps(config), "utf-8")
    return folder


def write_tiny_checkpoint(
    folder: Path,
    architecture: Architecture,
    seed: int = 0,
    think_prefilled: bool = False,
    tokenizer: PreTrainedTokenizerFast | None = None,
) -> Path:
    """Write a random float32 model of 2 layers and width 32 with its tokenizer; return `folder`.

    The output embedding is not tied to the input embedding; attention is grouped (4 heads on 2
    key-value heads), so that code which confuses them fails.
    """
    tokenizer = tokenizer or tiny_tokenizer(think_prefilled)
    config = AutoConfig.for_model(
        architecture,
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype=torch.float32,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
