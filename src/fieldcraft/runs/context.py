"""Run context: the resources of a run, opened once."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BaseModel, Field

from fieldcraft.config.components import TRACKERS_MODULE
from fieldcraft.config.names import import_object
from fieldcraft.config.recipe import Recipe
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.data.sample_tallies import EVALUATION, SampleTally, add_closed_book_rates
from fieldcraft.dialects import BaseDialect
from fieldcraft.dialects.encoding import DemonstrationEncoder
from fieldcraft.engine.base import PolicyEngine
from fieldcraft.engine.resources import RunResources
from fieldcraft.engine.threads import ThreadCounts, find_fastest_threads
from fieldcraft.engine.weights import WeightSource
from fieldcraft.environments.base import OpenEnvironment
from fieldcraft.environments.tool_environment import ToolEnvironment, Workflow, run_rollout
from fieldcraft.environments.turns import Policy
from fieldcraft.records.events import EventBus, LogMessage
from fieldcraft.records.files import write_json
from fieldcraft.records.reading import advise_renaming, read_json
from fieldcraft.records.waits import report_waits_to
from fieldcraft.rewards.criteria import CriteriaReward
from fieldcraft.rewards.judge import JudgeReward, JudgingMeter
from fieldcraft.runs.build import (
    attach_world_files,
    make_criteria,
    make_external_environment,
    make_verdict_reward,
    open_environment,
    open_judge,
    open_tools,
)
from fieldcraft.runs.cluster import ClusterBackend, open_cluster
from fieldcraft.runs.dialect_choice import read_dialect_choice, write_dialect_choice
from fieldcraft.runs.dialects import choose_dialect, load_dialect
from fieldcraft.runs.engines import make_engine
from fieldcraft.runs.folder import RunFolder
from fieldcraft.runs.inputs import make_data_source, with_knowledge
from fieldcraft.runs.resume import open_run_folder
from fieldcraft.runs.search import find_search
from fieldcraft.runs.sources import DataSource
from fieldcraft.tools.base import ClosableTool, IsolatingTool
from fieldcraft.tools.factory import unwrap_tool
from fieldcraft.train.model import choose_device, load_model
from fieldcraft.types import AnyTool, Dialect, Reward, Task, Trajectory

ThreadCount = Annotated[int, Field(ge=1, le=4096)]  # upper bound on any machine


class _ThreadsFile(BaseModel):
    training: ThreadCount
    sampling: ThreadCount


@dataclass
class RunContext:
    """Recipe, folder and shared resources of a run: device, data source, tools, judge."""

    recipe: Recipe
    folder: RunFolder
    data_source: DataSource
    device: torch.device
    judge: JudgeReward | None
    emit: EventBus
    cluster: ClusterBackend | None = None  # if the recipe has one
    tools: Sequence[AnyTool] = ()  # see `open_tools`
    selected_tasks: Sequence[Task] | None = None  # questions of reinforcement learning; None: all
    closed_book_tallies: Mapping[str, Mapping[str, SampleTally]] = field(
        default_factory=dict
    )  # see `closed_book.py`
    report_figures: dict[str, Any] = field(default_factory=dict)  # of report.json, by step
    report_samples: dict[str, Sequence[Trajectory]] = field(
        default_factory=dict
    )  # of the report page, besides those of evaluations
    start_time: float = field(default_factory=time.perf_counter)
    threads: ThreadCounts = field(
        default_factory=lambda: ThreadCounts(torch.get_num_threads(), torch.get_num_threads())
    )

    def __post_init__(self) -> None:
        self.resources = RunResources(self.folder.engine, self.emit)
        self.external_environment = make_external_environment(self.recipe)
        self.judging_meter = None if self.judge is None else JudgingMeter(self.judge.endpoint)

    def set_data_source(self, data_source: DataSource) -> None:
        """Replace the data source, after measuring the knowledge of the model."""
        self.data_source = data_source
        data_source.verdict_reward = self.verdict_reward

    def write_data_files(self) -> None:
        """Write the data of the run: corpus and questions."""
        self.folder.make_once(self.folder.world.name, self._write_data_files)

    def _write_data_files(self, draft: Path) -> None:
        self.data_source.write_files(draft)
        for warning in self.data_source.corpus_warnings():
            self.emit(LogMessage(warning))

    def evaluation_tasks(self) -> list[Task]:
        """Return the evaluation questions, with their closed-book rates once measured."""
        return add_closed_book_rates(
            self.data_source.evaluation_tasks(), self.closed_book_tallies.get(EVALUATION, {})
        )

    async def open_tools(self) -> None:
        """Open the tools of the recipe; for search, index the corpus."""
        self.write_data_files()
        if self.recipe.needs_search_index and not self.folder.index.exists():
            corpus = self.folder.world / "corpus.jsonl"
            find_search().build_index(self.recipe, corpus, self.folder.index)
        recipe = attach_world_files(self.recipe, self.folder.files)
        self.tools = await open_tools(recipe, self.folder.index)
        self._record_isolation()

    def _record_isolation(self) -> None:
        """Log and record where tools or the environment run programs, and what isolates these."""
        runners: dict[str, object] = {tool.name: tool for tool in map(unwrap_tool, self.tools)}
        runners[self.recipe.environment.name] = self.external_environment
        for name, runner in runners.items():
            if isinstance(runner, IsolatingTool):
                isolation = runner.describe_isolation()
                self.report_figures.setdefault("isolation", {})[name] = asdict(isolation)
                self.emit(LogMessage(f"{name}: programs run {isolation.summary}"))

    async def close(self) -> None:
        """Close the connections to the judge and to a search server, and processes started by
        engines."""
        await self.resources.close()
        if self.judge is not None:
            await self.judge.close()
        for tool in map(unwrap_tool, self.tools):
            if isinstance(tool, ClosableTool):
                await tool.close()

    def set_threads(self, model: Any) -> None:
        """Set the number of threads, which is measured once per run: a different number would
        change the order of floating-point sums in a resumed run, and thus its results."""
        file = self.folder.threads_file
        if not file.exists():
            write_json(file, asdict(find_fastest_threads(model)))
        found = read_json(file, _ThreadsFile, f"{advise_renaming(file)} to measure again")
        self.threads = ThreadCounts(found["training"], found["sampling"])
        torch.set_num_threads(self.threads.training)

    @cached_property
    def verdict_reward(self) -> Reward:
        """Reward that determines which answers are correct."""
        return make_verdict_reward(self.recipe, self.judge, self.criteria)

    @cached_property
    def criteria(self) -> CriteriaReward | None:
        """Reward of the recipe's criteria, if it has any."""
        return make_criteria(self.recipe, self.judge) if self.recipe.rubric else None

    def read_judging(self) -> dict[str, float]:
        """Return what the judge has cost since the last call; empty without requests."""
        return {} if self.judging_meter is None else self.judging_meter.read()

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """Schemas of the tools, as a prompt shows them."""
        return [tool.schema for tool in self.tools]

    def load_encoder(self, model: Path) -> DemonstrationEncoder:
        """Return the encoder of demonstrations for the tokenizer of a model in a folder."""
        return DemonstrationEncoder(load_dialect(self.recipe, model), self.schemas)

    @asynccontextmanager
    async def open_environment(
        self,
        dialect: BaseDialect,
        budget: BudgetConfig,
        tools: Sequence[AnyTool] | None = None,
        workflow: Workflow = run_rollout,
    ) -> AsyncIterator[OpenEnvironment[Policy]]:
        """Open the environment of the recipe, with a budget: the external one, or the workflow with
        `tools`, by default all tools of the recipe."""
        tool_environment = ToolEnvironment(
            dialect,
            self.tools if tools is None else tools,
            budget,
            workflow=workflow,
            verdict_reward=self.verdict_reward,
        )
        async with open_environment(
            self.recipe, self.external_environment, tool_environment
        ) as environment:
            yield environment

    def make_engine(
        self, model: Any, dialect: Dialect, weight_source: WeightSource | None = None
    ) -> PolicyEngine:
        """Return the recipe's engine. It samples from a model of this process, or from the model
        whose weights are provided by `weight_source`."""
        threads = self.threads.sampling
        return make_engine(
            self.recipe,
            model,
            dialect.tokenizer,
            threads,
            self.resources,
            self.cluster,
            weight_source,
        )

    def load_policy_model(self, model: Path) -> Any:
        """Return a model that the run has trained or starts from, in its training data type."""
        return load_model(model, self.device, self.recipe.policy_dtype).eval()


@asynccontextmanager
async def open_run_context(
    recipe: Recipe, out: Path, events: EventBus
) -> AsyncIterator[RunContext]:
    """Start or resume a run in a folder. Inside the block the folder is locked against other
    processes; connections are closed at the end.

    Raises UserError for a folder of another run, a missing device, a judge that does not respond,
    or a cluster that does not meet the recipe's requirements.
    """
    # GPUs belong to the processes that train and sample.
    device = choose_device("cpu" if recipe.cluster.trains_and_samples else recipe.device)
    choice = read_dialect_choice(recipe, out) or choose_dialect(recipe)
    original = recipe
    recipe = recipe.model_copy(update={"dialect": choice.name})
    data_source = make_data_source(recipe)  # before the folder exists: it may be rejected
    with (
        open_run_folder(out, original) as opened,
        report_waits_to(lambda line: events(LogMessage(line))),
    ):
        folder = replace(opened, recipe=recipe)
        data_source = with_knowledge(data_source, folder.knowledge_file)
        has_probes = data_source.world is not None and bool(data_source.world.probes())
        for warning in [] if has_probes else data_source.warnings():
            events(LogMessage(warning))
        if choice.why:
            write_dialect_choice(choice, folder.path)
        if choice.why and recipe.collect is None and not recipe.environment.is_external:
            events(LogMessage(choice.message))
        judge = await open_judge(recipe.judge, folder.judge_replies)
        with open_cluster(recipe, folder.path) as cluster:
            context = RunContext(recipe, folder, data_source, device, judge, events, cluster)
            context.set_data_source(data_source)
            try:
                with attach_trackers(folder, events):
                    yield context
            finally:
                await context.close()


def attach_trackers(folder: RunFolder, events: EventBus) -> AbstractContextManager[None]:
    """Send the events inside the block to the trackers of the run, which may have had some before
    it was resumed."""
    if not folder.recipe.trackers and not folder.trackers_file.exists():
        return nullcontext()
    attached: AbstractContextManager[None] = import_object(f"{TRACKERS_MODULE}:attach_trackers")(
        folder, events
    )
    return attached
