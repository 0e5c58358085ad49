"""Compare implementations of log-probabilities and entropies, forward and backward: all logits at
once, the output layer in chunks, and Liger's kernel if the package liger-kernel is installed.

    python bench/output_layer.py [--tokens 4096] [--features 896] [--words 152064] [--device cpu]
                                 [--threads 1] [--repeats 3] [--memory] [--pieces-only]

The loss is a sum of log-probabilities with random weights. The entropy is computed in addition
without a gradient, as reinforcement learning does by default. The contenders alternate. Liger has a
special kernel for Hopper GPUs, and computes in chunks of 512 tokens on others. With --memory each
contender runs in a separate process, and the output is its peak memory above the hidden states and
the gradients. With --pieces-only all logits at once are skipped, for numbers of tokens whose logits
do not fit.
"""

from __future__ import annotations

import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec

import torch
import typer
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax
from transformers import Qwen2Config, Qwen2ForCausalLM

from fieldcraft.train.output_layer import OutputLayer, TokenPredictions, score_tokens

TEMPERATURE = 0.9


@dataclass(frozen=True)
class Task:
    """Hidden states of a model that consists only of an output layer."""

    model: Qwen2ForCausalLM
    hidden_TH: Tensor
    targets_T: Tensor
    weight_T: Tensor

    @property
    def matrix(self) -> nn.Linear:
        return self.model.lm_head


def make_task(tokens: int, features: int, words: int, device: str) -> Task:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=words,
        hidden_size=features,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        tie_word_embeddings=False,
    )
    model = Qwen2ForCausalLM(config).to(device)
    hidden_TH = torch.randn(tokens, features, device=device, requires_grad=True)
    targets_T = torch.randint(0, words, (tokens,), device=device)
    return Task(model, hidden_TH, targets_T, torch.randn(tokens, device=device))


def all_at_once(task: Task) -> Tensor:
    logits_TV = task.matrix(task.hidden_TH).float() / TEMPERATURE
    logp_T = -cross_entropy(logits_TV, task.targets_T, reduction="none")
    with torch.no_grad():
        all_TV = log_softmax(logits_TV, dim=-1)
        entropy_T = -(all_TV.exp() * all_TV).sum(-1)
    (task.weight_T * logp_T).sum().backward()
    return torch.stack([logp_T.detach(), entropy_T])


def in_pieces(task: Task) -> Tensor:
    said = TokenPredictions(task.hidden_TH, OutputLayer(task.model), TEMPERATURE)
    scores = score_tokens(said, task.targets_T)
    (task.weight_T * scores.logp_T).sum().backward()
    return torch.stack([scores.logp_T.detach(), scores.entropy_T.detach()])


def by_liger(task: Task) -> Tensor:
    from liger_kernel.ops import LigerFusedLinearScaledCrossEntropyFunction as Liger

    loss_T, entropy_T = Liger.apply(
        task.hidden_TH, task.matrix.weight, task.targets_T, TEMPERATURE, return_entropy=True
    )
    (task.weight_T * -loss_T).sum().backward()
    return torch.stack([-loss_T.detach(), entropy_T.detach()])


CONTENDERS: dict[str, Callable[[Task], Tensor]] = {
    "all at once": all_at_once,
    "in chunks": in_pieces,
}
if find_spec("liger_kernel"):
    CONTENDERS["liger"] = by_liger


def measured(task: Task, run: Callable[[Task], Tensor]) -> tuple[float, list[Tensor]]:
    """Return the seconds, and the values and gradients."""
    task.hidden_TH.grad = task.matrix.weight.grad = None
    began = time.perf_counter()
    values = run(task)
    if values.is_cuda:
        torch.cuda.synchronize()
    taken = time.perf_counter() - began
    assert task.hidden_TH.grad is not None
    assert task.matrix.weight.grad is not None
    return taken, [values, task.hidden_TH.grad, task.matrix.weight.grad.clone()]


def peak(name: str, tokens: int, features: int, words: int, device: str) -> float:
    """Return the peak memory above the hidden states and the gradients, in GB."""
    torch.set_num_threads(1)
    task = make_task(tokens, features, words, device)
    measured(make_task(2, features, words, device), CONTENDERS[name])  # libraries allocate, too
    task.hidden_TH.grad = torch.zeros_like(task.hidden_TH)
    task.matrix.weight.grad = torch.zeros_like(task.matrix.weight)
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        CONTENDERS[name](task)
        return (torch.cuda.max_memory_allocated() - before) / 1e9
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    CONTENDERS[name](task)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 / 1e9


def main(
    tokens: int = 4096,
    features: int = 896,
    words: int = 152_064,
    device: str = "cpu",
    threads: int = 1,
    repeats: int = 3,
    memory: bool = False,
    pieces_only: bool = False,
) -> None:
    torch.set_num_threads(threads)
    print(
        f"{tokens} tokens, {features} features, {words} words, {device}, torch {torch.__version__}"
    )
    if memory:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, context, max_tasks_per_child=1) as pool:
            for name in list(CONTENDERS)[pieces_only:]:
                gigabytes = pool.submit(peak, name, tokens, features, words, device).result()
                print(f"{name}: {gigabytes:.2f} GB", flush=True)
        return
    if pieces_only:
        raise typer.BadParameter("--pieces-only has no effect without --memory: add it")
    for run in CONTENDERS.values():  # excludes imports and the selection of kernels
        measured(make_task(2, features, words, device), run)
    task = make_task(tokens, features, words, device)
    times: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    found: dict[str, list[Tensor]] = {}
    for _ in range(repeats):
        for name, run in CONTENDERS.items():
            taken, found[name] = measured(task, run)
            times[name].append(taken)
            print(f"{name}: {taken:.2f} s", flush=True)
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    exact = found["all at once"]
    for name, median in medians.items():
        ratio = medians["all at once"] / median
        print(f"{name}: median of {repeats}: {median:.2f} s, ratio {ratio:.2f}")
        for what, a, b in zip(("values", "hidden", "weight"), exact, found[name], strict=True):
            gap, largest = (a - b).abs().max(), a.abs().max()
            print(f"  largest difference of {what}: {gap:.1e} of {largest:.1e}")


if __name__ == "__main__":
    typer.run(main)
