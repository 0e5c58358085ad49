"""The time that the stages of a recipe take on a cluster, by the formulas of `costs.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import ceil
from typing import Literal

from fieldcraft.config.cluster import Cluster
from fieldcraft.config.recipe import Recipe
from fieldcraft.config.rl import Rl
from fieldcraft.config.stages import Pairs, Stage, Supervised
from fieldcraft.runs.memory import BYTES, Sizes, cache_bytes, longest_text
from fieldcraft.scaling.costs import Passes, Roofline, Shape, Trainers, publishing
from fieldcraft.scaling.devices import Device
from fieldcraft.scaling.steps import Rollouts, sampling

Limit = Literal["operations of training", "wires between trainers", "sampling", "one long rollout"]
FASTER: dict[Limit, str] = {  # what to change
    "operations of training": "more trainers (cluster.trainers)",
    "wires between trainers": "a higher optim.micro_tokens, so that weights travel less often",
    "sampling": "more engines (cluster.engines), or a higher max_rows where memory allows it",
    "one long rollout": "a higher async.max_staleness, or more questions in a step",
}


@dataclass(frozen=True, slots=True)
class Usual:
    """The mean text of the run: its tokens within the budget of the recipe, the share of them that
    the policy writes, and the seconds that its tools take."""

    tokens: float
    written: float
    tool_seconds: float


@dataclass(frozen=True, slots=True)
class StageTime:
    """Seconds of a step, and the number of steps; None: it depends on data not looked at."""

    name: str
    steps: int | None
    sampling: float
    training: float
    publishing: float
    step: float
    limit: Limit

    @property
    def seconds(self) -> float | None:
        return None if self.steps is None else self.steps * self.step


def shape_of(setup: Sizes) -> Shape:
    """Return the shape of the matrices that multiply: without the input embedding, unless it is the
    output layer as well."""
    config, recipe = setup.config, setup.recipe
    embedding = 0 if config.tie_word_embeddings else config.vocab_size * config.hidden_size
    size = BYTES[recipe.dtype]
    tokens = recipe.budget.total_tokens
    return Shape(
        setup.parameters - embedding,
        config.num_hidden_layers,
        config.hidden_size,
        size,
        cache_bytes(setup, 1, size, tokens) // tokens,
    )


def passes_of(recipe: Recipe, stage: Stage) -> Passes:
    """Return the passes of the models that compute something with each token that is trained."""
    footprint = stage.footprint
    read = footprint.references + footprint.teachers
    if isinstance(stage, Rl):
        read += stage.importance_cap is not None or stage.reject is not None
    return Passes(1 + footprint.critics, read, stage.optim.activation_checkpointing)


@dataclass(frozen=True)
class Timing:
    """The timing of one recipe on one kind of device."""

    setup: Sizes
    device: Device
    usual: Usual
    examples: Callable[[Stage], int | None] = lambda _: None

    def trainers(self, stage: Stage, cluster: Cluster) -> Trainers:
        return Trainers(self.device, max(cluster.trainers, 1), stage.optim.micro_tokens)

    def each(self, name: str, stage: Stage, cluster: Cluster) -> Iterator[StageTime]:
        """Yield the time of a stage, or of each period of one whose budget changes."""
        periods = stage.periods(self.setup.recipe.budget)
        if len(periods) < 2:
            yield self.at_longest(stage).of(name, stage, cluster)
            return
        for period in periods:
            found = self._scaled(period.limits.total_tokens).of(name, stage, cluster)
            steps = f"{name}, steps {period.begin + 1} to {period.end}"
            yield replace(found, name=steps, steps=period.end - period.begin)

    def at_longest(self, stage: Stage) -> Timing:
        """Return the timing of the texts that a stage has in the largest of its budgets."""
        return self._scaled(longest_text(self.setup.recipe, stage))

    def _scaled(self, total: int) -> Timing:
        """Return the timing for another budget, whose texts are shorter or longer in proportion."""
        tokens = self.usual.tokens * total / self.setup.recipe.budget.total_tokens
        return replace(self, usual=replace(self.usual, tokens=tokens))

    def of(self, name: str, stage: Stage, cluster: Cluster) -> StageTime:
        """Return the time of a step, and what limits it."""
        shape, trainers = shape_of(self.setup), self.trainers(stage, cluster)
        passes = passes_of(self.setup.recipe, stage)
        tokens = self._trained(stage)
        training = trainers.seconds(shape, tokens, self.usual.tokens, passes)
        computing = trainers.computing(shape, tokens, self.usual.tokens, passes)
        slow: Limit = "operations of training"
        if training > computing:
            slow = "wires between trainers"
        if not isinstance(stage, Rl):
            steps = None
            if isinstance(stage, Supervised):
                examples = self.examples(stage)
                known = stage.steps is not None or examples is not None
                steps = stage.steps_over(examples or 0) if known else None
            return StageTime(name, steps, 0.0, training, 0.0, training, slow)
        sampled = self.sampling(stage, cluster)
        engines = max(cluster.engines, 1)
        alone = self._alone(stage)
        sent = 0.0
        if cluster.engines:
            sent = publishing(shape, self.device, trainers.ranks, engines)
        staleness = stage.asynchronous.max_staleness
        both = max(sampled, training) if staleness else sampled + training
        if sampled > training:
            slow = "one long rollout" if sampled <= alone * 1.001 else "sampling"
        return StageTime(name, stage.steps, sampled, training, sent, both + sent, slow)

    def sampling(self, stage: Rl, cluster: Cluster) -> float:
        """Return the seconds in which the engines sample what a step trains."""
        speed = Roofline(shape_of(self.setup), self.device, cluster.engine_devices)
        engines = max(cluster.engines, 1)
        rows = ceil(self.setup.recipe.max_rows / engines)
        ahead = stage.asynchronous.max_staleness
        return sampling(speed, engines, rows, self._rollouts(stage), ahead)

    def _alone(self, stage: Rl) -> float:
        """Return the seconds with an engine for each rollout: more engines do not help any more."""
        speed = Roofline(shape_of(self.setup), self.device)
        rollouts = self._rollouts(stage)
        ahead = stage.asynchronous.max_staleness
        return sampling(speed, rollouts.count, 1, rollouts, ahead)

    def _rollouts(self, stage: Rl) -> Rollouts:
        usual = self.usual
        count = stage.questions * stage.group * stage.oversample
        simulated = stage.observations != "real" and stage.simulator != "endpoint"
        written = usual.tokens * (1.0 if simulated else usual.written)
        waiting = 0.0 if simulated else usual.tool_seconds
        longest = self.setup.recipe.budget.total_tokens / usual.tokens
        return Rollouts(count, written, usual.tokens, written * longest, waiting * longest)

    def _trained(self, stage: Stage) -> float:
        """Return the number of tokens that a step trains on."""
        if isinstance(stage, Rl):
            return stage.questions * stage.group * stage.epochs * self.usual.tokens
        texts = 2 if isinstance(stage, Pairs) else 1
        batch = stage.batch if isinstance(stage, Supervised) else 1
        return texts * batch * self.usual.tokens
