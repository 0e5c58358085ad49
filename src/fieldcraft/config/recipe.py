"""A whole recipe as a typed object. `recipes/loading.py` reads recipes from files."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    Field,
    InstanceOf,
    PositiveInt,
    SerializeAsAny,
    ValidationInfo,
    field_validator,
    model_validator,
)

from fieldcraft.config.budgets import BudgetPart, Period
from fieldcraft.config.choices import (
    EngineChoice,
    EnvironmentChoice,
    ToolChoice,
    TrackerChoice,
)
from fieldcraft.config.cluster import Cluster
from fieldcraft.config.collection import TEACHER, ClosedBook, Collect, Select
from fieldcraft.config.distil import Distil, Scorer
from fieldcraft.config.environment import fill_in, of_others
from fieldcraft.config.hub_names import as_named
from fieldcraft.config.names import AUTO, Kind, PartError, find, known, require, settings_of, short
from fieldcraft.config.rl import Async, Critic, Rl
from fieldcraft.config.sampling import SamplingConfig
from fieldcraft.config.sections import (
    DATE,
    DEFAULT_COST,
    Dtype,
    During,
    Endpoint,
    Evaluation,
    Fold,
    FolderName,
    JudgeModel,
    Limits,
    Lora,
    Optim,
    Scratch,
    Search,
    Section,
    World,
)
from fieldcraft.config.stages import Pairs, Sft, Stage
from fieldcraft.config.teacher import Teacher
from fieldcraft.types import UserError

MISMATCH_CAP = 2.0  # of the usual truncated importance sampling (verl, TRL)

# The settings of the stage types that are built in: those of others are found with the type.
STAGES: dict[str, type[Stage]] = {"sft": Sft, "contrastive": Pairs, "rl": Rl, "distil": Distil}


class Recipe(Section):
    """A whole run. `model`, `tasks`, `corpus`, `demonstrations` and `pairs` are files of the user;
    without `tasks` the world makes all that is null. With `collect` it has a teacher and no stages.
    With `select`, stages of reinforcement learning draw from selected questions; without stages,
    the run ends with these.
    """

    recipe: FolderName
    seed: int = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    lora: Lora | None = None  # None: all weights are trained
    dtype: Dtype = "float32"  # in which models compute; masters of what is trained are float32
    max_rows: PositiveInt = 256  # rollouts whose keys and values are kept while they are sampled
    engine: EngineChoice = EngineChoice()
    cluster: Cluster = Cluster()
    model: Path | None = None
    tasks: Path | None = None
    corpus: Path | None = None
    demonstrations: Path | None = None
    pairs: Path | None = None
    needs: tuple[Literal["model", "tasks", "corpus", "demonstrations", "pairs"], ...] = ()
    dialect: str | None = None  # None: what the model's chat template asks for
    instruction: str | None = None
    system: str | None = None  # a system prompt
    template: dict[str, Any] = Field(default={})  # variables of the model's chat template
    date: datetime.date = DATE  # what a chat template shows that writes a date; never the clock's
    environment: EnvironmentChoice = EnvironmentChoice()
    tools: tuple[ToolChoice, ...] = (ToolChoice(name="search"),)
    world: World | None = None
    scratch: Scratch = Scratch()
    trackers: tuple[TrackerChoice, ...] = ()  # that show the curves of the run
    search: Search = Search()
    judge: JudgeModel = JudgeModel()
    correct: str = AUTO  # the reward by which a right answer scores 1; auto: that of each task
    # demonstrations that nothing can grade are left out, or trusted
    ungraded: Literal["drop", "trust"] = "drop"
    # share of a file's records (questions, passages, demonstrations) that may not be understood
    max_left_out: Annotated[float, Field(ge=0, le=1)] = 0.1
    budget: Limits = Limits()
    teacher: Teacher = Teacher()
    collect: Collect | None = None
    select: Select | None = None
    closed_book: ClosedBook | None = None  # None: not measured
    stages: dict[str, SerializeAsAny[InstanceOf[Stage]]]  # see `stage_settings`
    seeds: tuple[int, ...] = ()  # a run for each, and a table over all of them
    side_by_side: PositiveInt = 1  # runs of several seeds at once
    # of that table: title and the stage or workflow; empty: all of them
    rows: dict[str, str] = Field(default={})
    # of that table too: title and two of its rows, of which the second is held against the first
    comparisons: dict[str, tuple[str, str]] = Field(default={})
    evaluation: Evaluation = Evaluation()

    @property
    def offers_search(self) -> bool:
        """Return whether `search` is one of its tools."""
        return any(tool.name == "search" for tool in self.tools)

    @property
    def searches_index(self) -> bool:
        """Return whether a run indexes its corpus, for the tool that searches it."""
        return self.search.url is None and self.offers_search

    @property
    def asks_files(self) -> bool:
        """Return whether questions come from the user's files, and not from the world or the
        environment."""
        return self.tasks is not None or bool(self.evaluation.tasks)

    @property
    def policy_dtype(self) -> Dtype:
        """Type in which a trained model computes: a base in another type is float32 as soon as its
        float32 adapter is added to it."""
        return self.dtype if self.lora is None else "float32"

    @property
    def highest_call_cost(self) -> float:
        """Highest cost of a call."""
        if self.environment.of_others:
            return max([DEFAULT_COST, *self.environment.tool_costs.values()])
        return max((tool.highest_cost for tool in self.tools), default=DEFAULT_COST)

    @model_validator(mode="before")
    @classmethod
    def _fill_in_for_an_environment(cls, data: Any) -> Any:
        return fill_in(data)

    @field_validator("comparisons", mode="before")
    @classmethod
    def _two_rows_each(cls, comparisons: Any) -> Any:
        if isinstance(comparisons, dict):
            for title, pair in comparisons.items():
                if not (isinstance(pair, list | tuple) and len(pair) == 2):
                    raise ValueError(f"'{title}' must name two rows, as in [the first, the second]")
        return comparisons

    @field_validator("trackers")
    @classmethod
    def _each_tracker_once(cls, trackers: tuple[TrackerChoice, ...]) -> tuple[TrackerChoice, ...]:
        names = [tracker.name for tracker in trackers]
        for name in names:
            require(Kind.TRACKER, name)
            if names.count(name) > 1:
                raise ValueError(f"it names '{name}' twice, so remove one of the two")
        return trackers

    @model_validator(mode="after")
    def _weigh_mismatch(self) -> Self:
        """Weigh the mismatch of sampler and trainer, if the recipe does not say otherwise. They
        round a decoded token and a batch differently, unless they compute in float32; and an
        asynchronous sampler may be older than the trainer."""
        for name, stage in self.stages.items():
            if not isinstance(stage, Rl) or {"importance_cap", "reject"} & stage.model_fields_set:
                continue
            if stage.asynchronous.max_staleness or self.dtype != "float32":
                self.stages[name] = stage.model_copy(update={"importance_cap": MISMATCH_CAP})
        return self

    @model_validator(mode="after")
    def _has_tools_to_withhold(self) -> Self:
        for name, stage in self.stages.items():
            if isinstance(stage, Rl) and stage.cot_share and not self.tools:
                raise ValueError(
                    f"stage '{name}' has a cot_share, and the recipe no tools that could be"
                    " unavailable: remove cot_share, or name tools"
                )
        return self

    @model_validator(mode="after")
    def _a_team_shows_one_way(self) -> Self:
        wanted = self.collect is not None and (self.collect.cot or self.collect.pairs)
        if wanted and self.teacher.team is not None:
            raise ValueError("a team always has its tools, so remove collect.cot and collect.pairs")
        return self

    @model_validator(mode="after")
    def _selects_by_a_folder(self) -> Self:
        select, remote = self.select, self.teacher.url is not None
        if select and remote and (select.toolless, select.sampling) == (TEACHER, "model"):
            raise ValueError(
                "select.sampling=model reads the folder of a model, and the teacher that answers"
                " without tools is behind a url: set select.temperature and the like instead"
            )
        return self

    @field_validator("correct")
    @classmethod
    def _is_a_reward(cls, name: str) -> str:
        if name != AUTO:
            require(Kind.REWARD, name)
        return name

    @field_validator("stages")
    @classmethod
    def _stages_have_budgets(
        cls, stages: dict[str, Stage], info: ValidationInfo
    ) -> dict[str, Stage]:
        budget = info.data.get("budget")
        if not isinstance(budget, Limits):  # which is told instead
            return stages
        for name, stage in stages.items():
            try:
                _require_one_request(budget, stage.periods(budget))
            except ValueError as error:
                raise ValueError(f"stage '{name}': {error}") from error
        return stages

    @field_validator("evaluation")
    @classmethod
    def _evaluates_within_a_budget(cls, evaluation: Evaluation, info: ValidationInfo) -> Evaluation:
        if isinstance(budget := info.data.get("budget"), Limits):
            budget.changed(evaluation.budget)
        return evaluation

    @property
    def as_evaluated(self) -> Recipe:
        """Recipe with the budget of its evaluations, under which its agent acts, too."""
        budget = self.budget.changed(self.evaluation.budget)
        evaluation = self.evaluation.model_copy(update={"budget": {}})
        return self.model_copy(update={"budget": budget, "evaluation": evaluation})

    @field_validator("tools")
    @classmethod
    def _each_tool_once(
        cls, tools: tuple[ToolChoice, ...], info: ValidationInfo
    ) -> tuple[ToolChoice, ...]:
        if tools and of_others(info.data.get("environment")):
            raise ValueError("an environment of others has none, so remove them")
        names = [name for tool in tools for name in tool.all_names]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"it names '{name}' twice, so remove one of the two")
        return tools


def _require_one_request(budget: Limits, periods: Sequence[Period]) -> None:
    """Raise ValueError unless all periods ask for summaries alike: a stage has one dialect, and
    that asks for them."""
    wanted = budget.fold.request if budget.fold is not None else None
    for period in periods:
        fold = period.limits.fold
        if fold is not None and fold.request != wanted:
            raise ValueError("the request of a fold is that of budget.fold: set it there")


def refuse_idle(recipe: Recipe) -> None:
    """Raise UserError for a recipe that neither trains, nor evaluates, nor collects or selects
    anything."""
    if not (recipe.stages or recipe.model or recipe.collect or recipe.select):
        raise UserError(
            f"recipe '{recipe.recipe}' does nothing: give it stages, or a model to evaluate."
        )


def acts(recipe: Recipe) -> bool:
    """Return whether a run uses its tools: a selection by itself may sample without them alone."""
    return bool(recipe.stages) or recipe.select is None or recipe.select.solver is not None


def stage_settings(name: str) -> type[Stage]:
    """Return the settings of a stage type. Raises UserError for a type that is none."""
    if name in STAGES:
        return STAGES[name]
    found = find(Kind.STAGE, name)
    settings = found.Settings
    if not (isinstance(settings, type) and issubclass(settings, Stage)):
        raise PartError(
            f"the Settings of the stage type '{name}' must be a subclass of fieldcraft.Stage."
        )
    return settings


def first_model(recipe: Recipe) -> str:
    """Return the evaluation of the model before any training to act, which workflows are built
    around."""
    return "base" if recipe.model else next(iter(recipe.stages))


def closed_book_model(recipe: Recipe) -> str:
    """Return the model whose closed-book rate a recipe measures: a stage, or `start`."""
    named = recipe.closed_book.model if recipe.closed_book is not None else None
    return named or ("start" if recipe.model else first_model(recipe))


def evaluations(recipe: Recipe) -> list[str]:
    """Return everything that a run of the recipe evaluates, in the order of the run: the first
    model, workflows around it, teachers, stages."""
    stages = [name for name, stage in recipe.stages.items() if stage.evaluate]
    first = ["base"] if recipe.model else [n for n in [*recipe.stages][:1] if n in stages]
    workflows = map(short, recipe.evaluation.workflows)
    return list(dict.fromkeys([*first, *workflows, *recipe.evaluation.teachers, *stages]))


def in_order_of_run(stages: Sequence[str], evaluated: Iterable[str]) -> list[str]:
    """Return the stages and evaluations in the one order in which they are shown: that of the
    evaluations, and stages without one behind the stages before them."""
    found: list[str] = []
    for name in evaluated:
        before = stages[: stages.index(name)] if name in stages else ()
        found += [*before, name]
    return list(dict.fromkeys([*found, *stages]))


def table_rows(recipe: Recipe) -> dict[str, str]:
    """Return the rows of the table over seeds: the title and the evaluation that each shows."""
    return recipe.rows or {name: name for name in evaluations(recipe)}


def dump_recipe(recipe: Recipe) -> dict[str, Any]:
    """Return the resolved recipe as plain JSON values. A copy from the hub has its name there, with
    the commit."""
    return as_named(recipe.model_dump(mode="json"))


def world_settings(name: str) -> type[BaseModel]:
    """Return the settings that a recipe can give to a world. Raises UserError where there is none
    of that name."""
    return settings_of(find(Kind.WORLD, name), ["seed"])


def split_titles(recipe: Recipe) -> Mapping[str, str]:
    """Return the splits of a recipe's world, and the titles of their questions; none without a
    world."""
    if recipe.world is None:
        return {}
    titles: Mapping[str, str] = find(Kind.WORLD, recipe.world.name).splits
    return titles


def toolless(recipe: Recipe) -> Sequence[str]:
    """Return the data sets of a recipe in which no tool is ever used."""
    if recipe.world is None:
        return ()
    names: Sequence[str] = find(Kind.WORLD, recipe.world.name).toolless
    return names


def count_options(section: type[BaseModel] = Recipe) -> int:
    """Return the number of keys that a recipe can set (each kind of section, and each world,
    counted once; so are those of sampling, which several sections have)."""
    sections: tuple[type[BaseModel], ...] = (
        section,
        World,
        Scratch,
        Search,
        JudgeModel,
        Limits,
        BudgetPart,
        Fold,
        EngineChoice,
        Cluster,
        EnvironmentChoice,
        ToolChoice,
        TrackerChoice,
        Lora,
        Optim,
        Async,
        Critic,
        Endpoint,
        Scorer,
        Teacher,
        Collect,
        Select,
        ClosedBook,
        Evaluation,
        During,
        *map(world_settings, known(Kind.WORLD)),
    )
    own = set[str]().union(*(stage.model_fields for stage in STAGES.values()))
    shared = SamplingConfig.model_fields.keys()
    again = sum(issubclass(s, SamplingConfig) for s in sections) - 1
    return sum(len(s.model_fields) for s in sections) - again * len(shared) + len(own)
