"""The driver's side of training in shards: a trainer that asks all ranks."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, final

import torch

from fieldcraft.algos.losses import Objective
from fieldcraft.engine.writing import write_tokenizer
from fieldcraft.records.files import draft_of, make_folder, writing
from fieldcraft.train.batch import Unit
from fieldcraft.train.learning import Guide, Look, ProbeResult, Reference, nobody_looks
from fieldcraft.train.model import load_config
from fieldcraft.train.parity import require_written, said_by_policy
from fieldcraft.train.saving import STATE, read_state
from fieldcraft.train.sharding.deal import deal
from fieldcraft.train.sharding.specs import Answer, CriticSpec, PolicySpec, ReaderSpec, StartSpec

CPU = torch.device("cpu")
OF_ALL = ("grad_norm", "lr")  # metrics that every rank has as a whole; others are sums of shares


class Ranks(Protocol):
    """Processes with a `Rank` each. `context` of them share a micro-batch, and follow one another:
    those that begin one are the ranks 0, `context`, 2 `context` and so on."""

    @property
    def count(self) -> int: ...

    @property
    def context(self) -> int: ...

    def call(self, method: str, shares: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a method of all ranks at once, each with its own arguments, and return what they
        return, in the order of the ranks. Raises the UserError of a rank that raises one."""
        ...


class _Asking:
    """A model by its name in the ranks."""

    def __init__(self, ranks: Ranks, name: str) -> None:
        self.ranks = ranks
        self.name = name

    def _all(self, method: str, *arguments: Any) -> list[Any]:
        """Call all ranks with the same arguments."""
        return self.ranks.call(method, [arguments] * self.ranks.count)

    def _shared(
        self, method: str, units: Sequence[Unit], arguments: Callable[[list[Unit]], tuple[Any, ...]]
    ) -> dict[str, float]:
        """Call each rank with the arguments for its share of the units. What the ranks write into
        the samples is written here too; returns their metrics as one."""
        context = self.ranks.context
        hands = deal(units, self.ranks.count // context)
        shares = [arguments(hand) for hand in hands for _ in range(context)]
        answers: list[Answer] = self.ranks.call(method, shares)[::context]
        for hand, answer in zip(hands, answers, strict=True):
            samples = [sample for unit in hand for sample in unit]
            for sample, written in zip(samples, answer.written, strict=True):
                for field, values in written.items():
                    setattr(sample, field, values)
        return together(answers)


class ShardedReader(_Asking):
    """A model that is only read; obeys `learning.Reference`."""

    def fill_logprobs(self, units: Sequence[Unit], field: str, temperature: float) -> None:
        self._shared("fill_logprobs", units, lambda hand: (self.name, hand, field, temperature))


@final
class ShardedTrainer(ShardedReader):
    """A policy in shards; obeys `learning.Learning`. Raises UserError as `Rank.make` does."""

    def __init__(self, ranks: Ranks, spec: PolicySpec, name: str = "policy") -> None:
        super().__init__(ranks, name)
        self.steps = spec.steps
        self.done = 0
        self.adapted = spec.lora is not None
        self.spec = spec
        self._all("make", name, spec)

    def step(
        self,
        units: Sequence[Unit],
        objective: Objective,
        total: float,
        temperature: float = 1.0,
        guide: Guide | None = None,
        look: Look = nobody_looks,
    ) -> dict[str, float]:
        """Run a step as `Trainer.step` does; the model of a guide is a `ShardedReader`."""
        teacher = (None, None) if guide is None else (guide.model.name, guide.top_k)
        rest = (self.done, objective, total, temperature, *teacher, look)
        row = self._shared("step", units, lambda hand: (self.name, hand, *rest))
        self.done += 1
        return row

    def drop_gradients(self) -> None:
        self._all("drop_gradients", self.name)

    def at_start(self) -> Reference | None:
        if not self.adapted:
            return None
        return make_reader(self.ranks, "start", StartSpec(policy=self.name))

    def write(self, folder: Path, tokenizer: Any) -> None:
        self._all("write", self.name, folder)
        if not self.adapted:
            write_tokenizer(folder, tokenizer)
            require_written(folder, self.said(), self.spec.dtype)

    def said(self) -> ProbeResult:
        return said_by_policy(self, load_config(self.spec.folder), self.spec.dtype)

    def save(self, target: Path, tokenizer: Any, extra: dict[str, Any]) -> None:
        """Save all that the ranks train, critics included. Returns when the ranks may go on."""
        self.settle()
        if target.exists():  # as it was being written when it was asked for again
            return
        draft = draft_of(target)
        shutil.rmtree(draft, ignore_errors=True)
        make_folder(draft)
        state = {"trainer": {"done": self.done, "rng": torch.get_rng_state()}, "extra": extra}
        with writing(target):
            torch.save(state, draft / STATE)
        self._all("save", draft, target)

    def load(self, folder: Path) -> dict[str, Any]:
        self.settle()
        self._all("load", folder)
        with read_state(folder, CPU) as state:
            self.done = state["trainer"]["done"]
            torch.set_rng_state(state["trainer"]["rng"])
            extra: dict[str, Any] = state["extra"]
        return extra

    def settle(self) -> None:
        self._all("settle")


@final
class ShardedCritic(_Asking):
    """A critic in shards; obeys `learning.Valuing`. The policy's checkpoint holds it."""

    def __init__(self, ranks: Ranks, spec: CriticSpec, name: str = "critic") -> None:
        super().__init__(ranks, name)
        self.done = 0
        self._all("make", name, spec)

    def step(self, units: Sequence[Unit], total: float) -> dict[str, float]:
        row = self._shared("step_critic", units, lambda hand: (self.name, hand, self.done, total))
        self.done += 1
        return row

    def fill_values(self, units: Sequence[Unit]) -> None:
        self._shared("fill_values", units, lambda hand: (self.name, hand))

    def drop_gradients(self) -> None:
        self._all("drop_gradients", self.name)

    def state_dict(self) -> dict[str, Any]:
        """Return the number of steps behind the critic. Its weights are in the ranks' own
        checkpoint."""
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.done = state["done"]


def make_reader(ranks: Ranks, name: str, spec: ReaderSpec | StartSpec) -> ShardedReader:
    """Make a model to read, such as the reference of a KL or a teacher. Raises UserError as
    `Rank.make` does."""
    ranks.call("make", [(name, spec)] * ranks.count)
    return ShardedReader(ranks, name)


def together(answers: Sequence[Answer]) -> dict[str, float]:
    """Combine the metrics of all shares into those of the whole step."""
    names = dict.fromkeys(name for answer in answers for name in answer.row)
    return {
        name: answers[0].row[name]
        if name in OF_ALL
        else sum(answer.row.get(name, 0.0) for answer in answers)
        for name in names
    }
