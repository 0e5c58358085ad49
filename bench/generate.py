"""Compare sampling by the local engine with `generate` of transformers, on the same prompts.

    python bench/generate.py [--rows 8] [--context 2048] [--new 64] [--shared]
                             [--turns 1] [--observation 64]
                             [--shape small|smollm2|smollm2-360m]
                             [--features 256] [--layers 6] [--words 8192]
                             [--dtype float32|bfloat16] [--threads 1] [--repeats 3]

All rows have CONTEXT tokens, separate ones or with `--shared` the same ones, and sample NEW tokens
without an end token. Each further turn appends OBSERVATION tokens and samples NEW again; both keep
the cache of the turns before. The two alternate, with new prompts in each round. `first token` is
the time for one token per row and turn, `others` the time for the rest. Seconds are CPU time, on a
GPU wall time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import torch
import typer
from transformers import DynamicCache

from _record import RECORD_HELP, append_record
from _shapes import Shape, make_model
from _step_costs import clock
from engine import Decimal
from fieldcraft.engine.local.engine import LocalEngine
from fieldcraft.sampling import NO_TRUNCATION, SamplingParams

Prompts = np.ndarray[Any, np.dtype[np.int64]]


class Number(StrEnum):
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


def by_engine(engine: LocalEngine, prompts: Prompts, observations: Prompts, new: int) -> None:
    async def run_row(row: int) -> None:
        ids = prompts[row].tolist()
        for observation in observations:
            sampling = SamplingParams(new, 1.0, (), row, NO_TRUNCATION)
            completion = await engine.generate(ids, sampling, f"{row}")
            ids = [*ids, *completion.ids, *observation.tolist()]
        engine.release(f"{row}")

    async def run_rows() -> None:
        await asyncio.gather(*map(run_row, range(len(prompts))))

    asyncio.run(run_rows())


def by_generate(model: Any, prompts: Prompts, observations: Prompts, new: int) -> None:
    ids = torch.from_numpy(prompts).to(model.device)
    cache = DynamicCache(config=model.config)
    for observation in torch.from_numpy(observations).to(model.device):
        with torch.inference_mode():
            ids = model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                cache=cache,
                do_sample=True,
                top_k=0,
                min_new_tokens=new,
                max_new_tokens=new,
                pad_token_id=0,
            )
        ids = torch.cat([ids, observation.expand(len(ids), -1)], 1)


def main(
    rows: int = 8,
    context: int = 2048,
    new: int = 64,
    shared: bool = False,
    turns: int = 1,
    observation: int = 64,
    shape: Shape = Shape.SMALL,
    features: int = 256,
    layers: int = 6,
    words: int = 8192,
    dtype: Number = Number.FLOAT32,
    threads: int = 1,
    repeats: int = 3,
    record: Annotated[Path | None, typer.Option(help=RECORD_HELP)] = None,
) -> None:
    torch.set_num_threads(threads)
    rng = np.random.default_rng(0)
    model = make_model(shape, features, layers, words).to(getattr(torch, dtype)).eval()
    model.generation_config.eos_token_id = None
    longest = context + turns * (new + observation)
    engine = LocalEngine(model, Decimal(), max_num_seqs=rows, max_model_len=longest)
    ways: dict[str, Callable[[Prompts, Prompts, int], None]] = {
        "generate": partial(by_generate, model),
        "fieldcraft": partial(by_engine, engine),
    }
    seconds: dict[tuple[str, int], list[float]] = {}
    for round_ in range(1 + repeats):  # the first round is not counted
        for count in (1, new):
            for name, way in ways.items():
                prompts = rng.integers(1, words, (1 if shared else rows, context))
                observations = rng.integers(1, words, (turns, observation))
                began = clock()
                way(np.repeat(prompts, rows // len(prompts), 0), observations, count)
                if round_:
                    seconds.setdefault((name, count), []).append(clock() - began)
    context_kind = "shared" if shared else "own"
    print(f"{rows} rows, {context_kind} context of {context}, {turns} x {new} new, {dtype}")
    print("| | first token | others | total | ratio to fieldcraft |\n|---|---|---|---|---|")
    found = {each: median(taken) for each, taken in seconds.items()}
    for name in ways:
        first, whole = found[name, 1], found[name, new]
        ratio = whole / found["fieldcraft", new]
        print(f"| {name} | {first:.2f} s | {whole - first:.2f} s | {whole:.2f} s | {ratio:.2f} |")
    if record is not None:
        append_record(record, {name: found[name, new] for name in ways})


if __name__ == "__main__":
    typer.run(main)
