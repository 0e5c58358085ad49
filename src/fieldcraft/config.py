"""Recipes: YAML files <-> typed objects, dotted overrides, and errors that name the nearest key."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import resources
from math import ceil
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from fieldcraft.algorithms import ALGORITHMS
from fieldcraft.types import UserError

# Folders of a run and rows of its report that are not stages; with a model of the user's, `base` is
# the row of that model.
RESERVED = (
    *("world", "start", "index", "evaluations", "evaluation", "collect"),
    *("workflow", "rag", "reflexion"),
)

# How a teacher is reached, which a run that goes on may change: (section, key).
FREE_KEYS = (
    *(("teacher", key) for key in ("url", "api_key_env", "prices")),
    *(("teacher", key) for key in ("concurrency", "timeout_seconds", "retries")),
    ("collect", "max_failed"),
)

SIMULATED_SHARE = 5 / 6  # AutoCoA's
Share = Annotated[float, Field(gt=0, lt=1)]
Rate = Annotated[float, Field(ge=0)]
Dtype = Literal["float32", "bfloat16"]  # of a model's weights


class Section(BaseModel):
    """A part of a recipe. Unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class World(Section):
    """The synthetic world Atlas; see fieldcraft.worlds.atlas.deal."""

    people: PositiveInt = 200
    taught: Share = 0.4
    heldout: Share = 0.5
    variants: PositiveInt = 400  # re-deals of the untaught facts that demonstrations are drawn from
    reserved_chains: int = Field(default=0, ge=0, le=9)  # pairs of relations kept out of training


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
    encoder: str | None = None  # folder or hub name of a sentence-transformers model
    ranking: Literal["bm25", "dense", "hybrid"] | None = None  # None: hybrid with an encoder


class JudgeModel(Section):
    """A language model that judges answers, behind an OpenAI-compatible endpoint. Evaluations ask
    it where it is named; the reward `judge` makes reinforcement learning ask it too."""

    url: str | None = None
    model: str | None = None
    votes: PositiveInt = 3  # on every answer
    api_key_env: str = "OPENAI_API_KEY"  # the environment variable that holds the key


class Endpoint(Section):
    """A remote chat model behind an OpenAI-compatible endpoint."""

    url: str
    model: str
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
    row_length: PositiveInt = 192  # tokens of a packed row
    micro_tokens: PositiveInt = 4096  # tokens of a micro-batch
    autocast: bool = False  # bfloat16 matrix products in training
    activation_checkpointing: bool = False  # computes them twice instead of keeping them


class Lora(Section):
    """Adapters of low rank (LoRA, arXiv 2106.09685), trained in place of the model's own weights.
    There is no dropout: the policy that samples has none, and the two must be one."""

    rank: PositiveInt = 32
    alpha: PositiveInt = 32  # what an adapter adds is multiplied by alpha / rank
    targets: tuple[str, ...] = ()  # names of linear layers; empty: all but the output layer


class Stage(Section):
    """What every stage of training has."""

    start: str | None = None  # the stage to go on from, or `start`, the first model; None: the last
    optim: Optim
    checkpoint_every: PositiveInt = 25
    evaluate: bool = True  # a row in the report


class Supervised(Stage):
    """A stage over a data set, as long as `steps` or `epochs` says."""

    data: str
    examples: PositiveInt | None = None  # at most; None: as many as the data set has
    batch: PositiveInt = 16  # trajectories, or pairs
    steps: PositiveInt | None = None
    epochs: PositiveFloat | None = None

    @model_validator(mode="after")
    def _has_a_length(self) -> Self:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("a supervised stage has either steps or epochs: give one of them")
        return self

    def steps_over(self, examples: int) -> int:
        """How many steps the stage has with so many examples."""
        return self.steps or ceil((self.epochs or 1.0) * examples / self.batch)


class Sft(Supervised):
    """Supervised fine-tuning on trajectories. `train_on` names whose tokens are trained."""

    type: Literal["sft"]
    train_on: tuple[Literal["policy", "tool"], ...] = ("policy",)


class Pairs(Supervised):
    """Step-level contrastive training: chosen against rejected steps."""

    type: Literal["contrastive"]
    alpha: Rate = 0.2


class Critic(Section):
    """The value function of PPO: a scalar head on the hidden states of the policy, which it leaves
    as they are, or on those of a model of its own."""

    backbone: Literal["policy", "own"] = "own"
    optim: Optim | None = None  # None: that of the stage
    clip: PositiveFloat = 0.5  # how far a value may move in a step
    gamma: Annotated[float, Field(gt=0, le=1)] = 1.0
    gae_lambda: Annotated[float, Field(ge=0, le=1)] = 1.0


Algorithm = Literal[
    "grpo", "dr-grpo", "dapo", "gspo", "cispo", "rloo", "reinforce++", "reinforce++-baseline", "ppo"
]
RewardName = Literal["em", "f1", "cover_em", "format", "judge", "otc-grpo", "otc-ppo"]


class Rl(Stage):
    """Reinforcement learning: one clipped surrogate, of which every algorithm is a setting.

    `algorithm` sets the keys that `fieldcraft.algorithms` lists for it; what the recipe says itself
    wins. docs/algorithms.md explains every key.
    """

    type: Literal["rl"]
    algorithm: Algorithm = "grpo"
    steps: PositiveInt
    observations: Literal["real", "simulated", "mixed"] = "real"
    simulated_share: Share = SIMULATED_SHARE  # of the steps of a mixed stage
    simulator: Literal["policy", "frozen", "endpoint"] = "policy"
    simulator_stage: str | None = None  # whose model is frozen; None: the one the stage starts from
    endpoint: Endpoint | None = None
    questions: PositiveInt = 32  # of a step
    group: PositiveInt = 8  # rollouts of a question
    temperature: PositiveFloat = 1.0
    # what is rewarded
    rewards: dict[RewardName, float] = {"em": 1.0}
    accuracy: Literal["em", "f1", "cover_em", "judge"] = "em"  # a right answer scores 1 by it
    call_smoothing: PositiveFloat | None = None  # OTC's c; None: budget.max_calls
    overlong_penalty: Rate = 0.0  # for the longest rollouts
    overlong_limit: PositiveInt | None = None  # policy tokens; None: budget.total_tokens
    overlong_cache: PositiveInt | None = None  # tokens below it; None: a fifth of the limit
    # which rollouts are trained on
    keep_groups: Literal["all", "mixed-accuracy", "mixed-reward"] = "all"
    max_batches: PositiveInt = 10  # sampled in a step to fill it with groups that are kept
    train_truncated: bool = True
    # what stops the run
    max_tool_failures: Share = 0.9  # of a step's calls
    collapse_share: Share | None = 0.5  # of its best, below which exact match has collapsed
    # advantages
    baseline: Literal["none", "group", "others", "critic"] = "group"
    scale: Literal["none", "group", "batch"] = "group"
    critic: Critic = Critic()
    # the loss
    loss_weight: Literal["sequence", "token", "constant"] = "sequence"
    ratio: Literal["token", "sequence"] = "token"
    clip: Literal["ppo", "cispo"] = "ppo"
    clip_low: PositiveFloat = 0.2
    clip_high: PositiveFloat = 0.2
    dual_clip: Annotated[float, Field(gt=1)] | None = None
    kl_coef: Rate = 0.0
    kl_in: Literal["loss", "reward"] = "loss"
    entropy_coef: Rate = 0.0
    llds_coef: Rate = 0.0
    # between sampler and trainer
    importance: Literal["token", "sequence"] = "token"
    importance_cap: PositiveFloat | None = None  # None: no weight
    reject: Literal["token", "sequence", "geometric"] | None = None
    reject_low: Share = 0.5
    reject_high: Annotated[float, Field(gt=1)] = 2.0
    # optimiser steps for one sampling step
    epochs: PositiveInt = 1
    minibatches: PositiveInt = 1

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, data: Any) -> Any:
        """Put the keys of the named algorithm below those that are given."""
        name = data.get("algorithm", "grpo") if isinstance(data, dict) else None
        return {**ALGORITHMS.get(str(name), {}), **data} if name else data

    @model_validator(mode="after")
    def _agree(self) -> Self:
        """Raises ValueError for settings that would do nothing, or not what they say."""
        if self.llds_coef and self.epochs * self.minibatches == 1:
            raise ValueError(
                "llds_coef acts from the second optimiser step of a sampling step on: raise"
                " minibatches or epochs"
            )
        if self.dual_clip is not None and self.clip == "cispo":
            raise ValueError("dual_clip belongs to clip: ppo; remove it")
        if self.baseline == "critic" and self.scale == "group":
            raise ValueError("a critic gives every token its own baseline: scale none or batch")
        self._agree_on_simulator()
        return self

    @property
    def graders(self) -> set[str]:
        """What grades every rollout: the rewards, and whatever says which answers are right."""
        return {*self.rewards, self.accuracy}

    def _agree_on_simulator(self) -> None:
        if self.simulator != "policy" and self.observations == "real":
            raise ValueError("a simulator writes nothing with observations: real; use simulated")
        if self.simulated_share != SIMULATED_SHARE and self.observations != "mixed":
            raise ValueError("simulated_share belongs to observations: mixed; remove it")
        if self.simulator_stage is not None and self.simulator != "frozen":
            raise ValueError("simulator_stage belongs to simulator: frozen; remove it")
        if (self.endpoint is not None) != (self.simulator == "endpoint"):
            raise ValueError("simulator: endpoint and the section endpoint need each other")


AnyStage = Annotated[Sft | Pairs | Rl, Field(discriminator="type")]


Workflow = Literal["workflow", "rag", "reflexion"]  # `workflow` is ReAct


class Evaluation(Section):
    """Greedy evaluation of every stage on the same questions."""

    heldout: PositiveInt = 500
    train_region: PositiveInt = 100
    known: PositiveInt = 100
    mixed: NonNegativeInt = 0  # starting at known and held-out entities alike
    four_hops: NonNegativeInt = 0  # one more than any question of training has
    unseen_chains: NonNegativeInt = 0  # along the world's reserved chains
    workflows: tuple[Workflow, ...] = ("workflow",)  # around the first model
    concurrency: PositiveInt = 256


class Teacher(Section):
    """Who shows how to answer: with `url` the model of an OpenAI-compatible endpoint, else the
    checkpoint folder `model`, and with neither the oracle of the world."""

    url: str | None = None
    model: str | None = None
    api_key_env: str = "OPENAI_API_KEY"  # the environment variable that holds the key
    concurrency: PositiveInt = 16  # attempts side by side
    timeout_seconds: PositiveFloat = 120.0
    retries: int = Field(default=5, ge=0)
    temperature: Rate = 0.7
    prices: tuple[Rate, Rate] | None = None  # of a million tokens read, and written


class Collect(Section):
    """Demonstrations and pairs from a teacher; see fieldcraft.data.collect."""

    questions: PositiveInt = 20_000  # at most; one half is answered without tools, one with
    contrast: int = Field(default=3_000, ge=0)  # of them tried both ways, for pairs
    tries: PositiveInt = 4  # of a question, until one is right
    think_share: Share = 0.25  # of the pairs, at most, choose thinking
    max_failed: Share = 0.2  # of the attempts; more stop the run


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
    rows: dict[str, str] = {}  # of that table: title and the stage or workflow; empty: all of them
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
    _check_names(recipe)
    _check_seeds(recipe)
    for key in recipe.needs:
        path: Path | None = getattr(recipe, key)
        if path is None:
            raise UserError(f"recipe '{recipe.recipe}' needs {key}=PATH on the command line.")
    asks = [s for s in recipe.stages.values() if isinstance(s, Rl) and "judge" in s.graders]
    check_judge(recipe.judge, bool(asks))
    for key in ("model", "tasks", "corpus", "demonstrations", "pairs"):
        path = getattr(recipe, key)
        if path is not None and not path.exists():
            raise UserError(f"{key}={path} does not exist: give the path of an existing file.")
    _check_collection(recipe)
    return recipe


def _check_names(recipe: Recipe) -> None:
    """Stages that others start from, and those in the rows of a table, must exist."""
    earlier = ["start"]
    for name, stage in recipe.stages.items():
        if stage.start is not None and stage.start not in earlier:
            raise UserError(
                f"stage '{name}' starts from '{stage.start}', which does not come before it: use"
                f" one of {', '.join(earlier)}."
            )
        if isinstance(stage, Rl) and stage.simulator_stage not in (None, *earlier):
            raise UserError(
                f"stage '{name}' simulates with '{stage.simulator_stage}', which does not come"
                f" before it: use one of {', '.join(earlier)}."
            )
        earlier.append(name)
    for title, name in recipe.rows.items():
        if name not in evaluated(recipe):
            raise UserError(
                f"row '{title}' shows '{name}', which is never evaluated: use one of"
                f" {', '.join(evaluated(recipe))}."
            )


def _check_collection(recipe: Recipe) -> None:
    teacher = recipe.teacher
    if recipe.collect is None:
        if teacher != Teacher():
            raise UserError(
                "teacher is only for a recipe with collect: use the recipe autocoa-data."
            )
        return
    if recipe.stages:
        raise UserError(
            "a recipe with collect has no stages: train in a second run, with demonstrations= and"
            " pairs= of the files that this one writes."
        )
    if teacher.model is None and (teacher.url is not None or recipe.tasks is not None):
        raise UserError(
            "the teacher has no name: set teacher.model, the name of a model at teacher.url or the"
            " folder of a checkpoint."
        )


def _check_seeds(recipe: Recipe) -> None:
    if len(set(recipe.seeds)) < len(recipe.seeds):
        raise UserError(f"seeds={list(recipe.seeds)} names a seed twice: give each one once.")
    if recipe.seeds and recipe.seed:
        raise UserError(
            f"seed={recipe.seed} is one run and seeds={list(recipe.seeds)} several: for one alone"
            " set seeds=[] as well."
        )


def evaluated(recipe: Recipe) -> list[str]:
    """Everything that a run of the recipe evaluates: a model of the user's, workflows, stages."""
    first = ["base"] if recipe.model else []
    stages = [name for name, stage in recipe.stages.items() if stage.evaluate]
    return [*first, *recipe.evaluation.workflows, *stages]


def check_judge(judge: JudgeModel, needed: bool) -> None:
    """Raises UserError for a judge named by half, or not at all where one is needed."""
    named = [judge.url is not None, judge.model is not None]
    if any(named) != all(named) or (needed and not any(named)):
        raise UserError("a judge needs both a url and a model: set judge.url and judge.model.")


def recipe_of_run(run: Path) -> Recipe:
    """The recipe that a run folder was made with; the files it names may be gone by now.

    Raises UserError if the folder is not one run's, or one of another version's.
    """
    file = run / "recipe.json"
    if not file.exists():
        raise UserError(f"{run} is not a run: give a folder that 'fieldcraft run' wrote.")
    try:
        recipe = Recipe.model_validate_json(file.read_bytes())
    except ValidationError as error:
        raise UserError(
            f"{run} was made by another version of fieldcraft: use that version or run it anew."
        ) from error
    if recipe.seeds:
        raise UserError(
            f"{run} holds a run for every seed: give one of them, such as"
            f" {run / f'seed-{recipe.seeds[0]}'}."
        )
    return recipe


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
    message = problem["msg"].removeprefix("Value error, ")
    return f"'{place}' is wrong: {message[0].lower()}{message[1:]}."


def _fields_at(parts: list[str], data: dict[str, Any]) -> list[str]:
    """The keys that a section may have."""
    if not parts:
        return list(Recipe.model_fields)
    if parts[0] == "stages":
        kinds: dict[str, type[BaseModel]] = {"sft": Sft, "contrastive": Pairs, "rl": Rl}
        kind = kinds[data["stages"][parts[1]]["type"]]
        inner: dict[str, type[BaseModel]] = {"optim": Optim, "critic": Critic, "endpoint": Endpoint}
        return list(inner.get(parts[-1], kind).model_fields)
    section: type[BaseModel] = Recipe
    for part in parts:
        annotation = section.model_fields[part].annotation
        section = next(  # a section, or one that may be null
            kind
            for kind in (annotation, *get_args(annotation))
            if isinstance(kind, type) and issubclass(kind, BaseModel)
        )
    return list(section.model_fields)
