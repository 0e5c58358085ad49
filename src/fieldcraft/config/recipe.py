"""Schema of a recipe, and lineage of its stages. `recipes/loading.py` reads recipes from files."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import (
    BaseModel,
    Field,
    InstanceOf,
    PositiveInt,
    SerializeAsAny,
    field_validator,
    model_validator,
)

from fieldcraft.config.base import ConfigSection
from fieldcraft.config.choices import (
    EngineConfig,
    EnvironmentConfig,
    ToolConfig,
    TrackerConfig,
    apply_environment_defaults,
)
from fieldcraft.config.collection import (
    ClosedBookConfig,
    CollectConfig,
    SelectConfig,
    TeacherConfig,
)
from fieldcraft.config.components import AUTO_VERDICT, ComponentKind
from fieldcraft.config.distil import Distil
from fieldcraft.config.hub_names import replace_paths_with_names
from fieldcraft.config.names import ComponentError, get_display_name, make_settings_model, resolve
from fieldcraft.config.numbers import UnitFraction
from fieldcraft.config.rl import Rl
from fieldcraft.config.sections import (
    DEFAULT_CALL_COST,
    DEFAULT_DATE,
    BudgetConfig,
    ClusterConfig,
    CriterionConfig,
    Dtype,
    EvaluationConfig,
    FolderName,
    JudgeConfig,
    LoraConfig,
    SearchConfig,
    TinyModelConfig,
    WorldConfig,
)
from fieldcraft.config.stages import RETRIEVED_DATASET, Contrastive, Sft, Stage

DEFAULT_SAMPLER_IS_CAP = 2.0  # default of truncated importance sampling (verl, TRL)

# Settings of the built-in stage types; other types have them as an attribute.
BUILTIN_STAGE_CONFIGS: dict[str, type[Stage]] = {
    "sft": Sft,
    "contrastive": Contrastive,
    "rl": Rl,
    "distil": Distil,
}


class Recipe(ConfigSection):
    """A complete run. `model`, `tasks`, `corpus`, `demonstrations` and `pairs` are user-provided
    files; without `tasks`, the world makes all of them that are null. With `collect`, the recipe
    has a teacher and no stages. With `select`, stages of reinforcement learning use the selected
    questions; without stages, the run ends after the selection.
    """

    name: FolderName
    seed: int = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    lora: LoraConfig | None = None  # None: all weights are trained
    dtype: Dtype = "float32"  # compute type of models; master weights are float32
    max_num_seqs: PositiveInt = 256  # maximum rollouts with a KV cache during sampling
    engine: EngineConfig = EngineConfig()
    cluster: ClusterConfig = ClusterConfig()
    model: Path | None = None
    tasks: Path | None = None
    corpus: Path | None = None
    demonstrations: Path | None = None
    pairs: Path | None = None
    required_paths: tuple[Literal["model", "tasks", "corpus", "demonstrations", "pairs"], ...] = ()
    dialect: str | None = None  # None: derived from the model's chat template
    instruction: str | None = None
    system_prompt: str | None = None
    chat_template_kwargs: dict[str, Any] = Field(default={})  # of the chat template
    # date in chat templates that contain one; never the clock's
    date: datetime.date = DEFAULT_DATE
    environment: EnvironmentConfig = EnvironmentConfig()
    tools: tuple[ToolConfig, ...] = (ToolConfig(name="search"),)
    world: WorldConfig | None = None
    tiny_model: TinyModelConfig = TinyModelConfig()
    trackers: tuple[TrackerConfig, ...] = ()  # of the curves of the run
    search: SearchConfig = SearchConfig()
    judge: JudgeConfig = JudgeConfig()
    rubric: dict[str, CriterionConfig] = Field(default={})  # criteria of the reward `rubric`
    # reward that gives a correct answer 1; auto: the reward of each task
    verdict_reward: str = AUTO_VERDICT
    # demonstrations that cannot be graded are left out, or trusted
    ungraded: Literal["drop", "trust"] = "drop"
    # maximum share of unreadable records of a file (questions, passages, demonstrations)
    max_left_out: UnitFraction = 0.1
    budget: BudgetConfig = BudgetConfig()
    teacher: TeacherConfig = TeacherConfig()
    collect: CollectConfig | None = None
    select: SelectConfig | None = None
    # settings of `dataset: retrieved`, see extensions/curation/retrieved.py
    retrieve: dict[str, Any] = Field(default={})
    closed_book: ClosedBookConfig | None = None  # None: not measured
    stages: dict[str, SerializeAsAny[InstanceOf[Stage]]]  # see `resolve_stage_config`
    seeds: tuple[int, ...] = ()  # one run per seed, and a table over all of them
    parallel_seeds: PositiveInt = 1  # concurrent runs of several seeds
    # of that table: titles and their stages or workflows; empty: all
    table_rows: dict[str, str] = Field(default={})
    # of that table: titles and two rows, of which the second is compared with the first
    comparisons: dict[str, tuple[str, str]] = Field(default={})
    evaluation: EvaluationConfig = EvaluationConfig()

    @property
    def has_search_tool(self) -> bool:
        """Return whether `search` is one of its tools."""
        return any(tool.name == "search" for tool in self.tools)

    @property
    def needs_search_index(self) -> bool:
        """Return whether a run indexes its corpus for the search tool."""
        return self.search.url is None and self.has_search_tool

    @property
    def has_task_files(self) -> bool:
        """Return whether questions come from user-provided files instead of the world or the
        environment."""
        return self.tasks is not None or bool(self.evaluation.tasks)

    @property
    def policy_dtype(self) -> Dtype:
        """Data type in which a trained model computes. Adding a float32 adapter to a base model of
        another type results in float32."""
        return self.dtype if self.lora is None else "float32"

    @property
    def max_call_cost(self) -> float:
        """Highest cost of a call."""
        if self.environment.is_external:
            return max([DEFAULT_CALL_COST, *self.environment.tool_costs.values()])
        return max((tool.max_call_cost for tool in self.tools), default=DEFAULT_CALL_COST)

    @model_validator(mode="before")
    @classmethod
    def _apply_environment_defaults(cls, data: Any) -> Any:
        return apply_environment_defaults(data)

    @field_validator("comparisons", mode="before")
    @classmethod
    def _check_comparisons(cls, comparisons: Any) -> Any:
        if isinstance(comparisons, dict):
            for title, pair in comparisons.items():
                if not (isinstance(pair, list | tuple) and len(pair) == 2):
                    raise ValueError(f"'{title}' must name two rows, as in [the first, the second]")
        return comparisons

    @model_validator(mode="after")
    def _set_sampler_is_cap(self) -> Self:
        """Correct the mismatch of sampler and trainer by importance weights, unless the recipe
        configures it. They round differently in decoding and in batches, unless they compute in
        float32, and an asynchronous sampler may have older weights than the trainer."""
        for name, stage in self.stages.items():
            if (
                not isinstance(stage, Rl)
                or {"sampler_is_cap", "sampler_reject"} & stage.model_fields_set
            ):
                continue
            is_needed = stage.asynchronous.max_staleness or self.dtype != "float32"
            if is_needed and stage.uses_sampler_weight:
                self.stages[name] = stage.model_copy(
                    update={"sampler_is_cap": DEFAULT_SAMPLER_IS_CAP}
                )
        return self

    @property
    def evaluation_recipe(self) -> Recipe:
        """Recipe with the budget of its evaluations, which its agent uses, too."""
        budget = self.budget.with_changes(self.evaluation.budget)
        evaluation = self.evaluation.model_copy(update={"budget": {}})
        return self.model_copy(update={"budget": budget, "evaluation": evaluation})


def trains_on_retrieved(stage: Stage) -> bool:
    """Return whether a stage is trained on demonstrations that the search of the run makes."""
    return getattr(stage, "dataset", None) == RETRIEVED_DATASET


def uses_tools(recipe: Recipe) -> bool:
    """Return whether a run uses its tools: a selection without stages may sample only without."""
    return bool(recipe.stages) or recipe.select is None or recipe.select.solver is not None


def resolve_stage_config(name: str) -> type[Stage]:
    """Return the settings of a stage type. Raises UserError for an unknown type."""
    if name in BUILTIN_STAGE_CONFIGS:
        return BUILTIN_STAGE_CONFIGS[name]
    found = resolve(ComponentKind.STAGE, name)
    settings = found.Settings
    if not (isinstance(settings, type) and issubclass(settings, Stage)):
        raise ComponentError(
            f"the Settings of the stage type '{name}' must be a subclass of fieldcraft.Stage."
        )
    return settings


def list_added_keys(stage_type: str) -> Collection[str]:
    """Return the keys that a stage type adds to its built-in base type. Raises UserError for an
    unknown type."""
    settings = resolve_stage_config(stage_type)
    bases = (base for base in settings.__mro__ if issubclass(base, Stage))
    builtin = next(base for base in bases if base.__module__.startswith("fieldcraft."))
    return settings.model_fields.keys() - builtin.model_fields.keys()


def get_first_model(recipe: Recipe) -> str:
    """Return the evaluation of the model before any agent training, which workflows use."""
    return "base" if recipe.model else next(iter(recipe.stages))


def get_closed_book_model(recipe: Recipe) -> str:
    """Return the model whose closed-book rate a recipe measures: a stage, or `start`."""
    named = recipe.closed_book.model if recipe.closed_book is not None else None
    return named or ("start" if recipe.model else get_first_model(recipe))


def sort_by_run_order(stages: Sequence[str], evaluated: Iterable[str]) -> list[str]:
    """Return stages and evaluations in display order: the order of the evaluations, with stages
    without an evaluation after the preceding stages."""
    found: list[str] = []
    for name in evaluated:
        before = stages[: stages.index(name)] if name in stages else ()
        found += [*before, name]
    return list(dict.fromkeys([*found, *stages]))


def dump_recipe(recipe: Recipe) -> dict[str, Any]:
    """Return the resolved recipe as plain JSON values. Copies from the hub are represented by their
    hub names with commits."""
    return replace_paths_with_names(recipe.model_dump(mode="json"))


def make_world_settings_model(name: str) -> type[BaseModel]:
    """Return a model of the settings of a world. Raises UserError for an unknown world."""
    return _make_world_model(resolve(ComponentKind.WORLD, name))


@lru_cache(maxsize=16)  # creating a model takes 10 ms
def _make_world_model(world: type) -> type[BaseModel]:
    return make_settings_model(world, ["seed"])


def get_split_titles(recipe: Recipe) -> Mapping[str, str]:
    """Return the titles of the questions of each split of a recipe's world; empty without a
    world."""
    if recipe.world is None:
        return {}
    titles: Mapping[str, str] = resolve(ComponentKind.WORLD, recipe.world.name).splits
    return titles


def list_toolless_datasets(recipe: Recipe) -> Sequence[str]:
    """Return the data sets of a recipe that never use tools."""
    if recipe.world is None:
        return ()
    names: Sequence[str] = resolve(ComponentKind.WORLD, recipe.world.name).toolless_datasets
    return names


def get_stage_ancestry(recipe: Recipe, name: str) -> list[str]:
    """Return the stages that trained the model of a stage or a workflow, in order."""
    starts, before = {}, "start"
    for stage, settings in recipe.stages.items():
        starts[stage] = settings.start_from or before
        before = stage
    current = (
        get_first_model(recipe)
        if name in map(get_display_name, recipe.evaluation.workflows)
        else name
    )
    ancestry: list[str] = []
    while current in starts:  # neither `start` nor a user-provided model is a stage
        ancestry.insert(0, current)
        current = starts[current]
    return ancestry


def was_trained_with_tools(recipe: Recipe, name: str) -> bool:
    """Return whether an evaluated model was trained with tools. All stages have tools, except those
    on a data set without tools; a user-provided model has no stages.
    """
    without_tools = list_toolless_datasets(recipe)
    data = (
        getattr(recipe.stages[stage], "dataset", None) for stage in get_stage_ancestry(recipe, name)
    )
    return any(found not in without_tools for found in data)
