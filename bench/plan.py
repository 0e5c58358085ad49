"""Compare the step times of the formulas of `fieldcraft plan` with measurements.

    python bench/plan.py [--repeats 5]

It uses one thread and the device `cpu`, whose rates are measured first, and again before each row:
they are the formulas' only input besides shapes. The models are random Qwen2 models. The formulas
are in docs/lab-notes/scaling.md; bench/memory.py compares memory.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
import typer
from transformers import Qwen2Config, Qwen2ForCausalLM

from fieldcraft.config.sections import Optim
from fieldcraft.engine.local.engine import LocalEngine
from fieldcraft.sampling import SamplingParams
from fieldcraft.scaling.costs import ForwardPasses, ModelShape, Roofline, TrainingCost
from fieldcraft.scaling.devices import Device
from fieldcraft.scaling.measured import measure_cpu
from fieldcraft.train.batch import Sample, SampleUnit
from fieldcraft.train.losses import PolicyGradientLoss
from fieldcraft.train.trainer import Trainer

TOKENS = 4096  # per step, in two micro-batches
TURN = 48  # sampled tokens per row
PROMPT = 16


class Decimal:
    """A tokenizer that renders ids as numbers: nothing here depends on text."""

    eos_token_id = 0

    def decode(self, ids: list[int], **_: object) -> str:
        return " ".join(map(str, ids))


@dataclass(frozen=True, slots=True)
class Size:
    width: int
    layers: int
    words: int

    def make(self) -> tuple[Qwen2ForCausalLM, ModelShape]:
        torch.manual_seed(0)
        config = Qwen2Config(
            vocab_size=self.words,
            hidden_size=self.width,
            intermediate_size=4 * self.width,
            num_hidden_layers=self.layers,
            num_attention_heads=4,
            num_key_value_heads=4,
            tie_word_embeddings=True,
            eos_token_id=None,
        )
        model = Qwen2ForCausalLM(config)
        cached = 2 * self.layers * self.width * 4
        return model, ModelShape(model.num_parameters(), self.layers, self.width, 4, cached)

    def __str__(self) -> str:
        return f"{self.layers} layers of {self.width}, {self.words:,} words"


SMALL, MIDDLE, LARGE = Size(96, 3, 1000), Size(256, 4, 4000), Size(512, 6, 8000)
LARGEST = Size(1024, 8, 8000)


def make_units(length: int, words: int) -> list[SampleUnit]:
    rng, ones = np.random.default_rng(0), np.ones(length, np.float32)
    weight = np.where(np.arange(length) > 0, ones, 0)
    texts = [rng.integers(0, words, length) for _ in range(TOKENS // length)]
    return [(Sample(ids, weight, ones, -ones, -ones, -ones),) for ids in texts]


def training(size: Size, length: int) -> tuple[Callable[[], object], Callable[[Device], float]]:
    """Return a step of reinforcement learning, and its formula."""
    model, shape = size.make()
    trainer = Trainer(model, Optim(lr=1e-5, micro_batch_tokens=TOKENS // 2), 1000)
    units = make_units(length, size.words)

    def formula(device: Device) -> float:
        return TrainingCost(device, 1, TOKENS // 2).step_seconds(
            shape, TOKENS, length, ForwardPasses()
        )

    return lambda: trainer.step(units, PolicyGradientLoss(), 1.0), formula


def sampling(size: Size, rows: int) -> tuple[Callable[[], object], Callable[[Device], float]]:
    """Return a function that samples concurrent turns of all rows, and its formula."""
    model, shape = size.make()
    engine = LocalEngine(model.eval(), Decimal(), max_num_seqs=rows)
    rng = np.random.default_rng(0)

    async def turns() -> None:
        prompts = rng.integers(1, size.words, (rows, PROMPT)).tolist()
        calls = [
            engine.generate(prompt, SamplingParams(TURN, seed=row), str(row))
            for row, prompt in enumerate(prompts)
        ]
        await asyncio.gather(*calls)
        for row in range(rows):
            engine.release(str(row))

    def formula(device: Device) -> float:
        speed = Roofline(shape, device)
        held = rows * (PROMPT + TURN / 2)
        return TURN * speed.decode_seconds(rows, held) + speed.prefill_seconds(rows * PROMPT)

    return lambda: asyncio.run(turns()), formula


def cases() -> Iterator[tuple[str, Callable[[], object], Callable[[Device], float]]]:
    for size, length in ((SMALL, 256), (MIDDLE, 512), (LARGE, 512), (LARGE, 2048), (LARGEST, 512)):
        yield f"a step, {size}, texts of {length}", *training(size, length)
    for size, rows in (
        (SMALL, 64),
        (LARGE, 1),
        (LARGE, 8),
        (LARGE, 64),
        (LARGEST, 1),
        (LARGEST, 64),
    ):
        yield f"{TURN} tokens of {rows} rows, {size}", *sampling(size, rows)


def main(repeats: int = 5) -> None:
    torch.set_num_threads(1)
    print("| work | measured, s | formula, s | ratio (from, to) |\n|---|---|---|---|")
    for name, work, formula in cases():
        work()
        measured, expected = [], []
        for _ in range(repeats):
            expected.append(formula(measure_cpu()))
            began = time.perf_counter()
            work()
            measured.append(time.perf_counter() - began)
        ratios = [seconds / had for seconds, had in zip(measured, expected, strict=True)]
        print(
            f"| {name} | {statistics.median(measured):.3f} | {statistics.median(expected):.3f}"
            f" | {statistics.median(ratios):.2f} ({min(ratios):.2f}, {max(ratios):.2f}) |",
            flush=True,
        )


if __name__ == "__main__":
    typer.run(main)
