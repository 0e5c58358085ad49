"""Tokenizer and model created from scratch, for worlds without downloads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedModel, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

USER_TOKEN, ASSISTANT_TOKEN, END_TOKEN = "<|user|>", "<|assistant|>", "<|end|>"
# A tool is one line before the question: `search(query): Search a collection ...`. Calls and
# results have the format of the Hermes and Qwen templates.
CHAT_TEMPLATE = """\
{%- for m in messages %}
{%- if m['role'] == 'tool' %}
{{- '<|user|><tool_response>\n' + m['content'] + '\n</tool_response>' }}
{%- else %}
{{- '<|' + m['role'] + '|>' }}
{%- if loop.first and tools %}
{%- for t in tools %}
{{- t['function']['name'] + '(' + t['function']['parameters']['properties'] | join(', ') + '): ' }}
{{- t['function']['description'] + '\n' }}
{%- endfor %}
{%- endif %}
{{- m['content'] }}
{%- for c in m['tool_calls'] or [] %}
{{- '<tool_call>\n{"name": ' + c['function']['name'] | tojson + ', "arguments": ' }}
{{- c['function']['arguments'] | tojson + '}\n</tool_call>' }}
{%- endfor %}
{%- if m['role'] == 'assistant' %}<|end|>{% endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""
# A word includes the following space, so a name starts with the same token everywhere. Numbers are
# pairs of digits, so a large number is copied piece by piece like a name. The prefix of a URL
# before its last part is one word, so a model copies only the last part.
WORD_PATTERN = (
    r"https?://\S*/|\n+|</?[a-z_]+> ?|```[a-z]*|\\boxed\{|[A-Z][a-z]* ?|[a-z]+ ?|[0-9]{1,2} ?"
    r"|[^\sA-Za-z0-9] ?|\s+"
)


PREVIOUS_TOKEN_STRENGTH = 8.0
PREVIOUS_TOKEN_GAIN = 0.1
MATCH_STRENGTH = 1.5
COPY_GAIN = 0.15


def make_tokenizer(texts: Iterable[str], syllables: Iterable[str]) -> PreTrainedTokenizerFast:
    """Make a byte-level BPE tokenizer in which every word of `texts` is one token and every name is
    a sequence of syllables, so that copying an unseen name is a skill and not memorisation.

    Syllables are learned first (they are by far the most frequent), with and without a trailing
    space; names must not occur in `texts`.
    """
    pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORD_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    words = {piece for text in texts for piece, _ in pre_tokenizer.pre_tokenize_str(text)}
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizer
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=65536,
        special_tokens=[END_TOKEN, USER_TOKEN, ASSISTANT_TOKEN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    decode = decoders.ByteLevel().decode
    lines = [form for s in syllables for form in (s, f"{s} ") for _ in range(20)]
    lines += [decode([word]) for word in sorted(words) for _ in range(2)]
    backend.train_from_iterator(lines, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=END_TOKEN,
        pad_token=END_TOKEN,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def iter_tool_texts(tools: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Yield the text fragments of prompts and calls of a chat template, without names; `tools` are
    schemas."""
    yield '{"name": "", "arguments": {"": ""}}'
    for tool in tools:
        yield f": {tool['function']['description']}\n"


def count_parameters(vocabulary: int, layers: int, width: int) -> int:
    """Return the number of parameters of a model that `make_tiny_model` would create."""
    attention = 4 * width**2 + 3 * width  # queries, keys and values have biases
    return vocabulary * width + layers * (attention + 9 * width**2 + 2 * width) + width


def make_tiny_model(
    tokenizer: PreTrainedTokenizerFast, *, layers: int, width: int, heads: int, seed: int
) -> PreTrainedModel:
    """Make a Qwen2 model with `layers` (2 or more) layers, `width` features and tied embeddings, in
    float32. Weights are random except the heads set by `init_induction_heads`."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=4096,
        rope_parameters={"rope_type": "default", "rope_theta": 1e5},
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        initializer_range=width**-0.5,
    )
    model = Qwen2ForCausalLM(config)
    init_induction_heads(model)
    return model


@torch.no_grad()
def init_induction_heads(model: Qwen2ForCausalLM) -> None:
    """Initialise the first two layers with induction heads, the circuit by which language models
    copy from their context.

    A head of the first layer attends to the previous token; all heads of the second attend to the
    token after the last occurrence of the current token, and repeat it (Olsson et al., arXiv
    2209.11895). Models of every size form these heads between 2.5 and 5 billion tokens, so a model
    that is trained for two minutes must start with them. Like all weights they are trained further.

    Value and output projections of these heads are initialised as well as attention, so the model
    copies before any training: it names the first syllable of a fact in 62 % of cases and the
    second in 57 %; with a random initialisation it never does.
    """
    config = model.config
    width, size = config.hidden_size, config.hidden_size // config.num_attention_heads
    half = size // 2
    frequency = config.rope_parameters["rope_theta"] ** (-torch.arange(half) / half)
    slow = torch.arange(half // 4, half)  # rotary pairs that hardly rotate within a short context
    slots = torch.cat([slow, slow + half])
    read, write = (torch.linalg.qr(torch.randn(width, len(slots)))[0].T for _ in range(2))

    for layer in model.model.layers:  # every block initially adds 0
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    first, second = model.model.layers[0].self_attn, model.model.layers[1].self_attn
    # Constant queries and keys whose rotations agree at a distance of one token.
    for projection in (first.q_proj, first.k_proj):
        projection.weight[:size] = 0.0
    strength = PREVIOUS_TOKEN_STRENGTH
    first.k_proj.bias[:size] = strength * torch.cat([torch.ones(half), torch.zeros(half)])
    first.q_proj.bias[:size] = strength * torch.cat([torch.cos(frequency), -torch.sin(frequency)])
    first.v_proj.weight[: len(slots)] = read
    first.o_proj.weight[:, : len(slots)] = PREVIOUS_TOKEN_GAIN * write.T
    basis = torch.linalg.qr(torch.randn(width, width))[0]
    for head in range(config.num_attention_heads):
        head_slice = slice(head * size, (head + 1) * size)
        second.q_proj.weight[head_slice] = 0.0
        second.k_proj.weight[head_slice] = 0.0
        second.q_proj.weight[head_slice.start + slots] = MATCH_STRENGTH * read
        second.k_proj.weight[head_slice.start + slots] = MATCH_STRENGTH * write
        second.v_proj.weight[head_slice] = basis[head_slice]
        second.o_proj.weight[:, head_slice] = COPY_GAIN * basis[head_slice].T
