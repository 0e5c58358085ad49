"""Compare sampling by the local engine with `generate` of transformers, on the same prompts.

    python bench/generate.py [--rows 8] [--context 2048] [--new 64] [--shared]
                             [--features 256] [--layers 6] [--words 8192]
                             [--dtype float32|bfloat16] [--threads 1] [--repeats 3]

All rows have CONTEXT tokens, separate ones or with `--shared` the same ones, and sample NEW tokens
without an end token. The two alternate, with new prompts in each round. `first token` is the time
for one token of each row, `others` the time for the rest. Seconds are CPU time, on a GPU wall time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import StrEnum
from statistics import median
from typing import Any

import numpy as np
import torch
import typer

from _step_costs import clock
from engine import Decimal
from fieldcraft.engine.local.engine import LocalEngine
from fieldcraft.sampling import NO_TRUNCATION, SamplingParams
from prefixes import make_model

Prompts = np.ndarray[Any, np.dtype[np.int64]]


class Number(StrEnum):
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


def by_engine(engine: LocalEngine, prompts: Prompts, new: int) -> None:
    async def turns() -> None:
        await asyncio.gather(
            *(
                engine.generate(
                    ids.tolist(), SamplingParams(new, 1.0, (), row, NO_TRUNCATION), f"{row}"
                )
                for row, ids in enumerate(prompts)
            )
        )
        for row in range(len(prompts)):
            engine.release(f"{row}")

    asyncio.run(turns())


def by_generate(model: Any, prompts: Prompts, new: int) -> None:
    ids = torch.from_numpy(prompts).to(model.device)
    with torch.inference_mode():
        model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            top_k=0,
            min_new_tokens=new,
            max_new_tokens=new,
            pad_token_id=0,
        )


def main(
    rows: int = 8,
    context: int = 2048,
    new: int = 64,
    shared: bool = False,
    features: int = 256,
    layers: int = 6,
    words: int = 8192,
    dtype: Number = Number.FLOAT32,
    threads: int = 1,
    repeats: int = 3,
) -> None:
    torch.set_num_threads(threads)
    rng = np.random.default_rng(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = make_model(features, layers, words, device).to(getattr(torch, dtype)).eval()
    model.generation_config.eos_token_id = None
    engine = LocalEngine(model, Decimal(), max_num_seqs=rows, max_model_len=context + new)
    ways: dict[str, Callable[[Prompts, int], None]] = {
        "generate": lambda prompts, count: by_generate(model, prompts, count),
        "fieldcraft": lambda prompts, count: by_engine(engine, prompts, count),
    }
    seconds: dict[tuple[str, int], list[float]] = {}
    for round_ in range(1 + repeats):  # the first round is not counted
        for count in (1, new):
            for name, way in ways.items():
                prompts = rng.integers(1, words, (1 if shared else rows, context))
                began = clock()
                way(np.repeat(prompts, rows // len(prompts), 0), count)
                if round_:
                    seconds.setdefault((name, count), []).append(clock() - began)
    print(f"{rows} rows, {'shared' if shared else 'own'} context of {context}, {new} new, {dtype}")
    print("| | first token | others | total | ratio to fieldcraft |\n|---|---|---|---|---|")
    found = {each: median(taken) for each, taken in seconds.items()}
    for name in ways:
        first, whole = found[name, 1], found[name, new]
        ratio = whole / found["fieldcraft", new]
        print(f"| {name} | {first:.2f} s | {whole - first:.2f} s | {whole:.2f} s | {ratio:.2f} |")


if __name__ == "__main__":
    typer.run(main)
