"""Driver side of sharded training: proxies that call all ranks, each with its share of the units.

The ranks get equal numbers of tokens, and units with a common prefix are kept together.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, final

import torch

from fieldcraft.engine.model_files import write_tokenizer
from fieldcraft.extensions.cluster.sharding.specs import (
    CriticSpec,
    InitialAdapterSpec,
    PolicySpec,
    RankResult,
    ReferenceSpec,
)
from fieldcraft.records.files import get_temporary_path, make_folder, raise_write_errors
from fieldcraft.train.batch import SampleUnit, count_new_tokens, sort_by_prefix
from fieldcraft.train.losses import LossFunction
from fieldcraft.train.model import load_config
from fieldcraft.train.parity import probe_policy, require_export_parity
from fieldcraft.train.protocols import (
    ProbeResult,
    ReferenceModel,
    ScoresCallback,
    TeacherReference,
    ignore_scores,
)
from fieldcraft.train.saving import STATE_FILE, load_state

CPU = torch.device("cpu")
UNSUMMED_METRICS = (
    "grad_norm",
    "lr",
)  # every rank has the full value of these; others are sums over shares
MAX_LOAD_RATIO = 1.05  # maximum load of a rank, relative to the mean


class TrainerGroup(Protocol):
    """Group of processes with one `TrainerRank` each. `context_parallel` consecutive ranks share a
    micro-batch: the first ranks of micro-batches are 0, `context_parallel`, 2 `context_parallel`
    and so on."""

    @property
    def world_size(self) -> int: ...

    @property
    def context_parallel(self) -> int: ...

    def call(self, method: str, shares: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a method on all ranks at once, each with its own arguments, and return the results
        in rank order. Raises the UserError of a rank if one raises it."""
        ...


class _RankProxy:
    """Proxy of a model on the ranks, identified by its name."""

    def __init__(self, ranks: TrainerGroup, name: str) -> None:
        self.ranks = ranks
        self.name = name

    def _call_all(self, method: str, *arguments: Any) -> list[Any]:
        """Call all ranks with the same arguments."""
        return self.ranks.call(method, [arguments] * self.ranks.world_size)

    def _call_sharded(
        self,
        method: str,
        units: Sequence[SampleUnit],
        arguments: Callable[[list[SampleUnit]], tuple[Any, ...]],
    ) -> dict[str, float]:
        """Call each rank with the arguments for its share of the units. Changed sample fields are
        copied to the local samples; returns the combined metrics."""
        context = self.ranks.context_parallel
        assignments = balance_units(units, self.ranks.world_size // context)
        rank_arguments = [arguments(assigned) for assigned in assignments for _ in range(context)]
        results: list[RankResult] = self.ranks.call(method, rank_arguments)[::context]
        for assigned, result in zip(assignments, results, strict=True):
            samples = [sample for unit in assigned for sample in unit]
            for sample, changes in zip(samples, result.changes, strict=True):
                for field, values in changes.items():
                    setattr(sample, field, values)
        return sum_metrics(results)


class ShardedReference(_RankProxy):
    """Sharded read-only model; implements `protocols.ReferenceModel`."""

    def fill_logprobs(self, units: Sequence[SampleUnit], field: str, temperature: float) -> None:
        self._call_sharded(
            "fill_logprobs", units, lambda hand: (self.name, hand, field, temperature)
        )


@final
class ShardedTrainer(ShardedReference):
    """Sharded policy; implements `protocols.TrainablePolicy`. Raises UserError as
    `TrainerRank.make` does."""

    def __init__(self, ranks: TrainerGroup, spec: PolicySpec, name: str = "policy") -> None:
        super().__init__(ranks, name)
        self.steps = spec.steps
        self.done = 0
        self.has_adapter = spec.lora is not None
        self.spec = spec
        self._call_all("make", name, spec)

    def step(
        self,
        units: Sequence[SampleUnit],
        loss_fn: LossFunction,
        total: float,
        temperature: float = 1.0,
        teacher: TeacherReference | None = None,
        on_scores: ScoresCallback = ignore_scores,
    ) -> dict[str, float]:
        """Run a step as `Trainer.step` does; the model of a teacher is a `ShardedReference`."""
        teacher_arguments = (None, None) if teacher is None else (teacher.model.name, teacher.top_k)
        rest = (self.done, loss_fn, total, temperature, *teacher_arguments, on_scores)
        row = self._call_sharded("step", units, lambda hand: (self.name, hand, *rest))
        self.done += 1
        return row

    def drop_gradients(self) -> None:
        self._call_all("drop_gradients", self.name)

    def snapshot_reference(self) -> ReferenceModel | None:
        if not self.has_adapter:
            return None
        return make_reference(self.ranks, "start", InitialAdapterSpec(policy=self.name))

    def write(self, folder: Path, tokenizer: Any) -> None:
        self._call_all("write", self.name, folder)
        if not self.has_adapter:
            write_tokenizer(folder, tokenizer)
            require_export_parity(folder, self.run_probe(), self.spec.dtype)

    def run_probe(self) -> ProbeResult:
        return probe_policy(self, load_config(self.spec.folder), self.spec.dtype)

    def save(self, target: Path, tokenizer: Any, extra: dict[str, Any]) -> None:
        """Save all models that the ranks train, including critics. Returns when the ranks may
        continue."""
        self.wait_for_saves()
        if target.exists():  # it was still being written when requested again
            return
        draft = get_temporary_path(target)
        shutil.rmtree(draft, ignore_errors=True)
        make_folder(draft)
        state = {"trainer": {"done": self.done, "rng": torch.get_rng_state()}, "extra": extra}
        with raise_write_errors(target):
            torch.save(state, draft / STATE_FILE)
        self._call_all("save", draft, target)

    def load(self, folder: Path) -> dict[str, Any]:
        self.wait_for_saves()
        self._call_all("load", folder)
        with load_state(folder, CPU) as state:
            self.done = state["trainer"]["done"]
            torch.set_rng_state(state["trainer"]["rng"])
            extra: dict[str, Any] = state["extra"]
        return extra

    def wait_for_saves(self) -> None:
        self._call_all("wait_for_saves")


@final
class ShardedCritic(_RankProxy):
    """Sharded critic; implements `protocols.ValueModel`. It is part of the policy's checkpoint."""

    def __init__(self, ranks: TrainerGroup, spec: CriticSpec, name: str = "critic") -> None:
        super().__init__(ranks, name)
        self.done = 0
        self._call_all("make", name, spec)

    def step(self, units: Sequence[SampleUnit], total: float) -> dict[str, float]:
        row = self._call_sharded(
            "step_critic", units, lambda hand: (self.name, hand, self.done, total)
        )
        self.done += 1
        return row

    def fill_values(self, units: Sequence[SampleUnit]) -> None:
        self._call_sharded("fill_values", units, lambda hand: (self.name, hand))

    def drop_gradients(self) -> None:
        self._call_all("drop_gradients", self.name)

    def state_dict(self) -> dict[str, Any]:
        """Return the critic's number of completed steps. Its weights are in the ranks'
        checkpoint."""
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.done = state["done"]


def make_reference(
    ranks: TrainerGroup, name: str, spec: ReferenceSpec | InitialAdapterSpec
) -> ShardedReference:
    """Make a read-only model, such as the reference of a KL term or a teacher. Raises UserError as
    `TrainerRank.make` does."""
    ranks.call("make", [(name, spec)] * ranks.world_size)
    return ShardedReference(ranks, name)


def sum_metrics(results: Sequence[RankResult]) -> dict[str, float]:
    """Combine the metrics of all shares into the metrics of the whole step."""
    names = dict.fromkeys(name for result in results for name in result.metrics)
    return {
        name: results[0].metrics[name]
        if name in UNSUMMED_METRICS
        else sum(result.metrics.get(name, 0.0) for result in results)
        for name in names
    }


def balance_units(units: Sequence[SampleUnit], ranks: int) -> list[list[SampleUnit]]:
    """Assign each unit to exactly one rank, and return the units of each rank.

    Units with a common prefix form a block. Blocks are assigned, largest first, to the rank with
    the fewest tokens. While a rank has too many, its largest block is halved: if the halves are on
    different ranks, the prefix is computed on both. Some ranks get no units if there are fewer
    units than ranks.
    """
    order = _PrefixOrder(units)
    blocks = list(order.split_blocks())
    while True:
        blocks_by_rank = _assign_blocks(order, blocks, ranks)
        assignments = [order.list_indices(rank_blocks) for rank_blocks in blocks_by_rank]
        sizes = [order.count_tokens(assigned) for assigned in assignments]
        fullest = blocks_by_rank[sizes.index(max(sizes))]
        divisible = [block for block in fullest if len(block) > 1]
        if max(sizes) * ranks <= MAX_LOAD_RATIO * sum(sizes) or not divisible:
            return [[order.units[place] for place in assigned] for assigned in assignments]
        largest = max(divisible, key=order.count_tokens)
        half = len(largest) // 2
        blocks.remove(largest)
        blocks += [largest[:half], largest[half:]]


@final
class _PrefixOrder:
    """Units sorted by prefix and identified by their indices. A block is a range of indices."""

    def __init__(self, units: Sequence[SampleUnit]) -> None:
        self.units = sort_by_prefix(units)
        previous_units = [None, *(unit[-1] for unit in self.units)]
        self._sizes = [count_new_tokens(None, unit) for unit in self.units]
        # length of the prefix that each unit shares with the previous one
        self._shared_prefixes = [
            size - count_new_tokens(previous, unit)
            for size, previous, unit in zip(self._sizes, previous_units, self.units, strict=False)
        ]

    def split_blocks(self) -> Iterator[range]:
        """Yield blocks of neighbours with a common prefix."""
        borders = [place for place, shared in enumerate(self._shared_prefixes) if not shared]
        for start, end in pairwise([*borders, len(self.units)]):
            yield range(start, end)

    def count_tokens(self, places: Sequence[int]) -> int:
        """Return the number of tokens that a rank computes for the units with these ascending
        indices. The prefix shared by two units is the minimum over the neighbours between them."""
        common = (min(self._shared_prefixes[a + 1 : b + 1]) for a, b in pairwise(places))
        return sum(self._sizes[place] for place in places) - sum(common)

    def list_indices(self, blocks: Sequence[range]) -> list[int]:
        """Return the indices of all units of the blocks, in order."""
        return sorted(place for block in blocks for place in block)


def _assign_blocks(order: _PrefixOrder, blocks: Sequence[range], ranks: int) -> list[list[range]]:
    """Assign blocks to the ranks, largest first, each to the rank with the fewest tokens so far."""
    blocks_by_rank: list[list[range]] = [[] for _ in range(ranks)]
    sizes = [0] * ranks
    for block in sorted(blocks, key=order.count_tokens, reverse=True):
        rank = sizes.index(min(sizes))
        blocks_by_rank[rank].append(block)
        sizes[rank] = order.count_tokens(order.list_indices(blocks_by_rank[rank]))
    return blocks_by_rank
