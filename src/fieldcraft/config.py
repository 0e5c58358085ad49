"""What a recipe can set: its sections as typed objects. `recipes/loading.py` reads them."""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from fieldcraft.algorithms import ALGORITHMS

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
