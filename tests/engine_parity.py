"""Reference for the local engine: plain forward passes of the same model."""

import asyncio
import copy
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    LogitsProcessorList,
    MinPLogitsWarper,
    PreTrainedModel,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from checkpoints import Architecture, tiny_tokenizer, write_tiny_checkpoint
from fieldcraft.engine.local.engine import LocalEngine
from fieldcraft.sampling import Completion, SamplingParams, Truncation

# For such small models a second thread gains nothing; on a busy machine it costs a factor of ten.
torch.set_num_threads(1)


def sharp_model(folder: Path, architecture: Architecture) -> PreTrainedModel:
    """Return a tiny model with weights so large that every token of the history matters."""
    write_tiny_checkpoint(folder, architecture)
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(10)
    return model


def random_ids(count: int, seed: int) -> list[int]:
    """Return ordinary tokens of the tiny tokenizer."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, 400, (count,), generator=generator).tolist()


TOKENIZER = tiny_tokenizer()
PROMPT = random_ids(20, seed=1)


@torch.no_grad()
def plain_logprobs(
    model: PreTrainedModel, prompt: list[int], ids: list[int], temperature: float
) -> torch.Tensor:
    """Return the log-probabilities [len(ids), V] of the token after `prompt` and after each of
    `ids`, from one forward pass without a cache. A temperature of 0 counts as 1."""
    whole = torch.tensor([prompt + ids], device=model.device)
    logits = model(whole).logits[0, len(prompt) - 1 : -1].float().cpu()
    return (logits / (temperature or 1.0)).log_softmax(-1)


def of_transformers(logits: torch.Tensor, limits: Truncation, temperature: float) -> torch.Tensor:
    """Return the log-probabilities of logits [N, V] by the processors of transformers, in the order
    of vLLM."""
    warpers = LogitsProcessorList()
    if limits.min_p:
        warpers.append(MinPLogitsWarper(limits.min_p))
    if limits.top_k:
        warpers.append(TopKLogitsWarper(limits.top_k))
    if limits.top_p < 1:
        warpers.append(TopPLogitsWarper(limits.top_p))
    nothing = torch.zeros(len(logits), 1, dtype=torch.long)
    return warpers(nothing, logits.float() / temperature).log_softmax(-1)


def gather(*calls: Coroutine[Any, Any, Completion]) -> list[Completion]:
    """Run calls concurrently in a separate event loop."""

    async def run() -> list[Completion]:
        return await asyncio.gather(*calls)

    return asyncio.run(run())


def check(engine: LocalEngine, prompt: list[int], completion: Completion) -> None:
    """Check that a greedy completion equals plain forward passes."""
    expected = plain_logprobs(engine.model, prompt, completion.ids, 0.0)
    assert completion.ids == expected.argmax(1).tolist()
    assert torch.allclose(torch.tensor(completion.logprobs), expected.amax(1), atol=1e-3)


@dataclass
class Rollout:
    """Turns of a session, each with the ids that it continued."""

    session: str
    temperature: float
    turns: list[tuple[list[int], Completion]] = field(default_factory=list)

    async def run(self, engine: LocalEngine, prompt: list[int], lengths: list[int]) -> None:
        """Sample turns of these lengths, with observations of the given numbers of tokens between
        them."""
        ids, seed = list(prompt), len(prompt)
        for length in lengths:
            sampling = SamplingParams(length, self.temperature, seed=seed)
            completion = await engine.generate(ids, sampling, self.session)
            self.turns.append((ids, completion))
            seed += 1
            ids = [*ids, *completion.ids, *random_ids(length, seed)]
            for _ in range(seed % 5):  # tools take different times
                await asyncio.sleep(0)

    def check(self, model: PreTrainedModel, tolerance: float) -> None:
        for prompt, completion in self.turns:
            expected = plain_logprobs(model, prompt, completion.ids, self.temperature)
            chosen = expected.gather(1, torch.tensor(completion.ids)[:, None])[:, 0]
            worst = (torch.tensor(completion.logprobs) - chosen).abs().max()
            assert worst < tolerance, (self.session, worst)
            if self.temperature == 0:
                assert (expected.amax(1) - chosen).max() < tolerance


def mixed_rollouts(engine: LocalEngine, count: int) -> list[Rollout]:
    """Run `count` sessions of 1 to 3 turns concurrently: short and long, greedy and sampled, some
    with the same prompt."""
    temperatures = (0.0, 1.0, 0.6)
    rollouts = [Rollout(str(i), temperatures[i % 3]) for i in range(count)]

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            for i, rollout in enumerate(rollouts):
                prompt = random_ids(1 + (i * 37) % 90 + 150 * (i % 16 == 5), seed=i // 2 * 2)
                lengths = [3 + (i * 7 + turn * 5) % 17 for turn in range(1 + i % 3)]
                group.create_task(rollout.run(engine, prompt, lengths))

    asyncio.run(run())
    return rollouts


@torch.no_grad()
def changed(model: Any, factor: float) -> Any:
    """Return a different policy."""
    other = copy.deepcopy(model)
    for name, weight in other.named_parameters():
        if "layers" in name and weight.ndim == 2:
            weight.mul_(factor)
    return other


def take_over(model: Any, other: Any) -> None:
    model.load_state_dict(other.state_dict())


def check_spans(
    policies: Sequence[Any], ids: list[int], done: Completion, tolerance: float = 1e-4
) -> None:
    """Check that every token has the log-probability under the policy of its span after all
    previous tokens, so no keys and values of another policy remain. `policies` are the models by
    version; the temperature is 1."""
    assert sum(count for _, count in done.versions) == len(done.ids)
    ends = list(accumulate(count for _, count in done.versions))
    for (version, count), end in zip(done.versions, ends, strict=True):
        expected = plain_logprobs(policies[version], ids, done.ids, 1.0)
        of_span = expected[torch.arange(end - count, end), done.ids[end - count : end]]
        assert done.logprobs[end - count : end] == pytest.approx(of_span.tolist(), abs=tolerance)
