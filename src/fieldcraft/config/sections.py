"""Sections of a recipe except its stages."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    field_validator,
    model_validator,
)

from fieldcraft.config.base import ConfigSection
from fieldcraft.config.names import suggest_name, validate_folder_name
from fieldcraft.config.numbers import MAX_LAYERS, NonNegativeNumber, UnitFraction
from fieldcraft.config.sampling import (
    DEFAULT_SOURCE,
    GREEDY_SAMPLES_MESSAGE,
    SampleCounts,
    SamplingConfig,
)
from fieldcraft.config.url_secrets import find_secret, mask_secrets
from fieldcraft.config.validation_errors import describe_validation_error, get_recipe_keys

DEFAULT_MAX_BROKEN = 0.02  # share of rollouts, so the possible error of exact match
DEFAULT_SPLIT_SIZE = 500  # questions of a world
AdamBeta = Annotated[float, Field(ge=0, lt=1)]  # decay of the running mean
FolderName = Annotated[str, Field(max_length=100), AfterValidator(validate_folder_name)]
DEFAULT_DATE = date(2024, 7, 26)  # of recipes without a date: prompts do not depend on the clock
DEFAULT_CALL_COST = 1.0  # of a call: without prices, a cost is a number of calls
Cost = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Dtype = Literal["float32", "bfloat16"]  # of a model's weights
Port = Annotated[int, Field(ge=0, le=65535)]


def _validate_endpoint_url(url: str) -> str:
    if find_secret(url) is None and not url.startswith(("http://", "https://")):
        raise ValueError(f"'{mask_secrets(url)}' is not an endpoint URL: write http://HOST:PORT/v1")
    return url


EndpointUrl = Annotated[str, AfterValidator(_validate_endpoint_url)]


class WorldConfig(ConfigSection):
    """A synthetic world by name; all other keys are settings of the world."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str

    @property
    def settings(self) -> dict[str, Any]:
        """All keys except the name."""
        return dict(self.model_extra or {})


class TinyModelConfig(ConfigSection):
    """Shape of a randomly initialised model (Qwen2 architecture)."""

    layers: int = Field(default=3, ge=2, le=MAX_LAYERS)
    width: PositiveInt = 64
    heads: PositiveInt = 2

    def find_violations(self) -> Iterator[str]:
        if self.width % (2 * self.heads):
            yield (
                f"width={self.width} must be a multiple of twice heads={self.heads}, because"
                " rotary embeddings rotate pairs of dimensions of each head"
            )


class SearchConfig(ConfigSection):
    """Search tool: an index of `corpus`, or a server with the protocol of Search-R1."""

    top_k: PositiveInt = 3
    url: str | None = None
    api_key_env: str | None = None  # environment variable with the key of the server
    timeout_seconds: PositiveFloat = 10.0
    encoder: str | None = None  # folder or hub name of a sentence-transformers model
    ranking: Literal["bm25", "dense", "hybrid"] | None = None  # None: hybrid with an encoder
    failures: Annotated[float, Field(ge=0, lt=1)] = 0.0  # share of calls that fail deliberately

    def find_violations(self) -> Iterator[str]:
        if self.api_key_env is not None and self.url is None:
            yield "api_key_env applies to a search server only: set url, or remove api_key_env"
        if self.failures and self.url is not None:
            yield "failures applies to the search over an index only: remove it, or url"
        for key in ("encoder", "ranking"):
            if getattr(self, key) is not None and self.url is not None:
                yield f"{key} applies to an index of the corpus only: remove it, or url"


class JudgeConfig(ConfigSection):
    """A judge model at an OpenAI-compatible endpoint, for evaluations and the reward `judge`."""

    url: EndpointUrl | None = None
    model: str | None = None
    votes: PositiveInt = 3  # per answer
    api_key_env: str = "OPENAI_API_KEY"  # environment variable with the key


class CriterionConfig(ConfigSection):
    """Criterion of the reward `rubric`: a question that a judge answers with yes or no, or a
    function of the trajectory that returns a number from 0 to 1."""

    weight: PositiveFloat = 1.0
    question: Annotated[str, Field(pattern=r"\S")] | None = None
    function: str | None = None  # as module:function

    def find_violations(self) -> Iterator[str]:
        if (self.question is None) == (self.function is None):
            yield "a criterion has either a question or a function: give one of them"


class EndpointConfig(ConfigSection):
    """A remote chat model behind an OpenAI-compatible endpoint."""

    url: EndpointUrl
    model: str
    api_key_env: str = "OPENAI_API_KEY"  # environment variable with the key


class FoldConfig(ConfigSection):
    """Fold of a rollout: a chain ends with a summary, and another chain continues from it."""

    trigger_tokens: PositiveInt  # a chain with as many is folded after an observation
    max_folds: PositiveInt = 8  # of a rollout; its last chain then continues to the end
    prompt: str | None = None  # text before the tag of the summary; None: the dialect's own


# Budget keys of a rollout. The other keys apply to tools, which a run opens only once.
ROLLOUT_BUDGET_KEYS = (
    *("max_calls", "max_turn_tokens", "max_context_tokens", "fold", "max_observation_tokens"),
    *("at_limit", "answer_tokens", "max_refusals"),
)
# Keys of a budget that have an effect on the framework's own rollouts only.
TOOL_BUDGET_KEYS = ("fold", "at_limit", "answer_tokens", "max_refusals")
DEFAULT_ANSWER_TOKENS = 64  # reserved for an answer by default
# Budget keys that apply to only one value of at_limit.
_KEY_LIMIT_ACTIONS = {"answer_tokens": "answer", "max_refusals": "tell"}


def find_invalid_budget_keys(changes: Collection[str]) -> Iterator[str]:
    """Yield a clause for each key that is not in a rollout's budget."""
    for key in changes:
        if key in get_recipe_keys(BudgetConfig) and key not in ROLLOUT_BUDGET_KEYS:
            yield f"{key} can only be set for the whole run: set budget.{key}"
        elif key not in ROLLOUT_BUDGET_KEYS:
            yield f"it has no key '{key}'; {suggest_name(key, ROLLOUT_BUDGET_KEYS)}"


def _require_budget_keys(changes: dict[str, Any]) -> dict[str, Any]:
    for clause in find_invalid_budget_keys(changes):
        raise ValueError(clause)
    return changes


# Changes to the budget of the recipe; see `BudgetConfig.with_changes`.
BudgetChanges = Annotated[dict[str, Any], AfterValidator(_require_budget_keys)]


class BudgetConfig(ConfigSection):
    """Limits of a trajectory and of a call."""

    max_calls: PositiveInt = 6  # including malformed calls
    max_turn_tokens: PositiveInt = 256
    max_context_tokens: PositiveInt = 2048  # of a chain, including prompt and observations
    fold: FoldConfig | None = None  # None: a rollout is one chain
    # when calls or tokens are used up: the policy is forced to answer, the rollout ends, or the
    # policy is notified that further calls are refused
    at_limit: Literal["answer", "end", "tell"] = "tell"
    answer_tokens: PositiveInt | None = None  # of a forced answer; None: 64
    # turns with calls above max_calls after which the policy may continue; None: 1
    max_refusals: PositiveInt | None = None
    # of an observation's text; longer ones lose their middle, which is marked
    max_observation_tokens: int = Field(default=2048, ge=64)
    token_cost: Cost = 0.0  # of 1,000 policy tokens, in the unit of tool costs
    call_timeout_seconds: PositiveFloat = 60.0  # also for opening and closing a tool
    reward_seconds: PositiveFloat = 60.0  # of a user-defined reward, per group of rollouts
    max_concurrent_calls: PositiveInt = 64  # over all rollouts

    def find_violations(self) -> Iterator[str]:
        if self.fold is not None and self.fold.trigger_tokens >= self.max_context_tokens:
            yield (
                f"a chain ends at max_context_tokens={self.max_context_tokens}, before it would be"
                f" folded, so set fold.trigger_tokens={self.fold.trigger_tokens} lower"
            )
        for key, ending in _KEY_LIMIT_ACTIONS.items():
            if getattr(self, key) is not None and self.at_limit != ending:
                yield f"{key} has no effect unless at_limit is {ending}: remove it"

    def with_changes(self, changes: dict[str, Any]) -> BudgetConfig:
        """Return the budget with changed values of keys, including keys in `fold`. Raises
        ValueError for an invalid value, and for inconsistent values."""
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


def limit_to_count_or_share(unit: str, example: float) -> AfterValidator:
    """Return the type of a key that is a whole number of units, or below 1 a share of them."""

    def require(value: float) -> float:
        if value >= 1 and not value.is_integer():
            raise ValueError(
                f"it is a whole number of {unit}, or below 1 a share of them, as in {example}, not"
                f" {value}"
            )
        return value

    return AfterValidator(require)


class Optim(ConfigSection):
    """AdamW, its schedule, and the micro-batches of a step."""

    lr: PositiveFloat
    # steps before the full rate; below 1, a share of the stage's steps
    warmup_steps: Annotated[float, Field(ge=0), limit_to_count_or_share("steps", 0.1)] = 0.0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    weight_decay: UnitFraction = 0.0
    beta1: AdamBeta = 0.9
    beta2: AdamBeta = 0.95
    max_grad_norm: PositiveFloat = 1.0
    micro_batch_tokens: PositiveInt = 4096  # tokens of a micro-batch
    # AdamW's moments: 8bit uses a quarter of the memory; cpu offloads them from the GPU
    optimizer_state: Literal["float32", "8bit", "cpu"] = "float32"
    activation_checkpointing: bool = False  # recomputes activations instead of storing them

    def count_warmup_steps(self, total_steps: int) -> int:
        """Return the number of steps before the full rate, in a stage of `total_steps`."""
        return (
            round(self.warmup_steps * total_steps)
            if self.warmup_steps < 1
            else int(self.warmup_steps)
        )


class LoraConfig(ConfigSection):
    """Low-rank adapters (LoRA, arXiv 2106.09685), trained instead of the model's weights. There is
    no dropout: the sampling policy has none, and both must be the same policy."""

    rank: PositiveInt = 32
    alpha: PositiveInt = 32  # the output of an adapter is multiplied by alpha / rank
    targets: tuple[str, ...] = ()  # names of linear layers; empty: all except the output layer


class PeriodicEvalConfig(ConfigSection):
    """Periodic greedy evaluation of a stage during training, on the leading split."""

    every: PositiveInt = 10  # steps
    questions: PositiveInt = 50


class EvaluationConfig(SamplingConfig):
    """Evaluation of all stages on the same questions, greedy or with several samples each."""

    # files of user-provided questions, one per split; a single file is `heldout`
    tasks: dict[str, Path] = Field(default={})
    # number of questions by split, the leading one first: of the world, of a file of `tasks`
    # (all by default), or, as `heldout`, of the user-provided training questions
    splits: dict[str, NonNegativeInt] = Field(default={"heldout": DEFAULT_SPLIT_SIZE})
    workflows: tuple[str, ...] = ("workflow",)  # using the first model
    concurrency: PositiveInt = 256
    # maximum share of rollouts with a tool or engine failure; above it, the evaluation stops
    max_broken: UnitFraction = DEFAULT_MAX_BROKEN
    samples: SampleCounts = Field(
        default={DEFAULT_SOURCE: 1}
    )  # per question, or by split or data source
    verifier: str | None = None  # picks one of the samples of a question: best of n
    # additional evaluations: `team` of the section teacher, `lone` is one of its models (ReAct)
    teachers: tuple[Literal["team", "lone"], ...] = ()
    # per million input and output tokens, for models without their own prices
    prices: tuple[NonNegativeNumber, NonNegativeNumber] | None = None
    periodic: PeriodicEvalConfig | None = None
    budget: BudgetChanges = Field(default={})  # changes to the budget of the recipe

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

    def find_violations(self) -> Iterator[str]:
        yield from super().find_violations()
        if self.max_samples > 1 and self.is_greedy:
            yield GREEDY_SAMPLES_MESSAGE
        if self.verifier is not None and self.max_samples == 1:
            yield "a verifier picks one of several samples: set samples, as in 3"
        if all(size == 0 for size in self.split_sizes.values()):
            yield "an evaluation needs questions: give a split, as in {heldout: 500}"

    @property
    def max_samples(self) -> int:
        """Highest number of samples of a question."""
        return max(self.samples.values(), default=1)

    @property
    def split_sizes(self) -> dict[str, int | None]:
        """Number of questions of each split, the leading one first; None: all."""
        return {**self.splits, **{name: None for name in self.tasks if name not in self.splits}}

    @property
    def leading_split(self) -> str:
        """Split of a report's headline: the first one with questions."""
        return next(name for name, size in self.split_sizes.items() if size != 0)


class ClusterConfig(ConfigSection):
    """Processes that Ray places. Without trainers and engines, the run is a single process.

    A device is a GPU, or a core on a machine without GPUs. A trainer takes one device.
    """

    trainers: NonNegativeInt = 0  # ranks that share one model; 0: the run's own process trains
    context_parallel: PositiveInt = 1  # ranks that share one long sequence
    engines: NonNegativeInt = 0  # processes that sample; 0: the run's own process samples
    tensor_parallel: PositiveInt = 1  # of each engine, on one node
    colocate: bool = False  # engines and trainers alternate on the same devices
    ray_address: str | None = None  # of a Ray cluster; None: RAY_ADDRESS, or Ray on this machine
    rendezvous_port: Port = 0  # for the rendezvous of trainers; 0: a free port
    heartbeat_timeout_seconds: PositiveFloat = 300.0  # silent processes are killed after it

    @property
    def trains_and_samples(self) -> bool:
        """Return whether the run's own process neither trains nor samples."""
        return self.trainers > 0 and self.engines > 0

    @property
    def num_devices(self) -> int:
        """Number of devices that Ray provides; 0 for a single process."""
        sampling = self.engines * self.tensor_parallel
        return self.trainers if self.colocate else self.trainers + sampling

    def find_violations(self) -> Iterator[str]:
        if self.trainers % self.context_parallel or self.context_parallel > max(self.trainers, 1):
            yield (
                f"trainers={self.trainers} cannot be split into groups of"
                f" context_parallel={self.context_parallel}: make trainers a multiple of it"
            )
        if self.colocate and not 0 < self.engines * self.tensor_parallel <= self.trainers:
            yield (
                "colocate puts engines on the devices of trainers, so it needs engines, and as many"
                " trainers as engines x tensor_parallel or more"
            )
