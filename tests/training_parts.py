"""Tiny models, trainers and samples for the tests of training."""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel

from checkpoints import Architecture, tiny_tokenizer
from engine_parity import sharp_model
from fieldcraft.concurrency import run_concurrently
from fieldcraft.config.sections import BudgetConfig, Optim
from fieldcraft.config.stages import Stage
from fieldcraft.engine.local.engine import LocalEngine
from fieldcraft.environments.simulators import PolicySimulator
from fieldcraft.environments.tool_environment import ToolEnvironment
from fieldcraft.environments.turns import Policy
from fieldcraft.extensions.methods.autocoa import AutoCoADialect
from fieldcraft.records.events import EventBus, EventCallback, ignore_event, write_metrics
from fieldcraft.train.algorithm import StepModels
from fieldcraft.train.batch import Sample, SampleUnit, TokenRun, to_sample
from fieldcraft.train.collapse_detector import CollapseDetector
from fieldcraft.train.critic import Critic
from fieldcraft.train.loop import run_steps
from fieldcraft.train.packed_attention import packed_attention_forward
from fieldcraft.train.sampler import RolloutSampler
from fieldcraft.train.stages.base import StageInputs, StepMetrics, TrainingStage
from fieldcraft.train.stages.rl import RlStage
from fieldcraft.train.stages.roles import make_algorithm
from fieldcraft.train.trainer import Trainer
from fieldcraft.types import Answer, Author, Task, ToolCall, ToolCalls, Trajectory


def rl_stage(
    *,
    trainer: Any,
    reference: Any = None,
    critic: Critic | None = None,
    fidelity: Callable[[Sequence[Trajectory]], StepMetrics] = lambda _: {},
    **sampling: Any,
) -> RlStage:
    """Return a stage of reinforcement learning over a sampler of the other arguments."""
    return RlStage(
        sampler=RolloutSampler(**sampling),
        algorithm=make_algorithm(sampling["settings"]),
        models=StepModels(policy=trainer, reference=reference, critic=critic),
        measure_fidelity=fidelity,
    )


def step(stage: TrainingStage, number: int) -> StepMetrics:
    """Run one step of a stage in a separate event loop."""
    return asyncio.run(stage.step(number))


class Steps(TrainingStage):
    """Stage whose steps are a function, with a state that it changes."""

    def __init__(
        self,
        trainer: Trainer,
        step: Callable[[int], StepMetrics],
        state: dict[str, Any] | None = None,
        watch: CollapseDetector | None = None,
    ) -> None:
        self.trainer = trainer
        self.collapse_detector = watch
        self.one = step
        self.state = state if state is not None else {}

    @classmethod
    async def create(cls, settings: Any, material: StageInputs) -> Self:
        raise AssertionError("it is made by hand")

    async def step(self, number: int) -> StepMetrics:
        return self.one(number)

    def state_dict(self) -> StepMetrics:
        return dict(self.state)

    def load_state_dict(self, state: StepMetrics) -> None:
        self.state.update(state)


def run_stage(
    stage: TrainingStage,
    settings: Stage,
    folder: Path,
    tokenizer: Any = None,
    callback: EventCallback = ignore_event,
) -> list[StepMetrics]:
    """Run all steps of a stage, with its metrics on disk as in a run."""
    events = EventBus([write_metrics, callback])
    work = run_steps(
        stage,
        settings,
        folder,
        tokenizer or tiny_tokenizer(),
        events,
        find_early_stop=lambda: events.early_stop,
    )
    return asyncio.run(work)


def make_trainer(
    folder: Path, architecture: Architecture = "qwen3", steps: int = 10, **optim: Any
) -> Trainer:
    """Return a float32 model in which every weight matters, and its trainer."""
    settings = Optim(**{"lr": 1e-2, **optim})
    return Trainer(sharp_model(folder, architecture), settings, steps)


def random_samples(count: int, seed: int = 0, longest: int = 30) -> list[Sample]:
    """Return sequences of different lengths; the first third of each is a prompt, the rest has
    random weights, advantages and log-probabilities."""
    rng = np.random.default_rng(seed)

    def floats(low: float, high: float, size: int) -> Any:
        return rng.uniform(low, high, size).astype(np.float32)

    samples = []
    for length in rng.integers(6, longest, count):
        size = int(length)
        weight = floats(0.5, 1.5, size)
        weight[: size // 3] = 0
        weight[rng.random(size) < 0.2] = 0  # gaps, like observations
        weight[-1] = 1
        logp = floats(-6, -4, size)
        samples.append(
            Sample(
                ids=rng.integers(3, 400, size),
                weight=weight,
                advantage=floats(-1, 1, size),
                sampled_logp=logp,
                old_logp=logp + floats(-0.2, 0.2, size),
                ref_logp=logp + floats(-0.2, 0.2, size),
            )
        )
    return samples


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def assert_same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    """Assert that two results are equal bit for bit."""
    assert a.keys() == b.keys()
    assert [name for name in a if not torch.equal(a[name], b[name])] == []


class Largest(TorchDispatchMode):
    """Size of the largest tensor that any operation created."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        sizes = [t.numel() for t in tree_leaves(made) if isinstance(t, torch.Tensor)]
        self.size = max([self.size, *sizes])
        return made


@torch.no_grad()
def plain_logprobs_of(
    model: PreTrainedModel, ids: Sequence[int], temperature: float = 1.0
) -> torch.Tensor:
    """Return the log-probability of every token but the first, by one forward pass of this
    sequence."""
    logits = model(torch.tensor([list(ids)])).logits[0, :-1].float() / temperature
    return logits.log_softmax(-1).gather(1, torch.tensor(list(ids[1:]))[:, None])[:, 0]


class FixedTool:
    """Tool `search` that answers by a function and records its queries."""

    name = "search"
    schema: dict[str, Any] = {"type": "function", "function": {"name": "search", "parameters": {}}}  # noqa: RUF012

    def __init__(self, answer: Callable[[str], str]) -> None:
        self.answer = answer
        self.queries: list[str] = []

    async def __call__(self, **arguments: Any) -> str:
        self.queries.append(arguments["query"])
        return self.answer(arguments["query"])


def never(query: str) -> str:
    raise AssertionError("no tool may be called")


@dataclass(frozen=True)
class Chatty(AutoCoADialect):
    """Dialect in which any text of a random model is a search, up to the third turn."""

    stop_strings = ("e", "t", " ")

    def parse(self, turns: Sequence[str]) -> Answer | ToolCalls | None:
        if len(turns) > 2:
            return Answer(turns[-1])
        return (ToolCall("search", {"query": turns[-1]}),)


def chatty_engine(trainer: Trainer, eos: int = 20) -> LocalEngine:
    """Return an engine on the trainer's model that also ends a turn at any of the ids below `eos`,
    since a random model seldom emits the actual end token."""
    trainer.model.generation_config.eos_token_id = list(range(3, 3 + eos))
    return LocalEngine(trainer.model, tiny_tokenizer(), max_num_seqs=16)


OBSERVATION = "result 1: Ada Lind was born in Northport."
CHATTY_ROLLOUTS = 24


def chatty_rollouts(
    engine: LocalEngine, temperature: float, simulated: bool = False
) -> list[Trajectory]:
    tool = FixedTool(never if simulated else lambda query: OBSERVATION)
    policy = Policy(engine=engine, temperature=temperature)
    env = ToolEnvironment(
        Chatty(tiny_tokenizer(), ""),
        [tool],
        BudgetConfig(max_turn_tokens=12, max_context_tokens=400),
        PolicySimulator(policy) if simulated else None,
    )
    jobs = [
        (Task(str(i), f"Who was born in Northport {i}?", ("x",)), str(i))
        for i in range(CHATTY_ROLLOUTS)
    ]
    return asyncio.run(run_concurrently(jobs, lambda t, k: env.run(t, policy, k), CHATTY_ROLLOUTS))


def assert_agree(trainer: Trainer, done: list[Trajectory], temperature: float) -> list[SampleUnit]:
    """Assert that the two log-probabilities are equal on every policy token and defined on no
    other."""
    units: list[SampleUnit] = [(to_sample(t, {Author.POLICY}, 1.0),) for t in done]
    trainer.fill_logprobs(units, "old_logp", temperature)
    for trajectory, (sample,) in zip(done, units, strict=True):
        by_policy = [s.author is Author.POLICY for s in trajectory.segments for _ in s.ids]
        end = len(sample)
        assert not any(by_policy[end:])
        assert sample.weight.tolist() == by_policy[:end]
        assert sample.ids.tolist() == trajectory.ids[:end]
        spoken = sample.weight > 0
        assert (sample.sampled_logp[spoken] < 0).all()
        np.testing.assert_allclose(
            sample.old_logp[spoken], sample.sampled_logp[spoken], rtol=0, atol=1e-3
        )
    return units


def random_forest(rng: random.Random, count: int) -> list[TokenRun]:
    runs: list[TokenRun] = []
    for number in range(count):
        start = runs[-1].end if runs else 0
        after = rng.randrange(number) if number and rng.random() < 0.6 else None
        runs.append(TokenRun(start, start + rng.randint(1, 9), after))
    return runs


def attended(
    runs: list[TokenRun],
    held: list[int] | None,
    seed: int,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> tuple[torch.Tensor, ...]:
    """Return the attention output for the given runs, and the gradients of queries, keys and
    values: four heads of dimension eight, two of which share keys and values."""
    generator = torch.Generator().manual_seed(seed)
    places = range(len(runs)) if held is None else held
    asking = sum(runs[p].size for p in places)
    shapes = (4, asking), (2, runs[-1].end), (2, runs[-1].end)
    query, key, value = (
        torch.randn(1, *shape, 8, generator=generator).to(device, dtype).requires_grad_()
        for shape in shapes
    )
    part: Any = (
        None if held is None else SimpleNamespace(local_runs=held, all_gather=lambda parts: parts)
    )
    out, _ = packed_attention_forward(
        torch.nn.Module(), query, key, value, None, runs=runs, context_shard=part, scaling=0.3
    )
    weights = torch.randn(out.shape, generator=generator).to(device)
    return out, *torch.autograd.grad((out * weights).sum(), (query, key, value))
