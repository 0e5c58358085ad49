"""Parts that one run is made from, opened once."""

from __future__ import annotations

import platform
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any

import torch
import transformers
from pydantic import BaseModel, Field

from fieldcraft.cluster.ranks import RayRanks
from fieldcraft.cluster.session import Session, joined
from fieldcraft.cluster.sources import OnRanks
from fieldcraft.config.recipe import Recipe
from fieldcraft.config.sections import Limits
from fieldcraft.data.selection import EVALUATION, TRAINING, Tally, with_rates
from fieldcraft.dialects import BaseDialect
from fieldcraft.engine.base import PolicyEngine
from fieldcraft.engine.home import Home
from fieldcraft.engine.threads import Threads, fastest_threads
from fieldcraft.envs.environment import ToolEnvironment
from fieldcraft.records.events import Events, Said
from fieldcraft.records.files import write_json
from fieldcraft.records.reading import read_json
from fieldcraft.records.remedies import put_aside
from fieldcraft.records.waits import hearing_waits
from fieldcraft.rewards.answers import RULES
from fieldcraft.rewards.judge import JUDGE_RULES, Judge
from fieldcraft.rollout.environments import Play, opened
from fieldcraft.runs.beginning import open_run
from fieldcraft.runs.build import (
    make_correct,
    make_environment,
    make_environment_of_others,
    open_judge,
    open_tools,
    with_files,
)
from fieldcraft.runs.chosen import record_dialect, recorded_dialect
from fieldcraft.runs.dialects import choose_dialect, load_dialect
from fieldcraft.runs.engines import make_engine
from fieldcraft.runs.first_model import write_first_model
from fieldcraft.runs.folder import RunFolder
from fieldcraft.runs.inputs import make_inputs, with_knowledge
from fieldcraft.runs.served import open_served
from fieldcraft.runs.sources import Inputs
from fieldcraft.runs.tracking import tracking
from fieldcraft.tools.named import as_made
from fieldcraft.tools.search.client import RemoteSearchTool
from fieldcraft.tools.search.index import MANIFEST, build_index, read_manifest
from fieldcraft.train.model import (
    choose_device,
    load_config,
    load_model,
    load_tokenizer,
    loss_notes,
)
from fieldcraft.train.train_mode import dropout_notes
from fieldcraft.types import AnyTool, Dialect, Reward, Task
from fieldcraft.version import __version__

Count = Annotated[int, Field(ge=1, le=4096)]  # more threads than any machine has


class _Threads(BaseModel):
    training: Count
    sampling: Count


@dataclass
class Context:
    """The recipe, the folder, and what is opened only once: device, inputs, tools, judge."""

    recipe: Recipe
    folder: RunFolder
    inputs: Inputs
    device: torch.device
    judge: Judge | None
    emit: Events
    session: Session | None = None  # of Ray, where the recipe has a cluster
    tools: Sequence[AnyTool] = ()  # see `open_tools`
    selected: Sequence[Task] | None = None  # questions of reinforcement learning; None: all
    rates: Mapping[str, Mapping[str, Tally]] = field(default_factory=dict)  # see `closed_book.py`
    threads: Threads = field(
        default_factory=lambda: Threads(torch.get_num_threads(), torch.get_num_threads())
    )

    def __post_init__(self) -> None:
        self.home = Home(self.folder.engine, self.emit)
        self.environment_of_others = make_environment_of_others(self.recipe)

    def know(self, inputs: Inputs) -> None:
        """Go on with other inputs: those for what the model turned out to know."""
        self.inputs = inputs
        inputs.correct = self.correct

    def write_world(self) -> None:
        """Write what the run is about: corpus and questions."""
        self.folder.once(self.folder.world.name, self._write_world)

    def _write_world(self, draft: Path) -> None:
        self.inputs.write_world(draft)
        for remark in self.inputs.remarks_on_corpus():
            self.emit(Said(remark))

    def evaluation_tasks(self) -> list[Task]:
        """Return the questions to test on, with their closed-book rates once these are measured."""
        return with_rates(self.inputs.evaluation_tasks(), self.rates.get(EVALUATION, {}))

    def training_tasks(self) -> Sequence[Task]:
        """Return the questions of reinforcement learning: the selected ones, or all of them, also
        with their closed-book rates."""
        asked = self.inputs.train_tasks() if self.selected is None else self.selected
        return with_rates(asked, self.rates.get(TRAINING, {}))

    async def open_tools(self) -> None:
        """Open the tools of the recipe; for search, index the corpus."""
        self.write_world()
        if self.recipe.searches_index and not self.folder.index.exists():
            settings = self.recipe.search
            build_index(
                self.folder.world / "corpus.jsonl",
                self.folder.index,
                ranking=settings.ranking,
                encoder=settings.encoder,
            )
        recipe = with_files(self.recipe, self.folder.files)
        search = others = None
        if self.session is not None:
            search, others = await open_served(recipe, self.folder.index, self.session, self.home)
        self.tools = await open_tools(recipe, self.folder.index, search, others or {})

    async def close(self) -> None:
        """Close the connections to the judge and to a search server, and what engines started."""
        await self.home.close()
        if self.judge is not None:
            await self.judge.close()
        for tool in map(as_made, self.tools):
            if isinstance(tool, RemoteSearchTool):
                await tool.close()

    def first_model(self) -> Path:
        """Return the folder of the first model: the user's, or one made here."""
        write = partial(write_first_model, self.inputs)
        folder = self.recipe.model or self.folder.once("start/model", write)
        load_tokenizer(folder)
        config = load_config(folder)
        for note in (*loss_notes(config), *dropout_notes(config)):
            self.emit(Said(f"the model: {note}"))
        if self.session is not None:
            self.emit(Said(self.session.described))
        if not self.recipe.cluster.does_all:
            self.use_threads(load_model(folder, self.device, self.recipe.dtype))
            threads = f"{self.threads.training} threads to train, {self.threads.sampling} to sample"
            self.emit(Said(f"device {self.device}, {threads}"))
        return folder

    def use_threads(self, model: Any) -> None:
        """Set the number of threads, measured once a run: with another number a run that is resumed
        would add up its floats in another order, and end with other numbers."""
        file = self.folder.threads
        if not file.exists():
            write_json(file, asdict(fastest_threads(model)))
        found = read_json(file, _Threads, f"{put_aside(file)} to measure again")
        self.threads = Threads(found["training"], found["sampling"])
        torch.set_num_threads(self.threads.training)

    @cached_property
    def correct(self) -> Reward:
        """Reward that tells which answers are right."""
        return make_correct(self.recipe, self.judge)

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """Schemas of the tools, as a prompt shows them."""
        return [tool.schema for tool in self.tools]

    def dialect(self, model: Path) -> BaseDialect:
        """Return the dialect of the recipe, bound to the tokenizer of a model."""
        return load_dialect(self.recipe, model)

    def environment(self, dialect: Dialect) -> ToolEnvironment:
        """Return an environment with all tools of the recipe."""
        return make_environment(self.recipe, dialect, self.tools)

    @asynccontextmanager
    async def play(self, dialect: BaseDialect, budget: Limits) -> AsyncIterator[Play | None]:
        """Yield a function that plays rollouts in the recipe's environment of others, within a
        budget and inside the block; None where the recipe has tools."""
        if self.environment_of_others is None:
            yield None
            return
        costs = self.recipe.environment.tool_costs
        async with opened(self.environment_of_others, dialect, budget, costs) as play:
            yield play

    def engine(self, model: Any, dialect: Dialect, source: OnRanks | None = None) -> PolicyEngine:
        """Return the recipe's engine, which samples from a model of this process, or from the one
        whose weights `source` has."""
        threads = self.threads.sampling
        return make_engine(
            self.recipe, model, dialect.tokenizer, threads, self.home, self.session, source
        )

    def new_ranks(self) -> RayRanks | None:
        """Start the ranks, without any model; return None where this process trains. A run has one
        set of them at a time."""
        if self.session is None or not self.session.of("trainer"):
            return None
        ranks = self.home.once("ranks", partial(RayRanks, self.session))
        ranks.begin()
        return ranks

    def policy(self, model: Path) -> Any:
        """Return a model that the run has trained, or begins with, in the type in which it was
        trained."""
        return load_model(model, self.device, self.recipe.policy_dtype).eval()

    def versions(self) -> dict[str, Any]:
        """Return all that is needed to compare a number: software, rules, and the corpus
        searched."""
        folder = self.folder.index
        manifest = folder / MANIFEST
        return {
            "fieldcraft": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "threads": asdict(self.threads),
            "rules": sorted([*RULES, *(JUDGE_RULES if self.judge else ())]),
            "index": read_manifest(folder) if manifest.exists() else self.recipe.search.url,
        }


@asynccontextmanager
async def open_context(recipe: Recipe, out: Path, events: Events) -> AsyncIterator[Context]:
    """Begin a run in a folder, or resume it. Inside the block no other process works there, and its
    connections are closed at the end.

    Raises UserError for a folder of another run, a device that is not there, a judge that does not
    answer, or a cluster that cannot do what the recipe asks for.
    """
    # GPUs are those of the processes that train and sample.
    device = choose_device("cpu" if recipe.cluster.does_all else recipe.device)
    chosen = recorded_dialect(recipe, out) or choose_dialect(recipe)
    named = recipe
    recipe = recipe.model_copy(update={"dialect": chosen.name})
    inputs = make_inputs(recipe)  # before there is a folder: it may be refused
    folder = replace(open_run(out, named), recipe=recipe)
    inputs = with_knowledge(inputs, folder.knowledge)
    for remark in [] if inputs.probes() else inputs.remarks():
        events(Said(remark))
    with folder.alone(), hearing_waits(lambda line: events(Said(line))):
        if chosen.why:
            record_dialect(chosen, folder.path)
        if chosen.why and recipe.collect is None and not recipe.environment.of_others:
            events(Said(chosen.sentence))
        judge = await open_judge(recipe.judge, folder.judge_replies)
        with _cluster(recipe, folder.path) as session:
            context = Context(recipe, folder, inputs, device, judge, events, session)
            context.know(inputs)
            try:
                with tracking(folder, events):
                    yield context
            finally:
                await context.close()


@contextmanager
def _cluster(recipe: Recipe, folder: Path) -> Iterator[Session | None]:
    """Yield the processes of a run, None where it is a single one."""
    if not recipe.cluster.used:
        yield None
        return
    with joined(recipe.cluster, recipe.device, folder) as session:
        yield session
