"""The sections of a recipe, apart from its stages."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo

from fieldcraft.config.names import ComponentKind, resolve_path, suggest_name, validate_folder_name
from fieldcraft.config.sampling import (
    DEFAULT_SOURCE,
    GREEDY_SAMPLES_MESSAGE,
    SampleCounts,
    SamplingConfig,
    count_samples,
)
from fieldcraft.config.validation_errors import describe_validation_error
from fieldcraft.types import Task

Fraction01 = Annotated[float, Field(gt=0, lt=1)]
DEFAULT_MAX_BROKEN = 0.02  # by so much the exact match of an evaluation may be wrong
NonNegativeNumber = Annotated[float, Field(ge=0)]
AdamBeta = Annotated[float, Field(ge=0, lt=1)]  # of the mean before that a mean keeps
FolderName = Annotated[str, Field(max_length=100), AfterValidator(validate_folder_name)]
DEFAULT_DATE = date(2024, 7, 26)  # of a recipe that names none: prompts do not depend on the clock
DEFAULT_CALL_COST = 1.0  # of a call, so that without prices a cost is a number of calls
Cost = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Dtype = Literal["float32", "bfloat16"]  # of a model's weights


class ConfigSection(BaseModel):
    """A part of a recipe. Unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def get_recipe_keys(section: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the keys of a section, as a recipe writes them."""
    return {field.alias or name: field for name, field in section.model_fields.items()}


class WorldConfig(ConfigSection):
    """A synthetic world by name; its other keys are settings of that world's own."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str

    @property
    def settings(self) -> dict[str, Any]:
        """All keys but the name."""
        return dict(self.model_extra or {})


class TinyModelConfig(ConfigSection):
    """The shape of a model made from nothing (Qwen2 architecture)."""

    layers: int = Field(default=3, ge=2)
    width: PositiveInt = 64
    heads: PositiveInt = 2

    @model_validator(mode="after")
    def _check_head_width(self) -> Self:
        if self.width % (2 * self.heads):
            raise ValueError(
                f"width={self.width} must be a multiple of twice heads={self.heads}, because the"
                " positions turn pairs of numbers of each head"
            )
        return self


class SearchConfig(ConfigSection):
    """The search tool: an index of `corpus`, or a server that speaks the field's protocol."""

    top_k: PositiveInt = 3
    url: str | None = None
    api_key_env: str | None = None  # the environment variable that holds the key of that server
    timeout_seconds: PositiveFloat = 10.0
    encoder: str | None = None  # folder or hub name of a sentence-transformers model
    ranking: Literal["bm25", "dense", "hybrid"] | None = None  # None: hybrid with an encoder
    failures: Annotated[float, Field(ge=0, lt=1)] = 0.0  # share of the calls that fail on purpose

    @model_validator(mode="after")
    def _check_server_keys(self) -> Self:
        if self.api_key_env is not None and self.url is None:
            raise ValueError(
                "api_key_env applies to a search server only: set url, or remove api_key_env"
            )
        if self.failures and self.url is not None:
            raise ValueError("failures is of the search over an index: remove it, or url")
        return self


class JudgeConfig(ConfigSection):
    """A model at an OpenAI-compatible endpoint, asked in evaluations and by the reward `judge`."""

    url: str | None = None
    model: str | None = None
    votes: PositiveInt = 3  # on every answer
    api_key_env: str = "OPENAI_API_KEY"  # the environment variable that holds the key


class EndpointConfig(ConfigSection):
    """A remote chat model behind an OpenAI-compatible endpoint."""

    url: str
    model: str
    api_key_env: str = "OPENAI_API_KEY"  # the environment variable that holds the key


class FoldConfig(ConfigSection):
    """Fold of a rollout: a chain ends in a summary, and another one goes on from there."""

    trigger_tokens: PositiveInt  # after an observation, a chain with as many is folded
    max_folds: PositiveInt = 8  # folds of a rollout; then its last chain goes on to its end
    prompt: str | None = None  # text before the tag of the summary; None: the dialect's own


# Of a budget: what a rollout may spend. Its other keys are of the tools, which a run opens once.
ROLLOUT_BUDGET_KEYS = (
    *("max_calls", "max_turn_tokens", "max_context_tokens", "fold", "max_observation_tokens"),
    *("at_limit", "answer_tokens", "max_refusals"),
)
DEFAULT_ANSWER_TOKENS = 64  # held back for an answer, unless a recipe says otherwise
# Keys of a budget that only one way of ending it has.
_KEY_LIMIT_ACTIONS = {"answer_tokens": "answer", "max_refusals": "tell"}


def validate_budget_changes(changes: dict[str, Any]) -> dict[str, Any]:
    """Return the changes. Raises ValueError for a key that is none of a rollout's budget."""
    for key in changes:
        if key in get_recipe_keys(BudgetConfig) and key not in ROLLOUT_BUDGET_KEYS:
            raise ValueError(f"{key} can only be set for the whole run: set budget.{key}")
        if key not in ROLLOUT_BUDGET_KEYS:
            raise ValueError(f"it has no key '{key}'; {suggest_name(key, ROLLOUT_BUDGET_KEYS)}")
    return changes


# Keys of a budget that are not the recipe's, and their values; see `BudgetConfig.with_changes`.
BudgetChanges = Annotated[dict[str, Any], AfterValidator(validate_budget_changes)]


class BudgetConfig(ConfigSection):
    """Limits on what one trajectory may spend, and on what one call may."""

    max_calls: PositiveInt = 6  # attempts that were no proper call included
    max_turn_tokens: PositiveInt = 256
    max_context_tokens: PositiveInt = 2048  # of a chain, prompt and observations included
    fold: FoldConfig | None = None  # None: a rollout is one chain
    # where calls or tokens are spent: the policy is made to answer, or the rollout ends, or the
    # policy is told that it may not call any more
    at_limit: Literal["answer", "end", "tell"] = "tell"
    answer_tokens: PositiveInt | None = None  # of an answer that it is made to give; None: 64
    # turns whose calls are over max_calls, after each of which it may go on; None: 1
    max_refusals: PositiveInt | None = None
    # of one observation's text; the middle of a longer one is left out, and the model told so
    max_observation_tokens: int = Field(default=2048, ge=64)
    token_cost: Cost = 0.0  # of 1,000 policy tokens, in the unit of the costs of tools
    call_timeout_seconds: PositiveFloat = 60.0  # also of opening and of closing a tool
    reward_seconds: PositiveFloat = 60.0  # of the user's own reward, for a group of rollouts
    max_concurrent_calls: PositiveInt = 64  # that run at once, over all rollouts

    @model_validator(mode="after")
    def _check_fold(self) -> Self:
        if self.fold is not None and self.fold.trigger_tokens >= self.max_context_tokens:
            raise ValueError(
                f"a chain ends at max_context_tokens={self.max_context_tokens}, before it would be"
                f" folded, so set fold.trigger_tokens={self.fold.trigger_tokens} lower"
            )
        return self

    @model_validator(mode="after")
    def _check_limit_keys(self) -> Self:
        for key, ending in _KEY_LIMIT_ACTIONS.items():
            if getattr(self, key) is not None and self.at_limit != ending:
                raise ValueError(f"{key} has no effect unless at_limit is {ending}: remove it")
        return self

    def with_changes(self, changes: dict[str, Any]) -> BudgetConfig:
        """Return the budget with other values of some keys, inside of `fold` too. Raises ValueError
        for a wrong one, and for values that do not agree."""
        keys = self.model_dump() | changes
        for key, ending in _KEY_LIMIT_ACTIONS.items():
            if keys["at_limit"] != ending and key not in changes:
                keys[key] = None
        if self.fold is not None and isinstance(own := changes.get("fold"), dict):
            keys["fold"] = self.fold.model_dump() | own
        try:
            return BudgetConfig.model_validate(keys)
        except ValidationError as error:
            _, clause, place = describe_validation_error(error)
            raise ValueError(f"{'.'.join(map(str, ('budget', *place)))}: {clause}") from error


def _validate_steps_or_share(warmup: float) -> float:
    if warmup >= 1 and warmup != int(warmup):
        raise ValueError(
            f"it is a whole number of steps, or below 1 a share of them, as in 0.1, not {warmup}"
        )
    return warmup


class Optim(ConfigSection):
    """AdamW, its schedule, and how a step is cut into micro-batches."""

    lr: PositiveFloat
    # steps before the full rate; below 1 the share that they are of the stage's steps
    warmup_steps: Annotated[float, Field(ge=0), AfterValidator(_validate_steps_or_share)] = 0.0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    weight_decay: Annotated[float, Field(ge=0, le=1)] = 0.0
    beta1: AdamBeta = 0.9
    beta2: AdamBeta = 0.95
    max_grad_norm: PositiveFloat = 1.0
    micro_batch_tokens: PositiveInt = 4096  # tokens of a micro-batch
    # AdamW's moments: 8bit takes a quarter of the memory; cpu moves them out of a GPU that is full
    optimizer_state: Literal["float32", "8bit", "cpu"] = "float32"
    activation_checkpointing: bool = False  # computes them twice instead of keeping them

    def count_warmup_steps(self, total_steps: int) -> int:
        """Return the number of steps before the full rate, in a stage of `total_steps`."""
        return (
            round(self.warmup_steps * total_steps)
            if self.warmup_steps < 1
            else int(self.warmup_steps)
        )


class LoraConfig(ConfigSection):
    """Adapters of low rank (LoRA, arXiv 2106.09685), trained in place of the model's own weights.
    There is no dropout: the policy that samples has none, and the two must be one."""

    rank: PositiveInt = 32
    alpha: PositiveInt = 32  # what an adapter adds is multiplied by alpha / rank
    targets: tuple[str, ...] = ()  # names of linear layers; empty: all but the output layer


class PeriodicEvalConfig(ConfigSection):
    """Greedy evaluation of a stage while it trains, on the leading split."""

    every: PositiveInt = 10  # steps
    questions: PositiveInt = 50


class EvaluationConfig(SamplingConfig):
    """Evaluation of every stage on the same questions, greedily or with several samples of each."""

    # files of the user's questions, a split each; a single one is `heldout`
    tasks: dict[str, Path] = Field(default={})
    # how many questions of which split, the leading one first: of the world, of a file of `tasks`
    # (all by default), or, as `heldout`, of the user's questions to train on
    splits: dict[str, NonNegativeInt] = Field(default={"heldout": 500})
    workflows: tuple[str, ...] = ("workflow",)  # around the first model
    concurrency: PositiveInt = 256
    # share of the questions that may meet a tool or an engine that failed; more stop it
    max_broken: Annotated[float, Field(ge=0, le=1)] = DEFAULT_MAX_BROKEN
    samples: SampleCounts = Field(
        default={DEFAULT_SOURCE: 1}
    )  # of each question, or by split or data source
    verifier: str | None = None  # picks one of the samples of a question: best of n
    # who else answers: `team` is that of the section teacher, `lone` one model of it (ReAct)
    teachers: tuple[Literal["team", "lone"], ...] = ()
    # of a million tokens that models without prices of their own read, and write
    prices: tuple[NonNegativeNumber, NonNegativeNumber] | None = None
    periodic: PeriodicEvalConfig | None = None
    budget: BudgetChanges = Field(default={})  # what differs from that of the recipe

    @model_validator(mode="before")
    @classmethod
    def _default_to_task_files(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and data.get("tasks") and "splits" not in data:
            return {"splits": {}, **data}
        return data

    @field_validator("tasks", mode="before")
    @classmethod
    def _name_single_file(cls, tasks: Any) -> Any:
        if not isinstance(tasks, str | Path | Mapping):
            raise ValueError("it must be a file, or files by name, as in {nq: nq.jsonl}")
        return tasks if isinstance(tasks, Mapping) else {"heldout": tasks}

    @field_validator("verifier")
    @classmethod
    def _check_verifier(cls, name: str | None) -> str | None:
        if name is not None:
            resolve_path(ComponentKind.VERIFIER, name)
        return name

    @model_validator(mode="after")
    def _check_samples(self) -> Self:
        if self.max_samples > 1 and self.is_greedy:
            raise ValueError(GREEDY_SAMPLES_MESSAGE)
        if self.verifier is not None and self.max_samples == 1:
            raise ValueError("a verifier picks one of several samples: set samples, as in 3")
        return self

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        if all(size == 0 for size in self.split_sizes.values()):
            raise ValueError("an evaluation needs questions: give a split, as in {heldout: 500}")
        return self

    @property
    def max_samples(self) -> int:
        """Highest number of samples that a question may have."""
        return max(self.samples.values())

    def num_samples_for(self, task: Task) -> int:
        """Return the number of samples of a question."""
        return count_samples(self.samples, task)

    @property
    def split_sizes(self) -> dict[str, int | None]:
        """Number of questions of each split, the leading one first; None: all."""
        return {**self.splits, **{name: None for name in self.tasks if name not in self.splits}}

    @property
    def leading_split(self) -> str:
        """Split that a report's headline is of: the first one with questions."""
        return next(name for name, size in self.split_sizes.items() if size != 0)
