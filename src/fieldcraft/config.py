"""Recipes: YAML files <-> typed objects, dotted overrides, and errors that name the nearest key."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, ValidationError

from fieldcraft.types import UserError

# Folders of a run and rows of its report that are not stages; with a model of the user's, `base` is
# the row of that model.
RESERVED = ("world", "start", "index", "evaluations", "evaluation", "workflow")

RewardName = Literal["em", "f1", "cover_em", "format", "judge"]
Share = Annotated[float, Field(gt=0, lt=1)]
Rate = Annotated[float, Field(ge=0)]


class Section(BaseModel):
    """A part of a recipe. Unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class World(Section):
    """The synthetic world Atlas; see fieldcraft.worlds.atlas.deal."""

    people: PositiveInt = 200
    taught: Share = 0.4
    heldout: Share = 0.5
    variants: PositiveInt = 400  # re-deals of the untaught facts that demonstrations are drawn from


class Scratch(Section):
    """The shape of a model made from nothing (Qwen2 architecture)."""

    layers: int = Field(default=3, ge=2)
    width: PositiveInt = 64
    heads: PositiveInt = 2


class Search(Section):
    """The search tool: an index of `corpus`, or a server that speaks the field's protocol."""

    topk: PositiveInt = 3
    url: str | None = None
    timeout_seconds: PositiveFloat = 10.0
    k1: PositiveFloat = 0.9
    b: Rate = 0.4


class JudgeModel(Section):
    """A language model that judges answers, behind an OpenAI-compatible endpoint. Evaluations ask
    it where it is named; the reward `judge` makes reinforcement learning ask it too."""

    url: str | None = None
    model: str | None = None
    votes: PositiveInt = 3  # on every answer
    api_key_env: str = "OPENAI_API_KEY"  # the environment variable that holds the key


class Limits(Section):
    """What one trajectory may spend."""

    max_calls: PositiveInt = 6
    turn_tokens: PositiveInt = 256
    total_tokens: PositiveInt = 2048


class Optim(Section):
    """AdamW, its schedule, and how a step is cut into micro-batches."""

    lr: PositiveFloat
    warmup: int = Field(default=0, ge=0)
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    weight_decay: Rate = 0.0
    beta1: Rate = 0.9
    beta2: Rate = 0.95
    clip_norm: PositiveFloat = 1.0
    row_length: PositiveInt = 256  # tokens of a packed row
    micro_tokens: PositiveInt = 4096  # tokens of a micro-batch
    autocast: bool = False  # bfloat16 matrix products in training


class Stage(Section):
    """What every stage of training has."""

    optim: Optim
    steps: PositiveInt
    checkpoint_every: PositiveInt = 25
    evaluate: bool = True  # a row in the report


class Sft(Stage):
    """Supervised fine-tuning on trajectories. `train_on` names whose tokens are trained."""

    type: Literal["sft"]
    data: str
    examples: PositiveInt = 100_000  # at most
    train_on: tuple[Literal["policy", "tool"], ...] = ("policy",)
    batch: PositiveInt = 16


class Pairs(Stage):
    """Step-level contrastive training: chosen against rejected steps."""

    type: Literal["contrastive"]
    data: str
    examples: PositiveInt = 100_000  # at most
    alpha: Rate = 0.2
    batch: PositiveInt = 16  # pairs


class Rl(Stage):
    """Reinforcement learning with group-relative advantages and a clipped surrogate."""

    type: Literal["rl"]
    observations: Literal["real", "simulated"] = "real"
    questions: PositiveInt = 32  # of a step
    group: PositiveInt = 8  # rollouts of a question
    temperature: PositiveFloat = 1.0
    rewards: dict[RewardName, float] = {"em": 1.0}
    normalise_std: bool = True
    loss_weight: Literal["sequence", "token"] = "token"
    clip_low: PositiveFloat = 0.2
    clip_high: PositiveFloat = 0.2
    importance_cap: PositiveFloat | None = None  # None: trust the sampler's log-probabilities
    kl_coef: Rate = 0.0
    entropy_coef: Rate = 0.0
    max_tool_failures: Share = 0.9  # a step above it stops the run


AnyStage = Annotated[Sft | Pairs | Rl, Field(discriminator="type")]


class Evaluation(Section):
    """Greedy evaluation of every stage on the same questions."""

    heldout: PositiveInt = 500
    train_region: PositiveInt = 100
    known: PositiveInt = 100
    workflow: bool = True  # a ReAct-style workflow around the first model as well
    concurrency: PositiveInt = 256


class Recipe(Section):
    """A whole run. `model`, `tasks`, `corpus` and `demonstrations` are files of the user; where
    they are null, the world makes them."""

    recipe: str
    seed: int = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    model: Path | None = None
    tasks: Path | None = None
    corpus: Path | None = None
    demonstrations: Path | None = None
    needs: tuple[Literal["model", "tasks", "corpus", "demonstrations"], ...] = ()
    dialect: str = "autocoa"
    instruction: str | None = None
    world: World = World()
    scratch: Scratch = Scratch()
    search: Search = Search()
    judge: JudgeModel = JudgeModel()
    budget: Limits = Limits()
    stages: dict[str, AnyStage]
    evaluation: Evaluation = Evaluation()


def shipped() -> list[str]:
    """Names of the recipes in the package."""
    folder = resources.files("fieldcraft.recipes")
    return sorted(f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name[-5:] == ".yaml")


def load_recipe(name: str, overrides: list[str]) -> Recipe:
    """A recipe by shipped name or path, with `key.path=value` overrides.

    Raises UserError for an unknown name or key (naming the nearest) and for bad values.
    """
    if name in shipped():
        text = (resources.files("fieldcraft.recipes") / f"{name}.yaml").read_bytes()
    elif Path(name).is_file():
        text = Path(name).read_bytes()
    else:
        near = get_close_matches(name, shipped(), n=1, cutoff=0.0)
        raise UserError(
            f"there is no recipe '{name}': give a path to a YAML file or one of"
            f" {', '.join(shipped())}; did you mean '{near[0]}'?"
        )
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"{name} is not valid YAML: {' '.join(str(error).split())}.") from error
    if not isinstance(data, dict):
        raise UserError(f"{name} must be a YAML mapping with the keys of a recipe.")
    for override in overrides:
        _apply(data, override)
    return parse_recipe(data)


def parse_recipe(data: dict[str, Any]) -> Recipe:
    """Validate the contents of a recipe file. Raises UserError with the first problem."""
    try:
        recipe = Recipe.model_validate(data)
    except ValidationError as error:
        raise UserError(_sentence(error, data)) from error
    taken = (*RESERVED, "base") if recipe.model else RESERVED
    for name in recipe.stages:
        if name in taken or not name.replace("-", "").replace("_", "").isalnum():
            raise UserError(
                f"a stage cannot be called '{name}': choose another name, of letters, digits, -"
                " and _, which becomes that of its folder."
            )
    for key in recipe.needs:
        path: Path | None = getattr(recipe, key)
        if path is None:
            raise UserError(f"recipe '{recipe.recipe}' needs {key}=PATH on the command line.")
    asks = any(isinstance(s, Rl) and "judge" in s.rewards for s in recipe.stages.values())
    check_judge(recipe.judge, asks)
    for key in ("model", "tasks", "corpus", "demonstrations"):
        path = getattr(recipe, key)
        if path is not None and not path.exists():
            raise UserError(f"{key}={path} does not exist: give the path of an existing file.")
    return recipe


def check_judge(judge: JudgeModel, needed: bool) -> None:
    """Raises UserError for a judge named by half, or not at all where one is needed."""
    named = [judge.url is not None, judge.model is not None]
    if any(named) != all(named) or (needed and not any(named)):
        raise UserError("a judge needs both a url and a model: set judge.url and judge.model.")


def recipe_of_run(run: Path) -> Recipe:
    """The recipe that a run folder was made with; the files it names may be gone by now.

    Raises UserError if the folder is not a run's, or one of another version's.
    """
    file = run / "recipe.json"
    if not file.exists():
        raise UserError(f"{run} is not a run: give a folder that 'fieldcraft run' wrote.")
    try:
        return Recipe.model_validate_json(file.read_bytes())
    except ValidationError as error:
        raise UserError(
            f"{run} was made by another version of fieldcraft: use that version or run it anew."
        ) from error


def dump_recipe(recipe: Recipe) -> dict[str, Any]:
    """The resolved recipe as plain JSON values."""
    return recipe.model_dump(mode="json")


def count_options(section: type[BaseModel] = Recipe) -> int:
    """How many keys a recipe can set (each kind of section counted once)."""
    sections = (section, World, Scratch, Search, JudgeModel, Limits, Optim, Evaluation)
    own = set(Sft.model_fields) | set(Pairs.model_fields) | set(Rl.model_fields)
    return sum(len(s.model_fields) for s in sections) + len(own)


def _apply(data: dict[str, Any], override: str) -> None:
    key, equals, value = override.partition("=")
    if not equals or not key:
        raise UserError(f"'{override}' is not an override: write key=value, as in seed=7.")
    *parents, last = key.split(".")
    node = data
    for parent in parents:
        child = node.setdefault(parent, {})
        if not isinstance(child, dict):
            raise UserError(f"'{key}' cannot be set, because '{parent}' is a single value.")
        node = child
    try:
        node[last] = yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise UserError(f"the value of '{override}' is not valid YAML; quote it.") from error


def _sentence(error: ValidationError, data: dict[str, Any]) -> str:
    problem = error.errors()[0]
    kinds = {"sft", "contrastive", "rl"}
    # pydantic puts the tag of a discriminated union into the location; the file does not have it.
    parts = [str(p) for i, p in enumerate(problem["loc"]) if not (i == 2 and p in kinds)]
    place = ".".join(parts)
    if problem["type"] == "extra_forbidden":
        fields = _fields_at(parts[:-1], data)
        near = get_close_matches(parts[-1], fields, n=1, cutoff=0.0)
        return f"unknown key '{place}'; did you mean '{'.'.join([*parts[:-1], *near])}'?"
    if parts[-1] == "[key]":  # of a mapping whose keys are listed
        known = problem["ctx"]["expected"]
        near = get_close_matches(parts[-2], known.split("'")[1::2], n=1, cutoff=0.0)
        place = ".".join(parts[:-1])
        return f"unknown key '{place}'; did you mean '{'.'.join([*parts[:-2], *near])}'?"
    if problem["type"] in ("missing", "union_tag_not_found") and parts[0] == "stages" != place:
        missing = ".".join(parts[2:]) or "type"
        others = ", ".join(name for name in data["stages"] if name != parts[1])
        return f"stage '{parts[1]}' has no '{missing}'; the other stages are {others or 'none'}."
    return f"'{place}' is wrong: {problem['msg'][0].lower()}{problem['msg'][1:]}."


def _fields_at(parts: list[str], data: dict[str, Any]) -> list[str]:
    """The keys that a section may have."""
    if not parts:
        return list(Recipe.model_fields)
    if parts[0] == "stages":
        kinds: dict[str, type[BaseModel]] = {"sft": Sft, "contrastive": Pairs, "rl": Rl}
        kind = kinds[data["stages"][parts[1]]["type"]]
        return list(Optim.model_fields if parts[-1] == "optim" else kind.model_fields)
    section = Recipe.model_fields[parts[0]].annotation
    assert isinstance(section, type)
    assert issubclass(section, BaseModel)
    return list(section.model_fields)
