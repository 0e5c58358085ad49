"""Compare vLLM with the local engine on the model of autocoa-mini.

    python bench/vllm_engine.py /envs/vllm/bin/python

It measures throughput, startup, weight updates, and the agreement of log-probabilities. Rounds of
the two engines alternate, and results are medians. The vocabulary is small.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
import typer

from fieldcraft.engine.base import PolicyEngine
from fieldcraft.engine.local.engine import LocalEngine
from fieldcraft.engine.resources import RunResources
from fieldcraft.extensions.vllm.engine import VllmEngine
from fieldcraft.recipes.loading import load_recipe
from fieldcraft.runs.first_model import write_first_model
from fieldcraft.runs.inputs import make_data_source
from fieldcraft.sampling import SamplingParams
from fieldcraft.train.model import load_model, load_tokenizer

ROUNDS = 5
TOKENS = 64
PROMPT = 100


async def tokens_per_second(engine: PolicyEngine, rows: int, vocabulary: int, turn: int) -> float:
    """Measure `rows` sessions of one turn each, at temperature 1, all of the same length."""
    sampling = SamplingParams(TOKENS, 1.0, seed=turn)
    prompts = [
        [(i * 37 + row) % (vocabulary - 5) + 5 for i in range(PROMPT)] for row in range(rows)
    ]
    began = time.perf_counter()
    done = await asyncio.gather(
        *(engine.generate(ids, sampling, f"{turn}.{row}") for row, ids in enumerate(prompts))
    )
    return sum(len(one.ids) for one in done) / (time.perf_counter() - began)


async def compare(model: Any, tokenizer: Any, python: Path, folder: Path) -> None:
    home = RunResources(folder)
    vllm = VllmEngine(model, tokenizer, resources=home, max_num_seqs=256, threads=1, python=python)
    local = LocalEngine(model, tokenizer, max_num_seqs=256, threads=1)
    vocabulary = model.config.vocab_size
    try:
        began = time.perf_counter()
        await vllm.update_weights(0)
        print(f"start {time.perf_counter() - began:.1f} s")
        published = []
        for version in range(ROUNDS):
            began = time.perf_counter()
            await vllm.update_weights(version)
            published.append(time.perf_counter() - began)
        print(f"publish {median(published):.3f} s")
        ids = [i % (vocabulary - 5) + 5 for i in range(PROMPT)]
        both = [await e.generate(ids, SamplingParams(TOKENS, 0.0), "greedy") for e in (vllm, local)]
        pairs = zip(both[0].logprobs, both[1].logprobs, strict=True)
        gap = max(abs(a - b) for a, b in pairs)
        print(f"greedy: identical tokens {both[0].ids == both[1].ids}, difference {gap:.1e} nats")
        for rows in (32, 128):
            found: dict[str, list[float]] = {"vllm": [], "local": []}
            for turn in range(ROUNDS):
                for name, engine in (("vllm", vllm), ("local", local)):
                    await engine.sleep()
                    found[name].append(await tokens_per_second(engine, rows, vocabulary, turn))
            for name, rates in found.items():
                spread = f"{min(rates):,.0f} to {max(rates):,.0f}"
                print(f"{rows} rows, {name}: {median(rates):,.0f} tok/s ({spread})")
    finally:
        await home.close()


def main(python: Path) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        model_folder = Path(folder) / "model"
        model_folder.mkdir()
        write_first_model(make_data_source(load_recipe("autocoa-mini", [])), model_folder)
        model = load_model(model_folder, torch.device("cpu")).eval()
        tokenizer = load_tokenizer(model_folder)
        asyncio.run(compare(model, tokenizer, python, Path(folder) / "engine"))


if __name__ == "__main__":
    typer.run(main)
