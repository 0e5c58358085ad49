"""A trained agent: find one in a run folder or a checkpoint, ask it, grade it, train it further."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from fieldcraft.config.addresses import refuse_secret
from fieldcraft.config.environment import WITH_TOOLS, of_others
from fieldcraft.config.names import LOCAL
from fieldcraft.config.recipe import Recipe, dump_recipe
from fieldcraft.config.sampling import LIMITS
from fieldcraft.data.given import GIVEN
from fieldcraft.data.left_out import MAX_LEFT_OUT
from fieldcraft.data.sources import Questions
from fieldcraft.dialects import BaseDialect
from fieldcraft.engine.home import Home
from fieldcraft.engine.local.engine import LocalEngine
from fieldcraft.engine.served import ServedEngine
from fieldcraft.envs.environment import ToolEnvironment
from fieldcraft.evals.metrics import summarise
from fieldcraft.evals.run import answer_rubric, evaluate
from fieldcraft.recipes.consent import allowing
from fieldcraft.recipes.exported import handed_on, read_agent
from fieldcraft.recipes.loading import build_recipe, check_names, parse_recipe
from fieldcraft.recipes.overrides import apply_override
from fieldcraft.records.events import Events, Said, Sink, nobody, write_metrics
from fieldcraft.records.paths import at_home
from fieldcraft.rewards.rubric import AskingReward
from fieldcraft.rollout.environments import opened
from fieldcraft.rollout.loop import Policy, rollout
from fieldcraft.runs.arguments import (
    Stages,
    Tools,
    choose_tools,
    name_stages,
    questions_file,
    read_given,
    require_path,
    require_question,
)
from fieldcraft.runs.beginning import refuse_other
from fieldcraft.runs.build import (
    SEARCH,
    make_correct,
    make_environment,
    make_environment_of_others,
    open_correct,
    open_search,
    open_tools,
    with_files,
)
from fieldcraft.runs.check import refuse_unsound
from fieldcraft.runs.dialects import announce_dialect
from fieldcraft.runs.engines import make_local_engine, make_served_engine
from fieldcraft.runs.folder import RunFolder, find_model
from fieldcraft.runs.inputs import make_inputs, with_knowledge
from fieldcraft.runs.loop import run_async
from fieldcraft.runs.run import run_recipe
from fieldcraft.runs.sampling import Decoding, make_sampling, resolve_sampling
from fieldcraft.runs.sources import Inputs
from fieldcraft.runs.trust import require_trust
from fieldcraft.terminal.console import CleanConsole
from fieldcraft.terminal.progress import TerminalSink
from fieldcraft.tools.search.index import require_one_search
from fieldcraft.tools.search.tool import SearchTool
from fieldcraft.train.model import choose_device, load_model, load_tokenizer
from fieldcraft.types import AnyTool, Task, Trajectory, UserError

NO_KEY = {"api_key_env": None}  # that of a server is for no other one


@dataclass(frozen=True)
class Agent:
    """A checkpoint and the settings it acts under: dialect, instruction, budget and tools. The
    budget is that of its run's evaluations.

    `index` is the folder of its search index; without one and without a server it has no search.
    `inputs` is what its run was about, None for a bare checkpoint or with another search.
    `told_to_search` is true where a program named the tool `search`, so acting without it is wrong.
    """

    model: Path
    recipe: Recipe
    index: Path | None
    inputs: Inputs | None = None
    told_to_search: bool = False

    # -- for programs ---------------------------------------------------------------------------

    def ask(self, question: str, *, seed: int = 0, **sampling: Any) -> Trajectory:
        """Think, act and answer; `answer` of the result is the answer, None without one.

        Args:
            question: one question.
            seed: of the samples.
            sampling: keys such as temperature=0.8 and top_p=0.9, or sampling="model"; without any
                it is greedy.

        Raises:
            UserError: wrong keys, or a tool or a search server that cannot be used.
        """
        task = Task("asked", require_question(question), ())
        how = resolve_sampling(make_sampling(**sampling), self.model, nobody)
        return run_async(self.trajectory(task, how, seed))

    def evaluate(self, tasks: Any, *, max_left_out: float = MAX_LEFT_OUT) -> dict[str, Any]:
        """Answer questions, sampled as its recipe does, and grade them: `em`, `f1`, `calls_mean`
        and the other entries of a report, see `evals.metrics.summarise`. Of a file or of records,
        `left_out` has the reasons for which some are not asked, with their counts; they are
        printed, too.

        Args:
            tasks: questions as `train` takes them.
            max_left_out: the share of the records that may be left out.

        Raises:
            UserError: no questions, or more of them would be left out.
        """
        read = self._questions(tasks, max_left_out)
        entry = summarise(run_async(self.answer(read.tasks, None, "evaluation", nobody)))
        told = isinstance(tasks, str | Path) or read.left_out
        return entry | ({"left_out": dict(read.left_out)} if told else {})

    def train(
        self,
        tasks: Any,
        stages: Stages,
        *,
        out: Path | str,
        follow: Sink = nobody,
        **settings: Any,
    ) -> Agent:
        """Train it, as `fieldcraft run` does, and return the agent that comes out.

        The folder `out` is that of an ordinary run: the same call resumes one that was stopped, and
        every command of the command line reads it.

        Args:
            tasks: questions with accepted answers: a file, or a list of tasks or dicts, a
                `datasets.Dataset` or a `pandas.DataFrame`, see `data.given`. A part of them is kept
                out of training and evaluated after every stage.
            stages: settings such as `Rl(...)` and `Sft(...)` in their order: by name, as a list, in
                which types are the names, or one alone.
            out: the run's folder.
            follow: is told of every event of the run, see `records.events`.
            settings: other keys of a recipe, such as corpus="passages.jsonl" or seed=1.

        Raises:
            UserError: for whatever `fieldcraft check` finds, in one sentence, before anything is
                written, and for what stops a run.
        """
        folder, named = require_path(out, "out"), name_stages(stages)
        searches = self.recipe.offers_search
        keys = {
            "recipe": folder.name,
            "model": str(self.model),
            "evaluation": {} if searches else {"workflows": []},
            "stages": {name: stage.model_dump(mode="json") for name, stage in named.items()},
            **handed_on(self.recipe),
            **settings,
        }
        if of_others(settings.get("environment")):  # the tools of this agent are none of it
            keys = {key: keys[key] for key in keys if key in settings or key not in WITH_TOOLS}
        refuse_other(folder)
        with self._file_of(tasks, folder) as file:
            recipe = parse_recipe({**keys, "tasks": str(file)}, folder)
            if not (folder / "recipe.json").exists():
                refuse_unsound(recipe)
        run_recipe(recipe, folder, Events([write_metrics, TerminalSink(CleanConsole()), follow]))
        return find_agent(folder)

    @contextmanager
    def _file_of(self, tasks: Any, folder: Path) -> Iterator[Path]:
        """Yield the file of the questions to train on."""
        if isinstance(tasks, str | Path):
            yield at_home(Path(tasks))
            return
        with questions_file(self._questions(tasks, MAX_LEFT_OUT).tasks, folder) as file:
            yield file

    def _questions(self, tasks: Any, max_left_out: float) -> Questions:
        """Return the questions that a program gives. Those that are left out are printed."""
        read, file = read_given(tasks, max_left_out)
        tell = TerminalSink(CleanConsole())
        for line in read.remarks(file or GIVEN):
            tell(Said(line))
        return read

    # -- for commands ---------------------------------------------------------------------------

    def with_options(
        self, dialect: str | None, index: Path | None, url: str | None, device: str | None = None
    ) -> Agent:
        """Return the same agent with what the user wishes to be different. Raises UserError for two
        searches at once, for a folder without an index, and for a url with a password."""
        require_one_search(index, url)
        refuse_secret("search.url", url)
        wishes = {"dialect": dialect, "device": device}
        changed = {key: wish for key, wish in wishes.items() if wish is not None}
        recipe = self.recipe.model_copy(update=changed)
        if index is not None or url is not None:
            recipe = recipe.model_copy(
                update={"search": recipe.search.model_copy(update={"url": url, **NO_KEY})}
            )
            return replace(self, recipe=recipe, index=index or self.index, inputs=None)
        return replace(self, recipe=recipe)

    def offering(self, tools: Sequence[str]) -> Agent:
        """Return the same agent with other tools, by name, in place of its own; none keeps its own.
        Raises UserError for a tool that cannot be made, and for a search over nothing."""
        if SEARCH in tools and self.searches_nothing:
            raise UserError(
                f"{self.model} has nothing to search: give --index or --search-url, or leave out"
                f" --tool {SEARCH}."
            )
        return self.with_settings(tools=list(tools)) if tools else self

    @property
    def searches_nothing(self) -> bool:
        """Return whether it has neither an index nor a server; then it acts without the tool
        `search`. Trained with a corpus, it has one."""
        return self.index is None and self.recipe.search.url is None

    def with_settings(self, **settings: Any) -> Agent:
        """Return the same agent with other keys of its recipe. Raises UserError for a wrong one."""
        recipe = build_recipe({**dump_recipe(self.recipe), **settings})
        check_names(recipe)
        return replace(self, recipe=recipe)

    def overridden(self, overrides: Sequence[str]) -> Agent:
        """Return the same agent with other keys of its recipe, as on the command line: engine=vllm.
        Raises UserError for a wrong one."""
        data = dump_recipe(self.recipe)
        for override in overrides:
            apply_override(data, override)
        return self.with_settings(**data)

    def sampling(self, **keys: Any) -> Agent:
        """Return the same agent with other keys of its evaluation: samples, temperature and the
        like. Greedy sampling leaves out the limits of its recipe. Raises UserError for wrong
        ones."""
        limits = dict.fromkeys(LIMITS) if keys.get("temperature") == 0 else {}
        before = self.recipe.evaluation.model_dump(mode="json")
        return self.with_settings(evaluation={**before, **limits, **keys}) if keys else self

    def decoding(self, emit: Sink) -> Decoding:
        """Return how its evaluation samples. Raises UserError as `resolve_sampling` does."""
        settings = self.recipe.evaluation
        return resolve_sampling(settings, self.model, emit, several=settings.max_samples > 1)

    @cached_property
    def device(self) -> torch.device:
        return choose_device(self.recipe.device)

    @cached_property
    def engine(self) -> LocalEngine:
        """Engine on its weights, ready to sample from; loaded once."""
        return make_local_engine(self.recipe, self._loaded(), load_tokenizer(self.model), None)

    def served_by(self, home: Home) -> ServedEngine:
        """Return the engine of its recipe on its weights; `home` is the server's folder. Raises
        UserError for settings that it does not have, and for one that cannot be served."""
        if self.recipe.engine.name == LOCAL:
            return self.engine
        model, tokenizer = self._loaded(), load_tokenizer(self.model)
        return make_served_engine(self.recipe, model, tokenizer, torch.get_num_threads(), home)

    def _loaded(self) -> Any:
        """Return its model, in the type in which it was trained."""
        return load_model(self.model, self.device, self.recipe.policy_dtype).eval()

    @cached_property
    def dialect(self) -> BaseDialect:
        """Dialect of the model, bound to its tokenizer; loaded once. A choice is printed."""
        return announce_dialect(self.recipe, self.model)

    async def environment(self) -> ToolEnvironment:
        """Return its environment; the tools are opened anew, but for the search over an index."""
        return make_environment(self.recipe, self.dialect, await self._tools())

    async def trajectory(self, task: Task, how: Decoding, seed: int = 0) -> Trajectory:
        """Roll out one question and return its trajectory."""
        async with self.playing(how, seed) as play:
            return await play(task, task.id)

    @asynccontextmanager
    async def playing(
        self, how: Decoding, seed: int = 0
    ) -> AsyncIterator[Callable[[Task, str], Awaitable[Trajectory]]]:
        """Yield a function that plays the rollout of a task and a key inside the block: with its
        tools, or in its environment of others."""
        policy = Policy(
            engine=self.engine, temperature=how.temperature, truncation=how.truncation, seed=seed
        )
        others = make_environment_of_others(self.recipe)
        if others is None:
            env = await self.environment()
            yield lambda task, key: rollout(task, policy, env, key)
            return
        costs = self.recipe.environment.tool_costs
        async with opened(others, self.dialect, self.recipe.budget, costs) as play:
            yield lambda task, key: play(task, policy, key)

    async def answer(
        self, tasks: Sequence[Task], judge: AskingReward | None, name: str, emit: Sink
    ) -> list[Trajectory]:
        """Answer and grade questions, sampled as the recipe's evaluation says."""
        settings = self.recipe.evaluation
        correct = make_correct(self.recipe, judge) if judge else await open_correct(self.recipe)
        async with self.playing(self.decoding(emit)) as play:
            return await evaluate(
                tasks,
                play,
                answer_rubric(judge, correct),
                settings.concurrency,
                name,
                emit,
                settings.samples_of,
                settings.max_broken,
            )

    async def _tools(self) -> list[AnyTool]:
        """Return the tools of the recipe; without an index or a server there is no search. Raises
        UserError where a program asked for one."""
        recipe, search = self.recipe, None
        if self.searches_nothing:
            if self.told_to_search and recipe.offers_search:
                raise UserError(
                    f"{self.model} has the tool {SEARCH} and nothing to search: train it with"
                    " corpus=FILE first, or load it with search={'url': ADDRESS} or without the"
                    " tool."
                )
            others = tuple(tool for tool in recipe.tools if tool.name != SEARCH)
            recipe = recipe.model_copy(update={"tools": others})
        index = self.index or self.model  # a server needs none
        if recipe.offers_search:
            search = self._index_tools[0] if self._index_tools else await open_search(recipe, index)
            self._index_tools[:] = [search] if isinstance(search, SearchTool) else []
        return await open_tools(recipe, index, search)

    @cached_property
    def _index_tools(self) -> list[SearchTool]:
        """The search over an index once it is open: to open one may take long. Other tools may
        belong to the event loop that they are first used in, and a server may be gone by now."""
        return []


def load(
    path: Path | str, *, tools: Tools | None = None, allow: Sequence[str] = (), **settings: Any
) -> Agent:
    """Return the agent in a run, one of its stages, or a checkpoint folder.

    Args:
        path: its folder, a `.gguf` file, or a name on the hub, as in "org/name".
        tools: what it may call, in place of its own: functions with `@tool`, classes, names as in a
            recipe; or a mapping of such to their settings.
        allow: what a folder of others may do, by the names of `recipes.asks.ASKS`, such as "mcp";
            it is remembered.
        settings: other keys of a recipe, such as dialect="hermes" or budget={"max_calls": 4}.

    Raises:
        UserError: there is no agent, or a setting is wrong.
        ConsentNeeded: the folder asks for more than to be read, and that is not allowed.
    """
    with allowing(allow):
        agent = find_agent(require_path(path, "path"))
    if tools is not None:
        settings["tools"] = choose_tools(tools)
    agent = agent.with_settings(**settings) if settings else agent
    return replace(agent, told_to_search=tools is not None and agent.recipe.offers_search)


def find_agent(path: Path) -> Agent:
    """Return the agent in RUN (its last finished stage), RUN/STAGE, RUN/STAGE/model, an exported
    folder or a bare checkpoint.

    Raises UserError where there is none.
    """
    return agent_in(*find_model(path))


def agent_in(run: RunFolder | None, model: Path) -> Agent:
    """Return the agent that a model is: in its run, exported, or bare. Raises ConsentNeeded as
    `require_trust` does."""
    require_trust(run, model)
    if run is not None:
        recipe = with_files(run.recipe, run.files).as_evaluated
        inputs = with_knowledge(make_inputs(run.recipe), run.knowledge)
        return Agent(model, recipe, run.index, inputs)
    if (exported := read_agent(model)) is not None:
        keys, index = exported
        return Agent(model, build_recipe(keys), index)
    return Agent(model, Recipe(recipe="none", stages={}), None)
