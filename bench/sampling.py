"""Measure the cost of top_k, top_p and min_p in the local engine, relative to plain sampling.

    python bench/sampling.py
    python bench/sampling.py --words 49152 --width 256 --rows 16

A model with random weights decodes a batch of rows. Its output layer is scaled to a mean entropy of
one nat, so that a nucleus has a few tokens, as in trained models. All variants alternate in each
round; a ratio is the median over rounds of the ratio to plain sampling in the same round. `step`
measures the whole engine, `sampling` only the selection of tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable
from statistics import median

import numpy as np
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from engine import Decimal
from fieldcraft.engine.local.engine import LocalEngine
from fieldcraft.engine.local.sampling import sample_rows
from fieldcraft.sampling import NO_TRUNCATION, SamplingParams, Truncation

WAYS = {
    "plain": NO_TRUNCATION,
    "top_k 20, top_p 0.9": Truncation(top_k=20, top_p=0.9),
    "top_p 0.9": Truncation(top_p=0.9),
    "min_p 0.1": Truncation(min_p=0.1),
}
TOKENS = 48  # per turn
PROMPT = list(range(1, 33))


def make_model(words: int, width: int, layers: int) -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=words,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 32,
        num_key_value_heads=width // 32,
        tie_word_embeddings=False,
        eos_token_id=0,
    )
    model = Qwen2ForCausalLM(config).eval()
    low, high = 1.0, 1e4
    with torch.inference_mode():
        logits = model(torch.tensor([PROMPT])).logits[0]
        while high / low > 1.01:  # the entropy falls with the scale
            scale = (low * high) ** 0.5
            spread = torch.distributions.Categorical(logits=scale * logits).entropy().mean()
            low, high = (scale, high) if spread > 1 else (low, scale)
    with torch.no_grad():
        model.lm_head.weight.mul_(low)
    return model


def engine_seconds(engine: LocalEngine, truncation: Truncation, rows: int) -> float:
    async def turns() -> None:
        turn = [SamplingParams(TOKENS, 1.0, (), seed, truncation) for seed in range(rows)]
        calls = (engine.generate(PROMPT, how, f"{row}") for row, how in enumerate(turn))
        await asyncio.gather(*calls)
        for row in range(rows):
            engine.release(f"{row}")

    began = time.perf_counter()
    asyncio.run(turns())
    return time.perf_counter() - began


def sampling_seconds(logits: torch.Tensor, truncation: Truncation) -> float:
    rows = len(logits)
    columns = [1.0, 0.5, truncation.top_k, truncation.top_p, truncation.min_p]
    numbers = torch.tensor(columns)[:, None].repeat(1, rows)
    numbers[1] = torch.rand(rows, generator=torch.Generator().manual_seed(0))
    truncated = np.full(rows, bool(truncation))
    began = time.perf_counter()
    with torch.inference_mode():
        sample_rows(logits, numbers, truncated)
    return time.perf_counter() - began


def ratios(
    seconds: Callable[[Truncation], float], rounds: int
) -> tuple[float, dict[str, list[float]]]:
    """Return the median seconds of plain sampling, and the ratios of the variants by round."""
    for way in WAYS.values():
        seconds(way)
    found = [{name: seconds(way) for name, way in WAYS.items()} for _ in range(rounds)]
    plain = [one["plain"] for one in found]
    rest = {name: [one[name] / one["plain"] for one in found] for name in WAYS if name != "plain"}
    return median(plain), rest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("words", 400), ("width", 96), ("layers", 3), ("rows", 64)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    torch.set_num_threads(1)
    model = make_model(given.words, given.width, given.layers)
    engine = LocalEngine(model, Decimal(), max_num_seqs=given.rows, max_model_len=128)
    with torch.inference_mode():
        logits = model(torch.randint(1, given.words, (given.rows, 16))).logits[:, -1].clone()
    parts = {
        "step": lambda way: engine_seconds(engine, way, given.rows),
        "sampling": lambda way: sampling_seconds(logits, way),
    }
    print(f"{given.words} words, width {given.width}, {given.layers} layers, {given.rows} rows")
    for part, seconds in parts.items():
        plain, found = ratios(seconds, given.rounds)
        print(f"{part}: plain {1e3 * plain:.2f} ms" + (f" for {TOKENS} tokens" * (part == "step")))
        for name, each in found.items():
            print(f"  {name}: {median(each):.2f} ({min(each):.2f} to {max(each):.2f})")


if __name__ == "__main__":
    main()
