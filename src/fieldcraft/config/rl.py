"""Settings of stages of reinforcement learning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
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

from fieldcraft.config.budgets import Period, StageBudget, periods
from fieldcraft.config.names import (
    BUILT_IN,
    CORRECT,
    Kind,
    PartError,
    find,
    name_of,
    require,
    suggestion,
)
from fieldcraft.config.sampling import LIMITS
from fieldcraft.config.sections import Endpoint, Limits, Optim, Rate, Section, Share, fields_of
from fieldcraft.config.stages import Footprint, Stage, StageKind

SIMULATED_SHARE = 5 / 6  # AutoCoA's


class Weighted(Section):
    """A reward of the user's with settings: they are the arguments of its class."""

    model_config = ConfigDict(extra="allow")

    weight: float

    @property
    def settings(self) -> dict[str, Any]:
        return self.model_extra or {}


def _by_name(rewards: Any) -> Any:
    """Return the rewards by name: from Python a reward may be given as its class."""
    if not isinstance(rewards, Mapping):
        return rewards
    return {k if isinstance(k, str) else name_of(k): weight for k, weight in rewards.items()}


OTC = ("otc-grpo", "otc-ppo")  # rewards of what acting costs


def _prices_calls(rewards: Any) -> bool:
    """Return whether a stage rewards low costs, by what a recipe says of its rewards."""
    return isinstance(rewards, Mapping) and any(
        name in OTC and _weight(own) for name, own in rewards.items()
    )


def _weight(own: Any) -> Any:
    """Return the weight of a reward, as a recipe writes it or as it was read."""
    if isinstance(own, Mapping):
        return own.get("weight")
    return own.weight if isinstance(own, Weighted) else own


def _kind_of_weight(weight: Any) -> str:
    return "Weighted" if isinstance(weight, Mapping | Weighted) else "float"


Weight = Annotated[
    Annotated[float, Tag("float")] | Annotated[Weighted, Tag("Weighted")],
    Discriminator(_kind_of_weight),  # so that a mistake in one is not told as one in the other
]
Rewards = Annotated[dict[str, Weight], BeforeValidator(_by_name)]


class Critic(Section):
    """The value function of PPO: a scalar head on the hidden states of the policy, which it leaves
    as they are, or on those of a model of its own."""

    backbone: Literal["policy", "own"] = "own"
    optim: Optim | None = None  # None: that of the stage
    clip: PositiveFloat = 0.5  # how far a value may move in a step
    gamma: Annotated[float, Field(gt=0, le=1)] = 1.0
    gae_lambda: Annotated[float, Field(ge=0, le=1)] = 1.0


class Async(Section):
    """Sampling that goes on while the trainer works. Rollouts that began more than `max_staleness`
    steps ago are not trained on; 0: sampler and trainer take turns."""

    max_staleness: NonNegativeInt = 0


def _tokens_or_share(cache: float) -> float:
    if cache >= 1 and cache != int(cache):
        raise ValueError(
            f"it is a whole number of tokens, or below 1 a share of them, as in 0.2, not {cache}"
        )
    return cache


class Rl(Stage):
    """Reinforcement learning: one clipped surrogate, of which every algorithm is a setting.

    `algorithm` sets the keys that config/algorithms.py lists for it; what the recipe says itself
    wins. docs/algorithms.md explains the keys, and docs/recipes.md lists them all.
    """

    # `async` is a word of Python
    model_config = ConfigDict(validate_by_name=True, serialize_by_alias=True)
    kind: ClassVar[StageKind] = "rl"

    type: str = "rl"
    algorithm: str = "grpo"
    steps: PositiveInt
    observations: Literal["real", "simulated", "mixed"] = "real"
    simulated_share: Share = SIMULATED_SHARE  # of the steps of a mixed stage
    simulator: Literal["policy", "frozen", "endpoint"] = "policy"
    simulator_stage: str | None = None  # whose model is frozen; None: the one the stage starts from
    # of simulated observations; None: that of the policy; 0: the likeliest tokens
    simulator_temperature: Rate | None = None
    endpoint: Endpoint | None = None
    questions: PositiveInt = 32  # of a step
    where: dict[str, bool | int | str] = Field(default={})  # metadata that its questions have
    group: PositiveInt = 8  # rollouts of a question
    oversample: PositiveInt = 1  # times as many are sampled; `group` of them are trained on
    temperature: PositiveFloat = 1.0
    # what differs from the recipe's; or several, each with `until`, the steps up to which it holds
    budget: StageBudget = ()
    # of a step's questions, asked while the tools are unavailable, so that a call ends the rollout
    cot_share: Annotated[float, Field(ge=0, le=1)] = 0.0
    cot_questions: Literal["all", "known"] = "all"  # of which that is the share
    asynchronous: Async = Field(default=Async(), alias="async")
    # what is rewarded
    rewards: Rewards = Field(default={CORRECT: 1.0})  # and their weights
    # OTC's r_phi, which r_tool multiplies: rewards and their weights; none: `correct` alone
    priced_rewards: dict[str, PositiveFloat] = Field(default={})
    otc_counts: Literal["costs", "calls"] = "costs"  # what OTC's m and n are
    call_smoothing: PositiveFloat | None = None  # OTC's c; None: the most that m can be
    overlong_penalty: Rate = 0.0  # for the longest rollouts
    # tokens of a chain, prompt and observations included; None: budget.total_tokens
    overlong_limit: PositiveInt | None = None
    # tokens below it, or, below 1, a share of the limit; None: a fifth
    overlong_cache: Annotated[float, Field(gt=0), AfterValidator(_tokens_or_share)] | None = None
    # which rollouts are trained on
    keep_groups: Literal["all", "mixed-accuracy", "mixed-reward"] = "all"
    max_batches: PositiveInt = 10  # sampled in a step to fill it with groups that are kept
    train_truncated: bool = True
    train_void: bool = True  # rollouts with a turn that holds neither a call nor an answer
    # what stops the run
    max_tool_failures: Share = 0.9  # of a step's calls
    collapse_share: Share | None = 0.5  # of its best, below which exact match has collapsed
    # advantages
    baseline: Literal["none", "group", "others", "critic"] = "group"
    scale: Literal["none", "group", "batch"] = "group"
    advantage_floor: Literal["none", "right"] = "none"  # right: 0 for right rollouts
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
    # None: no weight. Where nothing is said, a recipe sets 2 if the sampler may be older or round
    # otherwise than the trainer
    importance_cap: PositiveFloat | None = None
    reject: Literal["token", "sequence", "geometric"] | None = None
    reject_low: Share = 0.5
    reject_high: Annotated[float, Field(gt=1)] = 2.0
    # nats a token in the mean, above which the run stops; rounding to bfloat16 gives far less
    max_sampler_gap: PositiveFloat = 0.1
    # optimiser steps for one sampling step
    epochs: PositiveInt = 1
    minibatches: PositiveInt = 1

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, data: Any) -> Any:
        """Put the keys of the named algorithm below those that are given."""
        if not isinstance(data, dict):
            return data
        truncates = [k for k in LIMITS if k not in cls.model_fields and data.get(k) is not None]
        if truncates:
            raise ValueError(
                f"{truncates[0]} changes the policy: training would follow the gradient of another"
                " distribution than the one sampled from, so sample from all tokens (remove"
                f" {' and '.join(truncates)}) and truncate in evaluation alone"
            )
        usual = cls.model_fields["algorithm"].default
        keys = dict(cls._keys_of(str(data.get("algorithm", usual))))
        if keys.get("keep_groups") == "mixed-accuracy" and _prices_calls(data.get("rewards")):
            keys["keep_groups"] = "mixed-reward"
        return {**keys, **data}

    @classmethod
    def _keys_of(cls, algorithm: str) -> Mapping[str, Any]:
        """Return the keys of an algorithm. Raises PartError for one that is no mapping of keys of
        this section."""
        keys = find(Kind.ALGORITHM, algorithm)
        if not isinstance(keys, Mapping):
            raise PartError(
                f"the algorithm '{algorithm}' is no mapping: write the keys of an rl stage, as in"
                ' {"baseline": "group"}.'
            )
        for key in keys:
            if key not in fields_of(cls):
                raise PartError(
                    f"the algorithm '{algorithm}' sets '{key}', which no rl stage has;"
                    f" {suggestion(str(key), fields_of(cls))}"
                )
        return keys

    @model_validator(mode="after")
    def _agree_on_costs(self) -> Self:
        """Raise ValueError for what OTC could not learn from, and for what only OTC reads."""
        if both := self.priced_rewards.keys() & set(OTC):
            raise ValueError(f"priced_rewards names '{min(both)}', which prices them; remove it")
        if self.prices_calls:
            if self.keep_groups == "mixed-accuracy":
                raise ValueError(
                    "keep_groups: mixed-accuracy drops the groups with only right answers, from"
                    " which OTC learns most; write mixed-reward"
                )
            return self
        own = self.rewards.keys() - {CORRECT, *BUILT_IN[Kind.REWARD]}  # which may read them, too
        if not own and not self.rewards.keys() & set(OTC):
            for key in ("priced_rewards", "otc_counts", "call_smoothing"):
                if getattr(self, key) != type(self).model_fields[key].default:
                    raise ValueError(f"{key} belongs to otc-grpo and otc-ppo; remove it")
        return self

    @model_validator(mode="after")
    def _agree(self) -> Self:
        """Raise ValueError for settings that would do nothing, or not what they say."""
        if self.llds_coef and self.epochs * self.minibatches == 1:
            raise ValueError(
                "llds_coef acts from the second optimiser step of a sampling step on: raise"
                " minibatches or epochs"
            )
        if self.dual_clip is not None and self.clip == "cispo":
            raise ValueError("dual_clip belongs to clip: ppo; remove it")
        if self.baseline == "critic" and self.scale == "group":
            raise ValueError("a critic gives every token its own baseline: scale none or batch")
        if not self.overlong_penalty and (self.overlong_limit or self.overlong_cache):
            raise ValueError(
                "overlong_limit and overlong_cache belong to overlong_penalty: set it, or remove"
                " them"
            )
        if self.cot_questions != "all" and not self.cot_share:
            raise ValueError(f"cot_questions: {self.cot_questions} needs a cot_share above 0")
        self._agree_on_names()
        self._agree_on_simulator()
        return self

    def _agree_on_names(self) -> None:
        for name in self.graders:
            if name != CORRECT:
                require(Kind.REWARD, name)
        if not isinstance(self.rewards.get(CORRECT, 0.0), float):
            raise ValueError(f"the reward '{CORRECT}' has a weight and no settings; give a number")

    @property
    def weights(self) -> dict[str, float]:
        """Weight of every reward."""
        return {n: w if isinstance(w, float) else w.weight for n, w in self.rewards.items()}

    @property
    def prices_calls(self) -> bool:
        """Return whether the stage rewards low costs."""
        return _prices_calls(self.rewards)

    @property
    def graders(self) -> set[str]:
        return {*self.rewards, *self.priced_rewards}

    @property
    def reads_stages(self) -> tuple[str, ...]:
        return () if self.simulator_stage is None else (self.simulator_stage,)

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        return () if self.endpoint is None else (self.endpoint,)

    @property
    def rollout_steps(self) -> dict[str, int]:
        return {self.observations: self.steps}

    @property
    def simulation_temperatures(self) -> tuple[float, float] | None:
        if self.observations == "real":
            return None
        own = self.simulator_temperature
        return self.temperature, self.temperature if own is None else own

    def periods(self, budget: Limits) -> tuple[Period, ...]:
        return periods(self.budget, budget, self.steps)

    def limits_at(self, budget: Limits, number: int) -> Limits:
        """Return the budget of rollouts that begin in step `number`, by the budget of the
        recipe."""
        return next(p.limits for p in reversed(self.periods(budget)) if p.begin <= number)

    def overlong_span(self, budget: Limits) -> tuple[int, int]:
        """Return limit and cache of the overlong penalty, in tokens of a chain.

        Raises ValueError for a limit that no chain reaches, and a cache that it has no room for.
        """
        limit = self.overlong_limit or budget.total_tokens
        cache = 1 / 5 if self.overlong_cache is None else self.overlong_cache
        cache = max(int(limit * cache), 1) if cache < 1 else int(cache)
        if limit > budget.total_tokens:
            raise ValueError(
                f"a chain ends at budget.total_tokens={budget.total_tokens}, before"
                f" overlong_limit={limit}, so remove that or set it lower"
            )
        if cache > limit:
            raise ValueError(
                f"overlong_cache={cache} is more than its limit, {limit}: set it lower"
            )
        return limit, cache

    @property
    def footprint(self) -> Footprint:
        frozen, staleness = self.simulator == "frozen", self.asynchronous.max_staleness
        return Footprint(
            critics=(self.baseline, self.critic.backbone) == ("critic", "own"),
            frozen=frozen,
            references=self.kl_coef > 0,
            rollouts=self.questions * self.group * self.oversample * (1 + staleness),
            overlaps=staleness > 0,
        )

    def _agree_on_simulator(self) -> None:
        if self.simulator != "policy" and self.observations == "real":
            raise ValueError("a simulator writes nothing with observations: real; use simulated")
        if self.simulator_temperature is not None and self.observations == "real":
            raise ValueError("simulator_temperature belongs to simulated observations; remove it")
        if self.simulated_share != SIMULATED_SHARE and self.observations != "mixed":
            raise ValueError("simulated_share belongs to observations: mixed; remove it")
        if self.simulator_stage is not None and self.simulator != "frozen":
            raise ValueError("simulator_stage belongs to simulator: frozen; remove it")
        if (self.endpoint is not None) != (self.simulator == "endpoint"):
            raise ValueError("simulator: endpoint and the section endpoint need each other")
