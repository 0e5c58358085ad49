"""What the stages of a recipe can set."""

from __future__ import annotations

from math import ceil
from typing import Annotated, Any, Literal, Self

from pydantic import (
    Field,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from fieldcraft.config.names import Kind, find
from fieldcraft.config.sections import Endpoint, Optim, Rate, Section, Share

SIMULATED_SHARE = 5 / 6  # AutoCoA's


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


RewardName = Literal["em", "f1", "cover_em", "format", "judge", "otc-grpo", "otc-ppo"]


class Rl(Stage):
    """Reinforcement learning: one clipped surrogate, of which every algorithm is a setting.

    `algorithm` sets the keys that config/algorithms.py lists for it; what the recipe says itself
    wins. docs/algorithms.md explains every key.
    """

    type: Literal["rl"]
    algorithm: str = "grpo"
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
    rewards: dict[RewardName, float] = Field(default={"em": 1.0})
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
        if not isinstance(data, dict):
            return data
        return {**find(Kind.ALGORITHM, str(data.get("algorithm", "grpo"))), **data}

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
