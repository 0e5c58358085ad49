"""Settings of stages of reinforcement learning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Tag,
    model_validator,
)

from fieldcraft.config.base import ConfigSection
from fieldcraft.config.components import BUILTIN_COMPONENTS, VERDICT_REWARD_KEY, ComponentKind
from fieldcraft.config.names import ComponentError, get_import_path, resolve
from fieldcraft.config.numbers import (
    NonNegativeNumber,
    OpenFraction,
    PositiveFraction,
    PositiveTemperature,
    Temperature,
    UnitFraction,
)
from fieldcraft.config.sampling import TRUNCATION_KEYS
from fieldcraft.config.sections import (
    BudgetConfig,
    EndpointConfig,
    Optim,
    limit_to_count_or_share,
)
from fieldcraft.config.stages import (
    BudgetPeriod,
    BudgetPeriodConfig,
    MemoryFootprint,
    Stage,
    StageBudget,
    StageKind,
)
from fieldcraft.config.validation_errors import list_section_keys, suggest_key

MAX_STEP_ROLLOUTS = 1_000_000  # they are in memory together
DEFAULT_SIMULATED_SHARE = 5 / 6  # AutoCoA's


class RewardConfig(ConfigSection):
    """A user-defined reward with settings, which are the arguments of its class."""

    model_config = ConfigDict(extra="allow")

    weight: float

    @property
    def settings(self) -> dict[str, Any]:
        return self.model_extra or {}


def _name_rewards(rewards: Any) -> Any:
    """Return the rewards by name. From Python, a reward may be given as a class."""
    if not isinstance(rewards, Mapping):
        return rewards
    return {
        k if isinstance(k, str) else get_import_path(k): weight for k, weight in rewards.items()
    }


OTC_REWARDS = ("otc-grpo", "otc-ppo")  # rewards for low acting costs


def _has_otc_reward(rewards: Any) -> bool:
    """Return whether the rewards of a recipe's stage include low costs."""
    return isinstance(rewards, Mapping) and any(
        name in OTC_REWARDS and _get_weight(own) for name, own in rewards.items()
    )


def _get_weight(setting: Any) -> Any:
    """Return the weight of a reward, from the recipe or parsed."""
    if isinstance(setting, Mapping):
        return setting.get("weight")
    return setting.weight if isinstance(setting, RewardConfig) else setting


def _discriminate_weight(weight: Any) -> str:
    return "RewardConfig" if isinstance(weight, Mapping | RewardConfig) else "float"


RewardWeight = Annotated[
    Annotated[float, Tag("float")] | Annotated[RewardConfig, Tag("RewardConfig")],
    Discriminator(_discriminate_weight),  # reports errors only for the matching type
]
RewardWeights = Annotated[dict[str, RewardWeight], BeforeValidator(_name_rewards)]


class CriticConfig(ConfigSection):
    """Value function of PPO: a scalar head on the hidden states of the policy, without training
    them, or on the hidden states of a separate model."""

    backbone: Literal["policy", "separate"] = "separate"
    optim: Optim | None = None  # None: the stage's
    clip: PositiveFloat = 0.5  # maximum change of a value in a step
    gamma: PositiveFraction = 1.0
    gae_lambda: UnitFraction = 1.0


class AsyncConfig(ConfigSection):
    """Asynchronous sampling, concurrent with training. Rollouts that started more than
    `max_staleness` steps ago are not trained on; 0 is synchronous sampling."""

    max_staleness: NonNegativeInt = 0


class Rl(Stage):
    """Reinforcement learning: one clipped surrogate objective; algorithms are presets of its keys,
    or classes of their own (`train/algorithm.py`).

    `algorithm` sets the keys that config/algorithms.py lists for it; keys that the recipe sets
    itself have precedence. docs/algorithms.md explains the keys, and docs/recipes.md lists them.
    """

    # `async` is a Python keyword
    model_config = ConfigDict(validate_by_name=True, serialize_by_alias=True)
    kind: ClassVar[StageKind] = "rl"

    type: str = "rl"
    algorithm: str = "grpo"
    steps: PositiveInt
    observations: Literal["real", "simulated", "mixed"] = "real"
    simulated_share: OpenFraction = DEFAULT_SIMULATED_SHARE  # share of the steps of a mixed stage
    simulator: Literal["policy", "frozen", "endpoint"] = "policy"
    simulator_stage: str | None = None  # of the frozen model; None: the starting model
    # of simulated observations; None: the policy's; 0: greedy
    simulator_temperature: Temperature | None = None
    endpoint: EndpointConfig | None = None
    questions_per_step: PositiveInt = 32
    where: dict[str, bool | int | str] = Field(default={})  # required metadata of the questions
    group_size: PositiveInt = 8  # rollouts per question
    oversample_factor: PositiveInt = 1  # times as many are sampled; `group_size` are trained
    temperature: PositiveTemperature = 1.0
    # changes to the recipe's budget; or several, each with `until`, the last step of its period
    budget: StageBudget = ()
    # share of a step's questions without available tools, so that a call ends the rollout
    cot_share: UnitFraction = 0.0
    cot_questions: Literal["all", "known"] = "all"  # questions to which the share applies
    asynchronous: AsyncConfig = Field(default=AsyncConfig(), alias="async")
    # rewards
    rewards: RewardWeights = Field(default={VERDICT_REWARD_KEY: 1.0})  # name -> weight
    # rewards and weights of OTC's r_phi, which r_tool multiplies; empty: only `correct`
    priced_rewards: dict[str, PositiveFloat] = Field(default={})
    otc_counts: Literal["costs", "calls"] = "costs"  # OTC's m and n
    otc_smoothing: PositiveFloat | None = None  # OTC's c; None: the maximum of m
    overlong_penalty: NonNegativeNumber = 0.0  # for the longest rollouts
    # tokens of a chain, including prompt and observations; None: budget.max_context_tokens
    overlong_limit: PositiveInt | None = None
    # tokens before the limit, or, below 1, a share of it; None: a fifth
    overlong_buffer: (
        Annotated[float, Field(gt=0), limit_to_count_or_share("tokens", 0.2)] | None
    ) = None
    # selection of rollouts
    group_filter: Literal["none", "accuracy", "reward"] = "none"
    max_sampling_batches: PositiveInt = 10  # of a step, until it is full of accepted groups
    train_truncated: bool = True
    train_void: bool = True  # rollouts with a turn without a call or an answer
    # conditions that stop the run
    max_tool_failure_rate: OpenFraction = 0.9  # of the calls of a step
    # share of its best value below which exact match has collapsed
    collapse_threshold: OpenFraction | None = 0.5
    # advantages
    baseline: Literal["none", "group", "leave-one-out", "critic"] = "group"
    advantage_scale: Literal["none", "group", "batch"] = "group"
    advantage_floor: Literal["none", "correct"] = "none"  # correct: 0 for correct rollouts
    critic: CriticConfig = CriticConfig()
    # the loss
    loss_aggregation: Literal["sequence", "token", "constant"] = "sequence"
    ratio_level: Literal["token", "sequence"] = "token"
    clip_mode: Literal["ppo", "cispo"] = "ppo"
    clip_low: PositiveFloat = 0.2
    clip_high: PositiveFloat = 0.2
    dual_clip: Annotated[float, Field(gt=1)] | None = None
    kl_coef: NonNegativeNumber = 0.0
    kl_placement: Literal["loss", "reward"] = "loss"
    entropy_coef: NonNegativeNumber = 0.0
    llds_coef: NonNegativeNumber = 0.0
    # between sampler and trainer
    sampler_is_level: Literal["token", "sequence"] = "token"
    # None: no weight. By default, a recipe sets 2 if the sampler may have older weights than the
    # trainer, or round differently
    sampler_is_cap: PositiveFloat | None = None
    sampler_reject: Literal["token", "sequence", "geometric"] | None = None
    sampler_reject_low: OpenFraction = 0.5
    sampler_reject_high: Annotated[float, Field(gt=1)] = 2.0
    # mean nats per token, above which the run stops; rounding to bfloat16 causes far less
    max_sampler_logp_diff: PositiveFloat = 0.1
    # optimiser steps per sampling step
    epochs: PositiveInt = 1
    minibatches: PositiveInt = 1

    @model_validator(mode="before")
    @classmethod
    def _apply_preset(cls, data: Any) -> Any:
        """Add the keys of the named algorithm that are not set."""
        if not isinstance(data, dict):
            return data
        truncates = [
            k for k in TRUNCATION_KEYS if k not in cls.model_fields and data.get(k) is not None
        ]
        if truncates:
            raise ValueError(
                f"{truncates[0]} truncates the sampling distribution, so its gradient would be"
                f" the gradient of another policy: remove {' and '.join(truncates)}"
                " and truncate in evaluations only"
            )
        usual = cls.model_fields["algorithm"].default
        keys = dict(cls._load_preset(str(data.get("algorithm", usual))))
        if keys.get("group_filter") == "accuracy" and _has_otc_reward(data.get("rewards")):
            keys["group_filter"] = "reward"
        return {**keys, **data}

    @classmethod
    def _load_preset(cls, algorithm: str) -> Mapping[str, Any]:
        """Return the keys that an algorithm sets. Raises ComponentError if it is neither a mapping
        nor a class, or sets keys that this section lacks."""
        component = resolve(ComponentKind.ALGORITHM, algorithm)
        keys: Mapping[str, Any] = component if isinstance(component, Mapping) else component.keys
        for key in keys:
            if key not in list_section_keys(cls):
                raise ComponentError(
                    f"the algorithm '{algorithm}' sets '{key}', which is not a key of rl stages;"
                    f" {suggest_key(str(key), list_section_keys(cls))}"
                )
        return keys

    @property
    def has_preset(self) -> bool:
        """Return whether the algorithm is a preset; a class may use keys in its own way."""
        return isinstance(resolve(ComponentKind.ALGORITHM, self.algorithm), Mapping)

    def find_violations(self) -> Iterator[str]:
        """Yield a clause for each key without effect, and for contradictory keys."""
        if (rollouts := self._count_step_rollouts()) > MAX_STEP_ROLLOUTS:
            yield (
                f"a step would sample {rollouts:,} rollouts, and {MAX_STEP_ROLLOUTS:,} are the"
                " maximum: lower questions_per_step, group_size or oversample_factor"
            )
        yield from self._find_cost_violations()
        if self.llds_coef and self.epochs * self.minibatches == 1:
            yield (
                "llds_coef acts from the second optimiser step of a sampling step on: raise"
                " minibatches or epochs"
            )
        if self.dual_clip is not None and self.clip_mode == "cispo":
            yield "dual_clip applies to clip_mode: ppo only: remove it"
        if self.baseline == "critic" and self.advantage_scale == "group":
            yield (
                "a critic gives every token its own baseline: set advantage_scale to none or batch"
            )
        if not self.has_default("critic") and self.baseline != "critic" and self.has_preset:
            yield "critic needs baseline: critic: set it, or remove critic"
        for key in ("sampler_reject_low", "sampler_reject_high"):
            if self.sampler_reject is None and not self.has_default(key):
                yield f"{key} needs a sampler_reject: set it, or remove {key}"
        if not self.overlong_penalty and (self.overlong_limit or self.overlong_buffer):
            yield (
                "overlong_limit and overlong_buffer need an overlong_penalty: set it, or remove"
                " them"
            )
        if self.cot_questions != "all" and not self.cot_share:
            yield f"cot_questions: {self.cot_questions} needs a cot_share above 0"
        if not isinstance(self.rewards.get(VERDICT_REWARD_KEY, 0.0), float):
            yield f"the reward '{VERDICT_REWARD_KEY}' has a weight and no settings: give a number"
        yield from self._find_simulator_violations()

    def _find_cost_violations(self) -> Iterator[str]:
        """Yield a clause for keys that prevent OTC from learning, and for unused keys of OTC."""
        otc_rewards = self.rewards.keys() & set(OTC_REWARDS)
        # user-defined rewards may read the keys of OTC, too
        own = self.rewards.keys() - {VERDICT_REWARD_KEY, *BUILTIN_COMPONENTS[ComponentKind.REWARD]}
        if both := self.priced_rewards.keys() & set(OTC_REWARDS):
            yield f"priced_rewards contains '{min(both)}', which prices them: remove it"
        if self.has_otc_reward and self.group_filter == "accuracy":
            yield (
                "group_filter: accuracy drops groups with only correct answers, from which"
                " OTC learns most: use group_filter: reward"
            )
        for key in ("priced_rewards", "otc_counts", "otc_smoothing"):
            if not self.has_default(key) and not (own or otc_rewards):
                yield f"{key} applies to otc-grpo and otc-ppo only: remove it"

    def _find_simulator_violations(self) -> Iterator[str]:
        if self.simulator != "policy" and self.observations == "real":
            yield "simulator has no effect with observations: real: use simulated"
        if self.simulator_temperature is not None and self.observations == "real":
            yield "simulator_temperature applies to simulated steps only: remove it"
        if self.simulated_share != DEFAULT_SIMULATED_SHARE and self.observations != "mixed":
            yield "simulated_share applies to observations: mixed only: remove it"
        if self.simulator_stage is not None and self.simulator != "frozen":
            yield "simulator_stage applies to simulator: frozen only: remove it"
        if (self.endpoint is not None) != (self.simulator == "endpoint"):
            yield "simulator: endpoint and the section endpoint need each other"

    @property
    def reward_weights(self) -> dict[str, float]:
        """Weights of the rewards by name."""
        return {n: w if isinstance(w, float) else w.weight for n, w in self.rewards.items()}

    @property
    def has_otc_reward(self) -> bool:
        """Return whether the stage rewards low costs."""
        return _has_otc_reward(self.rewards)

    @property
    def reward_names(self) -> set[str]:
        return {*self.rewards, *self.priced_rewards}

    @property
    def stage_dependencies(self) -> tuple[str, ...]:
        return () if self.simulator_stage is None else (self.simulator_stage,)

    @property
    def endpoints(self) -> tuple[EndpointConfig, ...]:
        return () if self.endpoint is None else (self.endpoint,)

    @property
    def steps_by_observation_mode(self) -> dict[str, int]:
        return {self.observations: self.steps}

    @property
    def simulation_temperatures(self) -> tuple[float, float] | None:
        if self.observations == "real":
            return None
        own = self.simulator_temperature
        return self.temperature, self.temperature if own is None else own

    def budget_periods(self, budget: BudgetConfig) -> tuple[BudgetPeriod, ...]:
        """Return the budget periods of the stage in order, from the budget of the recipe.

        Raises ValueError for a period that would start after the last step, and for inconsistent
        budgets.
        """
        built, start = list[BudgetPeriod](), 0
        for config in self.budget or (BudgetPeriodConfig(),):
            if start >= self.steps:
                raise ValueError(
                    f"its budget changes after step {start}, but the stage has only"
                    f" {self.steps} steps"
                )
            end = self.steps if config.until is None else config.until
            changed = budget.with_changes(config.changes)
            built.append(BudgetPeriod(start, min(end, self.steps), changed))
            start = end
        return tuple(built)

    def budget_at_step(self, budget: BudgetConfig, step: int) -> BudgetConfig:
        """Return the budget of rollouts that start in step `step`, from the budget of the
        recipe."""
        return next(p.budget for p in reversed(self.budget_periods(budget)) if p.start_step <= step)

    def resolve_overlong_buffer(self, budget: BudgetConfig) -> tuple[int, int]:
        """Return limit and buffer of the overlong penalty, in tokens of a chain.

        Raises ValueError for a limit that no chain reaches, and for a buffer that exceeds it.
        """
        limit = self.overlong_limit or budget.max_context_tokens
        buffer = 1 / 5 if self.overlong_buffer is None else self.overlong_buffer
        buffer = max(int(limit * buffer), 1) if buffer < 1 else int(buffer)
        if limit > budget.max_context_tokens:
            raise ValueError(
                f"a chain ends at budget.max_context_tokens={budget.max_context_tokens}, before"
                f" overlong_limit={limit}, so remove that or set it lower"
            )
        if buffer > limit:
            raise ValueError(
                f"overlong_buffer={buffer} is more than its limit, {limit}: set it lower"
            )
        return limit, buffer

    @property
    def uses_sampler_weight(self) -> bool:
        """Return whether an importance weight would have an effect."""
        return True

    def _count_step_rollouts(self) -> int:
        return self.questions_per_step * self.group_size * self.oversample_factor

    @property
    def memory_footprint(self) -> MemoryFootprint:
        frozen, staleness = self.simulator == "frozen", self.asynchronous.max_staleness
        return MemoryFootprint(
            critics=(self.baseline, self.critic.backbone) == ("critic", "separate"),
            frozen_simulators=frozen,
            references=self.kl_coef > 0,
            rollouts=self._count_step_rollouts() * (1 + staleness),
            concurrent_sampling=staleness > 0,
        )
