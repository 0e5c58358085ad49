"""Trained agents: load one from a run folder or a checkpoint, query, evaluate and train it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from fieldcraft.config.recipe import Recipe, dump_recipe
from fieldcraft.config.rules import AGENT_RULES, require_valid
from fieldcraft.config.sampling import TRUNCATION_KEYS, count_samples
from fieldcraft.config.url_secrets import require_no_secret
from fieldcraft.data.records import MAX_REJECTED_SHARE
from fieldcraft.dialects import BaseDialect
from fieldcraft.engine.base import StreamingEngine
from fieldcraft.engine.local.engine import LocalEngine
from fieldcraft.engine.resources import RunResources
from fieldcraft.environments.base import OpenEnvironment
from fieldcraft.environments.tool_environment import ToolEnvironment
from fieldcraft.environments.turns import Policy
from fieldcraft.evaluation.evaluate import evaluate_tasks
from fieldcraft.evaluation.results import EvaluationResult, RunReport
from fieldcraft.evaluation.summary import summarise_evaluation
from fieldcraft.recipes.consent import allow_permissions
from fieldcraft.recipes.exported import read_agent_settings
from fieldcraft.recipes.files import apply_override
from fieldcraft.recipes.loading import build_recipe, require_usable_values
from fieldcraft.records.events import EventCallback, EventHandler, ignore_event
from fieldcraft.rewards.judge import JudgeReward
from fieldcraft.runs.agent_training import make_reporter, prepare_training, read_agent_report
from fieldcraft.runs.arguments import (
    StageArguments,
    ToolArguments,
    parse_tools,
    read_questions,
    require_path,
    require_question,
    require_seed,
)
from fieldcraft.runs.build import (
    attach_world_files,
    make_external_environment,
    open_environment,
    open_tools,
    open_verdict_rubric,
)
from fieldcraft.runs.dialects import announce_dialect
from fieldcraft.runs.engines import make_local_engine, make_streaming_engine
from fieldcraft.runs.event_loop import await_in_thread, run_async
from fieldcraft.runs.folder import RunFolder, find_model
from fieldcraft.runs.inputs import make_data_source, with_knowledge
from fieldcraft.runs.sampling import Decoding, choose_decoding, resolve_decoding
from fieldcraft.runs.search import SEARCH_TOOL, find_search, without_search
from fieldcraft.runs.sources import DataSource
from fieldcraft.runs.trust import require_single_search, require_trust
from fieldcraft.train.model import choose_device, load_model, load_tokenizer
from fieldcraft.types import AnyTool, Task, Tool, Trajectory, UserError

OWN_SEARCH = {"api_key_env": None, "encoder": None, "ranking": None}  # of one server or index only
LOADED_PARTS = {"device", "engine", "dialect", "_index_tools"}  # independent of the sampling


@dataclass(frozen=True)
class Agent:
    """A checkpoint and its agent settings: dialect, instruction, budget and tools. The budget is
    the evaluation budget of its run.

    `index` is the folder of its search index; without an index or a server it has no search.
    `data_source` is the data of its run, None for a bare checkpoint or with another search.
    `requires_search`: a program requested the tool `search`, so acting without it is an error.
    """

    model: Path
    recipe: Recipe
    index: Path | None
    data_source: DataSource | None = None
    requires_search: bool = False

    # -- API for programs ------------------------------------------------------------------------

    def ask(self, question: str, *, seed: int = 0, **sampling: Any) -> Trajectory:
        """Answer a question with thoughts and tool calls; `answer` of the result is None if there
        is none.

        Args:
            question: one question.
            seed: seed of the sampler.
            sampling: keys such as temperature=0.8, sampling="model" or "recipe"; by default greedy.

        Raises:
            UserError: invalid keys, or a tool or a search server that cannot be used.
        """
        task = Task("asked", require_question(question), ())
        decoding = choose_decoding(self.recipe.evaluation, self.model, ignore_event, **sampling)
        return run_async(self.roll_out(task, decoding, require_seed(seed)))

    def evaluate(self, tasks: Any, *, max_left_out: float = MAX_REJECTED_SHARE) -> EvaluationResult:
        """Answer questions, sampled as its recipe specifies, and grade them. Return the entries of
        a report (`evaluation.summary`); for a file or records, `left_out` counts rejected ones.

        Args:
            tasks: questions in any form that `train` accepts.
            max_left_out: maximum share of rejected records.

        Raises:
            UserError: no questions, or too many rejected records.
        """
        read = read_questions(tasks, max_left_out)
        entry = summarise_evaluation(
            run_async(self.run_evaluation(read.tasks, None, "evaluation", ignore_event))
        )
        show_left_out = isinstance(tasks, str | Path) or read.rejected_counts
        left_out = {"left_out": dict(read.rejected_counts)} if show_left_out else {}
        return EvaluationResult(entry | left_out)

    def train(
        self,
        tasks: Any,
        stages: StageArguments,
        *,
        out: Path | str,
        on_event: EventCallback = ignore_event,
        **settings: Any,
    ) -> Agent:
        """Train the agent like `fieldcraft run`, and return the trained agent.

        The folder `out` is an ordinary run folder: the same call resumes an interrupted run, and
        every command of the command line can read it.

        Args:
            tasks: questions with accepted answers: a file, or a list of tasks or dicts, a
                `datasets.Dataset` or a `pandas.DataFrame`, see `data.question_objects`. Some of
                them are held out of training and evaluated after every stage.
            stages: settings such as `Rl(...)` in order: a dict by name, a list, or a single stage.
            out: folder of the run.
            on_event: handler of every event of the run, see `records.events`. If it returns an
                `EarlyStop`, the run ends after the current step with a checkpoint and a report with
                the reason, this returns the agent at this step, and the same call resumes the run.
            settings: other recipe keys, such as corpus="passages.jsonl" or seed=1.

        Raises:
            UserError: an error found by `fieldcraft check`, before anything is written, or later.
        """
        training = prepare_training(self.recipe, self.model, tasks, stages, out, on_event, settings)
        return find_agent(run_async(training.execute(make_reporter())))

    async def atrain(
        self,
        tasks: Any,
        stages: StageArguments,
        *,
        out: Path | str,
        on_event: EventCallback = ignore_event,
        **settings: Any,
    ) -> Agent:
        """Train like `train`, in a separate thread, while the running event loop does other work,
        as in a notebook: `agent = await agent.atrain(...)`. Cancelling it interrupts the run.
        Raises UserError like `train`."""
        reporter, prepare = make_reporter(), partial(prepare_training, self.recipe, self.model)
        training = await asyncio.to_thread(prepare, tasks, stages, out, on_event, settings)
        trained = await await_in_thread(training.execute(reporter))
        return await asyncio.to_thread(find_agent, trained)

    @property
    def report(self) -> RunReport:
        """Report of the run that trained it. Raises UserError if there is none, or not yet."""
        return read_agent_report(self.model)

    # -- API for commands ------------------------------------------------------------------------

    def with_options(
        self, dialect: str | None, index: Path | None, url: str | None, device: str | None = None
    ) -> Agent:
        """Return a copy of the agent with the user's options. Raises UserError if both an index and
        a URL are given, for a folder without an index, and for a URL with a password."""
        require_single_search(index, url)
        require_no_secret("search.url", url)
        options = {"dialect": dialect, "device": device}
        changed = {key: value for key, value in options.items() if value is not None}
        recipe = self.recipe.model_copy(update=changed)
        if index is not None or url is not None:
            recipe = recipe.model_copy(
                update={"search": recipe.search.model_copy(update={"url": url, **OWN_SEARCH})}
            )
            return replace(self, recipe=recipe, index=index or self.index, data_source=None)
        return replace(self, recipe=recipe)

    def with_tools(self, tools: Sequence[str]) -> Agent:
        """Return a copy of the agent with the named tools instead of its own; an empty list keeps
        its own. Raises UserError for a tool that cannot be created, and for a search without a
        backend."""
        if SEARCH_TOOL in tools and self.lacks_search_backend:
            raise UserError(
                f"{self.model} has no search index or server: give --index or --search-url, or"
                f" leave out --tool {SEARCH_TOOL}."
            )
        return self.with_settings(tools=list(tools)) if tools else self

    @property
    def lacks_search_backend(self) -> bool:
        """Return whether the agent has no index and no server, so that it acts without `search`."""
        return self.index is None and self.recipe.search.url is None

    def with_settings(self, **settings: Any) -> Agent:
        """Return a copy of the agent with other recipe keys. Raises UserError for an invalid
        one."""
        require_usable_values(settings)
        recipe = build_recipe({**dump_recipe(self.recipe), **settings})
        require_valid(recipe, AGENT_RULES)
        return replace(self, recipe=recipe)

    def with_overrides(self, overrides: Sequence[str]) -> Agent:
        """Return a copy of the agent with command-line overrides of recipe keys, such as
        engine=vllm. Raises UserError for an invalid one."""
        data = dump_recipe(self.recipe)
        for override in overrides:
            apply_override(data, override)
        return self.with_settings(**data)

    def with_sampling(self, **keys: Any) -> Agent:
        """Return a copy of the agent with other evaluation keys: samples, temperature and the like.
        Greedy sampling drops the truncation keys of its recipe. Raises UserError for invalid
        ones."""
        limits = dict.fromkeys(TRUNCATION_KEYS) if keys.get("temperature") == 0 else {}
        before = self.recipe.evaluation.model_dump(mode="json")
        if not keys:
            return self
        changed = self.with_settings(evaluation={**before, **limits, **keys})
        vars(changed).update({part: vars(self)[part] for part in LOADED_PARTS & vars(self).keys()})
        return changed

    def load_parts(self) -> None:
        """Load the parts that copies `with_sampling` then share."""
        for part in LOADED_PARTS:
            getattr(self, part)

    def resolve_decoding(self, emit: EventHandler) -> Decoding:
        """Return the decoding settings of its evaluation. Raises UserError like
        `resolve_decoding`."""
        settings = self.recipe.evaluation
        return resolve_decoding(settings, self.model, emit, needs_variety=settings.max_samples > 1)

    @cached_property
    def device(self) -> torch.device:
        return choose_device(self.recipe.device)

    @cached_property
    def engine(self) -> LocalEngine:
        """Engine with its weights, ready to sample; loaded once."""
        return make_local_engine(self.recipe, self._load_model(), load_tokenizer(self.model), None)

    def make_streaming_engine(self, resources: RunResources) -> StreamingEngine:
        """Return the engine of its recipe with its weights; `resources` provides the server's
        folder. Raises UserError for unknown settings, and for an engine without streaming."""
        if self.recipe.engine.features.in_process:
            return self.engine
        model, tokenizer = self._load_model(), load_tokenizer(self.model)
        return make_streaming_engine(
            self.recipe, model, tokenizer, torch.get_num_threads(), resources
        )

    def _load_model(self) -> Any:
        """Return its model, in the data type of its training."""
        return load_model(self.model, self.device, self.recipe.policy_dtype).eval()

    @cached_property
    def dialect(self) -> BaseDialect:
        """Dialect of the model, bound to its tokenizer; loaded once. An automatic choice is
        printed."""
        return announce_dialect(self.recipe, self.model)

    async def open_tool_environment(self, purpose: str) -> ToolEnvironment:
        """Return its environment with tools. They are opened again, except for the search over an
        index. Raises UserError for an agent of an external environment, with the purpose, such as
        "served"."""
        environment = self.recipe.environment
        if environment.is_external:
            raise UserError(
                f"{self.model} acts in the environment '{environment.name}', which does more than"
                f" ask one question: only agents with their own tools can be {purpose}."
            )
        return ToolEnvironment(self.dialect, await self._open_tools(), self.recipe.budget)

    @asynccontextmanager
    async def open_environment(self) -> AsyncIterator[OpenEnvironment[Policy]]:
        """Open its environment: an external one, or one with its tools."""
        external = make_external_environment(self.recipe)
        tools = ToolEnvironment(self.dialect, await self._open_tools(), self.recipe.budget)
        async with open_environment(self.recipe, external, tools) as environment:
            yield environment

    async def roll_out(self, task: Task, decoding: Decoding, seed: int = 0) -> Trajectory:
        """Roll out one question and return its trajectory."""
        policy = self._make_policy(decoding, seed)
        async with self.open_environment() as env:
            return await env.run(task, policy, task.id)

    def _make_policy(self, decoding: Decoding, seed: int = 0) -> Policy:
        return Policy(
            engine=self.engine,
            temperature=decoding.temperature,
            truncation=decoding.truncation,
            seed=seed,
        )

    async def run_evaluation(
        self, tasks: Sequence[Task], judge: JudgeReward | None, name: str, emit: EventHandler
    ) -> list[Trajectory]:
        """Answer and grade questions, sampled as in the recipe's evaluation."""
        settings = self.recipe.evaluation
        rubric = await open_verdict_rubric(self.recipe, judge)
        policy = self._make_policy(self.resolve_decoding(emit))
        async with self.open_environment() as env:
            return await evaluate_tasks(
                tasks,
                env,
                policy,
                rubric,
                settings.concurrency,
                name,
                emit,
                partial(count_samples, settings.samples),
                settings.max_broken,
            )

    async def _open_tools(self) -> list[AnyTool]:
        """Return the tools of the recipe; without an index or a server there is no search. Raises
        UserError if a program requested search."""
        recipe, search = self.recipe, None
        if self.lacks_search_backend:
            recipe = without_search(recipe, self.model, self.requires_search)
        index = self.index or self.model  # not required with a server
        if recipe.has_search_tool:
            opened = self._index_tools
            search = opened[0] if opened else await find_search().open_tool(recipe, index)
            self._index_tools[:] = [search] if recipe.search.url is None else []
        return await open_tools(recipe, index, search)

    @cached_property
    def _index_tools(self) -> list[Tool]:
        """Search over an index, opened once. Other tools may be bound to an event loop."""
        return []


def load(
    path: Path | str,
    *,
    tools: ToolArguments | None = None,
    allow: Sequence[str] = (),
    **settings: Any,
) -> Agent:
    """Return the agent of a run, one of its stages, or a checkpoint folder.

    Args:
        path: folder, `.gguf` file, or name on the hub, such as "org/name".
        tools: tools that the policy may call, instead of its own: functions with `@tool`, classes,
            names as in a recipe; or a mapping from these to their settings.
        allow: permissions of a third-party folder, by the names of
            `recipes.permissions.PERMISSIONS`, such as "mcp"; they are remembered.
        settings: other recipe keys, such as dialect="hermes" or budget={"max_calls": 4}.

    Raises:
        UserError: there is no agent, or a setting is invalid.
        ConsentRequiredError: the folder requires a permission that is not granted.
    """
    with allow_permissions(allow):
        agent = find_agent(require_path(path, "path"))
    if tools is not None:
        settings["tools"] = parse_tools(tools)
    agent = agent.with_settings(**settings) if settings else agent
    return replace(agent, requires_search=tools is not None and agent.recipe.has_search_tool)


def find_agent(path: Path) -> Agent:
    """Return the agent in RUN (its last finished stage), RUN/STAGE, RUN/STAGE/model, an exported
    folder or a bare checkpoint.

    Raises UserError if there is none.
    """
    return load_agent(*find_model(path))


def load_agent(run: RunFolder | None, model: Path) -> Agent:
    """Return the agent of a model: in its run, exported, or bare. Raises ConsentRequiredError like
    `require_trust`."""
    require_trust(run, model)
    if run is not None:
        recipe = attach_world_files(run.recipe, run.files).evaluation_recipe
        data_source = with_knowledge(make_data_source(run.recipe), run.knowledge_file)
        return Agent(model, recipe, run.index, data_source)
    if (exported := read_agent_settings(model)) is not None:
        keys, index = exported
        return Agent(model, build_recipe(keys), index)
    return Agent(model, Recipe(name="none", stages={}), None)
