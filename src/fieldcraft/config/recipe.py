"""A whole recipe as a typed object. `recipes/loading.py` reads recipes from files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, PositiveInt, field_validator

from fieldcraft.config.sections import (
    Collect,
    Dtype,
    Endpoint,
    Evaluation,
    JudgeModel,
    Limits,
    Lora,
    Optim,
    Scratch,
    Search,
    Section,
    Teacher,
    ToolChoice,
    World,
)
from fieldcraft.config.stages import (
    AnyStage,
    Critic,
    Pairs,
    Rl,
    Sft,
)

# How a teacher is reached, which a run that goes on may change: (section, key).
FREE_KEYS = (
    *(("teacher", key) for key in ("url", "api_key_env", "prices")),
    *(("teacher", key) for key in ("concurrency", "timeout_seconds", "retries")),
    ("collect", "max_failed"),
)


class Recipe(Section):
    """A whole run. `model`, `tasks`, `corpus`, `demonstrations` and `pairs` are files of the user;
    where they are null, the world makes them. With `collect` it has a teacher and no stages."""

    recipe: str
    seed: int = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    lora: Lora | None = None  # None: all weights are trained
    # of weights that a stage only reads: the base of adapters, references, frozen simulators
    dtype: Dtype = "float32"
    max_rows: PositiveInt = 256  # rollouts whose keys and values are kept while they are sampled
    model: Path | None = None
    tasks: Path | None = None
    corpus: Path | None = None
    demonstrations: Path | None = None
    pairs: Path | None = None
    needs: tuple[Literal["model", "tasks", "corpus", "demonstrations", "pairs"], ...] = ()
    dialect: str = "autocoa"
    instruction: str | None = None
    system: str | None = None  # a system prompt
    template: dict[str, Any] = Field(default={})  # variables of the model's chat template
    tools: tuple[ToolChoice, ...] = (ToolChoice(name="search"),)
    world: World = World()
    scratch: Scratch = Scratch()
    search: Search = Search()
    judge: JudgeModel = JudgeModel()
    budget: Limits = Limits()
    teacher: Teacher = Teacher()
    collect: Collect | None = None
    stages: dict[str, AnyStage]
    seeds: tuple[int, ...] = ()  # a run for each, and a table over all of them
    side_by_side: PositiveInt = 1  # runs of several seeds at once
    # of that table: title and the stage or workflow; empty: all of them
    rows: dict[str, str] = Field(default={})
    evaluation: Evaluation = Evaluation()

    @field_validator("tools")
    @classmethod
    def _each_tool_once(cls, tools: tuple[ToolChoice, ...]) -> tuple[ToolChoice, ...]:
        names = [tool.name for tool in tools]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"it names '{name}' twice, so remove one of the two")
        return tools


def evaluated(recipe: Recipe) -> list[str]:
    """Everything that a run of the recipe evaluates: a model of the user's, workflows, stages."""
    first = ["base"] if recipe.model else []
    stages = [name for name, stage in recipe.stages.items() if stage.evaluate]
    return [*first, *recipe.evaluation.workflows, *stages]


def dump_recipe(recipe: Recipe) -> dict[str, Any]:
    """The resolved recipe as plain JSON values."""
    return recipe.model_dump(mode="json")


def count_options(section: type[BaseModel] = Recipe) -> int:
    """How many keys a recipe can set (each kind of section counted once)."""
    sections = (
        section,
        World,
        Scratch,
        Search,
        JudgeModel,
        Limits,
        ToolChoice,
        Lora,
        Optim,
        Critic,
        Endpoint,
        Teacher,
        Collect,
        Evaluation,
    )
    own = set(Sft.model_fields) | set(Pairs.model_fields) | set(Rl.model_fields)
    return sum(len(s.model_fields) for s in sections) + len(own)
