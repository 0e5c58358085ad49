"""Compare the local engine with a plain generate loop, and measure the cost of a slow tool.

    python bench/engine.py [--device cpu] [--threads 2] [--repeats 5]

The model is a random Qwen3 of the size that learns the worlds. Rollouts mimic search: a prompt of
about 20 tokens shared by a group of 8, two or three turns of about 15 tokens, and observations of
about 30 tokens between them. Lengths are sampled once, so all contenders do the same work.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import typer
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from fieldcraft.engine.local.engine import LocalEngine
from fieldcraft.sampling import SamplingParams

VOCABULARY = 350
GROUP = 8
GREEDY = {"do_sample": False}
# With log-probabilities, as in the engine, because reinforcement learning needs them.
SAMPLED = {"do_sample": True, "temperature": 1.0, "top_k": 0, "output_logits": True}


class Decimal:
    """A tokenizer that renders ids as numbers: nothing here depends on text."""

    eos_token_id = 0
    chat_template = None

    def encode(self, text: str, **_: object) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, ids: Sequence[int], **_: object) -> str:
        return " ".join(map(str, ids))


@dataclass(frozen=True)
class Script:
    """Script of a rollout: given tokens, and lengths of turns."""

    prompt: list[int]
    turns: list[int]  # tokens sampled in each turn
    observations: list[list[int]]  # one fewer than turns


def make_scripts(count: int) -> list[Script]:
    rng = np.random.default_rng(0)

    def tokens(low: int, high: int) -> list[int]:
        return rng.integers(1, VOCABULARY, rng.integers(low, high + 1)).tolist()

    scripts = []
    for index in range(count):
        prompt = tokens(15, 25) if index % GROUP == 0 else scripts[-1].prompt
        turns = rng.integers(10, 21, rng.integers(2, 4)).tolist()
        scripts.append(Script(prompt, turns, [tokens(20, 40) for _ in turns[1:]]))
    return scripts


def make_model(device: str) -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        initializer_range=0.2,  # so that greedy continuations are not all the same token
        bos_token_id=None,
        eos_token_id=None,  # the script determines the end of turns
        pad_token_id=0,
    )
    return Qwen3ForCausalLM(config).eval().to(device)


def with_generate(
    model: PreTrainedModel, scripts: list[Script], batch: int, **options: Any
) -> list[list[int]]:
    """Sample batches of rollouts turn by turn, left-padded, with the history computed again."""
    histories = []
    for first in range(0, len(scripts), batch):
        chosen = scripts[first : first + batch]
        ids = [list(script.prompt) for script in chosen]
        for turn in range(max(len(script.turns) for script in chosen)):
            running = [i for i, script in enumerate(chosen) if turn < len(script.turns)]
            width = max(len(ids[i]) for i in running)
            padded = torch.tensor([[0] * (width - len(ids[i])) + ids[i] for i in running])
            real = torch.tensor([[0] * (width - len(ids[i])) + [1] * len(ids[i]) for i in running])
            out = model.generate(
                padded.to(model.device),
                attention_mask=real.to(model.device),
                max_new_tokens=max(chosen[i].turns[turn] for i in running),
                return_dict_in_generate=True,
                **options,
            )
            if out.logits is not None:
                model.compute_transition_scores(out.sequences, out.logits, normalize_logits=True)
            for i, row in zip(running, out.sequences[:, width:].tolist(), strict=True):
                ids[i] += row[: chosen[i].turns[turn]]
                ids[i] += chosen[i].observations[turn] if turn + 1 < len(chosen[i].turns) else []
        histories += ids
    return histories


async def with_engine(
    engine: LocalEngine, scripts: list[Script], temperature: float, tool_seconds: float
) -> list[list[int]]:
    async def rollout(index: int, script: Script) -> list[int]:
        ids = list(script.prompt)
        for turn, length in enumerate(script.turns):
            sampling = SamplingParams(length, temperature, seed=index)
            ids += (await engine.generate(ids, sampling, str(index))).ids
            if turn + 1 < len(script.turns):
                if tool_seconds:
                    await asyncio.sleep(tool_seconds)
                ids += script.observations[turn]
        engine.release(str(index))
        return ids

    return await asyncio.gather(*(rollout(i, script) for i, script in enumerate(scripts)))


def alternating_seconds(
    runs: dict[str, Callable[[], list[list[int]]]], repeats: int
) -> dict[str, list[float]]:
    """Alternate the contenders, so that temporary load of the machine affects all of them."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()  # excludes allocations and the selection of kernels
    for _ in range(repeats):
        for name, run in runs.items():
            began = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - began)
    return times


def median_seconds(run: Callable[[], object], repeats: int) -> float:
    run()  # excludes allocations and the selection of kernels
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def main(device: str = "cpu", threads: int = 2, repeats: int = 5) -> None:
    torch.set_num_threads(threads)
    model = make_model(device)
    scripts = make_scripts(256)

    def engine_run(count: int, temperature: float, tool_seconds: float = 0.0) -> list[list[int]]:
        engine = LocalEngine(model, Decimal(), max_num_seqs=256)
        return asyncio.run(with_engine(engine, scripts[:count], temperature, tool_seconds))

    print(f"{device}, {threads} threads, torch {torch.__version__}, median of {repeats} runs\n")
    print("| concurrent rollouts | contender | tokens/s | slowest, fastest |\n|---|---|---|---|")
    for count in (32, 128, 256):
        sampled = sum(sum(script.turns) for script in scripts[:count])
        contenders: dict[str, Callable[[], list[list[int]]]] = {
            "model.generate, greedy": lambda n=count: with_generate(
                model, scripts[:n], n, **GREEDY
            ),
            "model.generate, sampled": lambda n=count: with_generate(
                model, scripts[:n], n, **SAMPLED
            ),
            "LocalEngine, greedy": lambda n=count: engine_run(n, 0.0),
            "LocalEngine, sampled": lambda n=count: engine_run(n, 1.0),
        }
        for name, times in alternating_seconds(contenders, repeats).items():
            median, slowest, fastest = statistics.median(times), max(times), min(times)
            spread = f"{sampled / slowest:,.0f}, {sampled / fastest:,.0f}"
            print(f"| {count} | {name} | {sampled / median:,.0f} | {spread} |")
    pairs = zip(with_generate(model, scripts, 32, **GREEDY), engine_run(256, 0.0), strict=True)
    same = sum(ids == expected for expected, ids in pairs)
    print(f"\n{same} of 256 greedy rollouts have identical tokens.\n")

    calls = max(len(script.observations) for script in scripts[:16])
    immediate = median_seconds(lambda: engine_run(16, 1.0), repeats)
    slow = median_seconds(lambda: engine_run(16, 1.0, tool_seconds=0.5), repeats)
    print(f"| 16 rollouts, up to {calls} tool calls | seconds |\n|---|---|")
    print(f"| the tool responds immediately | {immediate:.2f} |\n| after 0.5 s | {slow:.2f} |")
    print(f"| additional waiting, besides the calls | {slow - immediate - 0.5 * calls:.2f} |")


if __name__ == "__main__":
    typer.run(main)
