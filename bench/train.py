"""Compare training steps with TRL's on the same model and tokens: GRPO and supervised.

    pip install trl
    python bench/train.py [--step grpo|sft] [--groups 1] [--group 64] [--prompt 236] [--answer 40]
                          [--common 0] [--shortest N] [--by-length]
                          [--shape small|smollm2|smollm2-360m]
                          [--features 128] [--layers 4] [--words 512]
                          [--dtype float32|bfloat16] [--recompute | --no-recompute]
                          [--rows 8] [--micro-tokens 4096] [--threads 1] [--repeats 5]

The two alternate: each optimiser step of TRL's trainer is followed by one of fieldcraft. A GRPO
step starts with given rollouts and rewards and ends with new weights. TRL gets the rollouts from
its `rollout_func`, whose processing is included; fieldcraft starts with trajectories. Supervised
examples have from SHORTEST (default: half) to all of PROMPT + ANSWER tokens, of which the last
ANSWER are trained. All start with the same COMMON tokens, like instructions. With `--by-length` TRL
gets them sorted by length. `--rows` and `--micro-tokens` are the micro-batches of TRL and
fieldcraft: give each its fastest. TRL recomputes activations in the backward pass, its default,
unless `--no-recompute` is given. `--shape smollm2` or `smollm2-360m` is the shape of SmolLM2-135M
or 360M, instead of FEATURES, LAYERS and WORDS. Both compute in DTYPE and store float32 weights: TRL
by autocast. Loss and gradient norm of the first step show that both compute the same. The peak is
the maximum memory of a step above the memory in use at its start (Linux). Seconds are CPU time,
which depends less on other programs; on a GPU they are wall time.
"""

from __future__ import annotations

import logging
import statistics
import tempfile
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import (
    PreTrainedTokenizerFast,
    PrinterCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

from _record import RECORD_HELP, append_record
from _shapes import Shape, make_model
from _step_costs import StepCosts
from fieldcraft.config.rl import Rl
from fieldcraft.config.sections import Optim
from fieldcraft.train.algorithm import PolicyGradient, StepModels
from fieldcraft.train.batch import SampleUnit, to_samples
from fieldcraft.train.learner import PolicyLearner
from fieldcraft.train.losses import CrossEntropyLoss
from fieldcraft.train.trainer import Trainer
from fieldcraft.types import Author, Segment, Task, Trajectory

RATE = 1e-5


class Step(StrEnum):
    GRPO = "grpo"
    SFT = "sft"


class Number(StrEnum):
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


def make_tokenizer(words: int) -> PreTrainedTokenizerFast:
    """Return a tokenizer, which TRL requires although the tokens are given."""
    known = {"<pad>": 0, "<eos>": 1} | {f"w{i}": i for i in range(2, words)}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(known, unk_token="<pad>")),
        pad_token="<pad>",
        eos_token="<eos>",
    )


def make_rollouts(
    groups: int, group: int, prompt: int, answer: int, words: int
) -> list[list[Trajectory]]:
    """Return rollouts of random tokens; half of the rewards of a group are 1."""
    rng = np.random.default_rng(0)
    found = []
    for place in range(groups):
        task = Task(str(place), "", ())
        asked = Segment(Author.PROMPT, rng.integers(2, words, prompt).tolist(), "")
        said = [
            Segment(Author.POLICY, rng.integers(2, words, answer).tolist(), "")
            for _ in range(group)
        ]
        found.append(
            [Trajectory(task, [asked, s], reward=float(m % 2)) for m, s in enumerate(said)]
        )
    return found


def write_logprobs(rollouts: Sequence[Sequence[Trajectory]], trainer: Trainer) -> None:
    """Set the log-probabilities of the trained model, which is also the sampling policy."""
    for rollout in (rollout for group in rollouts for rollout in group):
        unit = to_samples(rollout, {Author.POLICY})
        trainer.fill_logprobs([unit], "old_logp", 1.0)
        said = rollout.segments[1]
        said.logprobs = unit[0].old_logp[-len(said.ids) :].tolist()


def make_examples(
    count: int, common: int, shortest: int, prompt: int, answer: int, words: int
) -> list[Trajectory]:
    rng = np.random.default_rng(0)
    instructions = rng.integers(2, words, common)
    examples = []
    for place in range(count):
        length = int(rng.integers(shortest, prompt + answer + 1)) - answer
        asked, said = rng.integers(2, words, length), rng.integers(2, words, answer)
        asked[:common] = instructions[:length]
        segments = [
            Segment(Author.PROMPT, asked.tolist(), ""),
            Segment(Author.POLICY, said.tolist(), ""),
        ]
        examples.append(Trajectory(Task(str(place), "", ()), segments))
    return examples


def our_grpo(
    model: Any, rollouts: Sequence[Sequence[Trajectory]], optim: Optim, dtype: torch.dtype
) -> Callable[[], dict[str, float]]:
    settings = Rl(
        steps=1000,
        algorithm="grpo",
        advantage_scale="none",
        questions_per_step=len(rollouts),
        group_size=len(rollouts[0]),
        optim=optim,
    )
    trainer = Trainer(model, optim, 1000, dtype=dtype)
    write_logprobs(rollouts, trainer)
    learner = PolicyLearner(
        settings=settings,
        algorithm=PolicyGradient(settings),
        models=StepModels(policy=trainer),
        total_tokens=1,
        seed=0,
    )
    steps = iter(range(1000))
    return lambda: learner.learn(rollouts, next(steps)).metrics


def our_sft(
    model: Any, examples: Sequence[Trajectory], optim: Optim, dtype: torch.dtype
) -> Callable[[], dict[str, float]]:
    trainer = Trainer(model, optim, 1000, dtype=dtype)
    units: list[SampleUnit] = [to_samples(example, {Author.POLICY}) for example in examples]
    total = float(sum(sample.weight.sum() for unit in units for sample in unit))
    return lambda: trainer.step(units, CrossEntropyLoss(), total)


def peer_settings(
    rows: int, batch: int, rounds: int, folder: str, dtype: torch.dtype, recompute: bool
) -> dict[str, Any]:
    """Return TRL settings equal to ours: constant rate, no decay, norm clipped at 1, no files."""
    return {
        "output_dir": folder,
        "use_cpu": not torch.cuda.is_available(),
        "bf16": dtype == torch.bfloat16,
        "gradient_checkpointing": recompute,
        "learning_rate": RATE,
        "lr_scheduler_type": "constant",
        "adam_beta2": 0.95,
        "max_grad_norm": 1.0,
        "per_device_train_batch_size": rows,
        "gradient_accumulation_steps": batch // rows,
        "max_steps": rounds,
        "save_strategy": "no",
        "report_to": [],
        "logging_steps": 1,
        "disable_tqdm": True,
    }


def grpo_of_trl(
    model: Any, rollouts: Sequence[Sequence[Trajectory]], settings: dict[str, Any]
) -> GRPOTrainer:
    members = [member for group in rollouts for member in group]
    by_prompt = {str(place): iter(()) for place in range(len(rollouts))}

    def give(prompts: list[str], trainer: Any) -> dict[str, Any]:
        """Return the rollouts of the prompts in order."""
        given = {name: iter(rollouts[int(name)]) for name in by_prompt}
        chosen = [next(given[prompt]) for prompt in prompts]
        return {
            "prompt_ids": [t.segments[0].ids for t in chosen],
            "completion_ids": [t.segments[1].ids for t in chosen],
            "logprobs": [t.segments[1].logprobs for t in chosen],
            "gained": [t.reward for t in chosen],
        }

    def reward(gained: list[float], **_: Any) -> list[float]:
        return gained

    words = model.config.vocab_size
    args = GRPOConfig(
        **settings,
        num_generations=len(rollouts[0]),
        max_completion_length=len(members[0].segments[1].ids),
        loss_type="grpo",
        scale_rewards="none",
        beta=0.0,
        shuffle_dataset=False,
    )
    return GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=args,
        train_dataset=Dataset.from_dict({"prompt": list(by_prompt)}),
        processing_class=make_tokenizer(words),
        rollout_func=give,
    )


def sft_of_trl(model: Any, examples: Sequence[Trajectory], settings: dict[str, Any]) -> SFTTrainer:
    data = Dataset.from_list(
        [
            {
                "input_ids": t.ids,
                "completion_mask": [
                    int(s.author is Author.POLICY) for s in t.segments for _ in s.ids
                ],
            }
            for t in examples
        ]
    )
    args = SFTConfig(
        **settings,
        max_length=None,
        packing=False,
        completion_only_loss=True,
        train_sampling_strategy="sequential",
    )
    words = model.config.vocab_size
    return SFTTrainer(
        model=model, args=args, train_dataset=data, processing_class=make_tokenizer(words)
    )


class TakingTurns(TrainerCallback):
    """Callback that runs a step of fieldcraft after each step of TRL's trainer."""

    def __init__(self, ours: Callable[[], dict[str, float]]) -> None:
        self.ours = ours
        self.spent = {"TRL": StepCosts(), "fieldcraft": StepCosts()}
        self.first: dict[str, tuple[float, float]] = {}

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self.spent["TRL"].begin()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self.spent["TRL"].end()
        self.spent["fieldcraft"].begin()
        row = self.ours()
        self.spent["fieldcraft"].end()
        self.first.setdefault("fieldcraft", (row["loss"], row["grad_norm"]))

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any],
        **_: Any,
    ) -> None:
        if "grad_norm" in logs:
            self.first.setdefault("TRL", (logs["loss"], logs["grad_norm"]))


def main(
    step: Step = Step.GRPO,
    groups: int = 1,
    group: int = 64,
    prompt: int = 236,
    answer: int = 40,
    common: int = 0,
    shortest: int | None = None,
    by_length: bool = False,
    features: int = 128,
    layers: int = 4,
    words: int = 512,
    shape: Shape = Shape.SMALL,
    dtype: Number = Number.FLOAT32,
    recompute: bool = True,
    rows: int = 8,
    micro_tokens: int = 4096,
    threads: int = 1,
    repeats: int = 5,
    record: Annotated[Path | None, typer.Option(help=RECORD_HELP)] = None,
) -> None:
    if groups * group % rows:
        raise SystemExit(f"{groups * group} rollouts are not a multiple of {rows}: change --rows.")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    torch.set_num_threads(threads)
    optim = Optim(lr=RATE, micro_batch_tokens=micro_tokens)
    ours, theirs = (make_model(shape, features, layers, words) for _ in range(2))
    words, number = ours.config.vocab_size, getattr(torch, dtype)
    rounds = 1 + repeats  # the first is not counted: allocations, selection of kernels
    with tempfile.TemporaryDirectory() as folder:
        settings = peer_settings(rows, groups * group, rounds, folder, number, recompute)
        trainer: GRPOTrainer | SFTTrainer
        if step is Step.GRPO:
            rollouts = make_rollouts(groups, group, prompt, answer, words)
            turns = TakingTurns(our_grpo(ours, rollouts, optim, number))
            trainer = grpo_of_trl(theirs, rollouts, settings)
        else:
            least = (prompt + answer) // 2 if shortest is None else shortest
            examples = make_examples(groups * group, common, least, prompt, answer, words)
            turns = TakingTurns(our_sft(ours, examples, optim, number))
            ordered = sorted(examples, key=lambda t: len(t.ids)) if by_length else examples
            trainer = sft_of_trl(theirs, ordered, settings)
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(turns)
        trainer.train()
    print(f"\n{step.value}: {groups} x {group}, {prompt} + {answer} tokens, {threads} thread(s)")
    print_spent(turns)
    if record is not None:
        spent = turns.spent.items()
        append_record(
            record,
            {name: statistics.median(costs.seconds[1:]) for name, costs in spent},
            {name: max(costs.bytes[1:]) for name, costs in spent},
        )


def print_spent(turns: TakingTurns) -> None:
    print("| | seconds | ratio to fieldcraft | peak MB | first loss | first gradient norm |")
    print("|---|---|---|---|---|---|")
    ours = statistics.median(turns.spent["fieldcraft"].seconds[1:])
    for name, spent in turns.spent.items():
        taken = spent.seconds[1:]
        median = statistics.median(taken)
        spread = f"{median:.3f} ({min(taken):.3f} to {max(taken):.3f})"
        loss, norm = turns.first[name]
        peak = max(spent.bytes[1:]) / 1e6
        print(f"| {name} | {spread} | {median / ours:.2f} | {peak:.0f} | {loss:.5f} | {norm:.5f} |")


if __name__ == "__main__":
    typer.run(main)
