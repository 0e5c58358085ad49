"""Keys of stages of reinforcement learning that need another key."""

from collections.abc import Mapping
from typing import Any

import pytest

from fieldcraft.config.distil import Distil
from fieldcraft.config.rl import Rl
from fieldcraft.config.rules import require_valid
from fieldcraft.recipes.loading import build_recipe
from fieldcraft.train.algorithm import PolicyGradient
from fieldcraft.train.learner import describe_drift
from fieldcraft.types import UserError

KEYS: Mapping[str, Any] = {"steps": 4, "optim": {"lr": 1e-3}}
CRITIC = {"clip": 0.2}


class OwnAlgorithm(PolicyGradient):
    """Algorithm that may need a critic for purposes of its own."""


OWN = {"algorithm": f"{__name__}:OwnAlgorithm"}


def make_distil(**given: Any) -> Distil:
    return Distil(**{**KEYS, "teacher": {"stage": "rl"}, **given})


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"critic": CRITIC}, "critic needs baseline: critic: set it, or remove critic"),
        ({"sampler_reject_low": 0.4}, "sampler_reject_low needs a sampler_reject"),
        ({"sampler_reject_high": 3}, "sampler_reject_high needs a sampler_reject"),
    ],
)
def test_a_key_that_needs_another_is_refused_without_it(
    keys: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        Rl(**KEYS, **keys)


def test_keys_that_act_are_allowed() -> None:
    assert Rl(**KEYS, algorithm="ppo", critic=CRITIC)
    assert Rl(**KEYS, **OWN, critic=CRITIC)  # its roles are not known here
    assert Rl(**KEYS, critic={})
    assert Rl(**KEYS, sampler_reject="token", sampler_reject_low=0.4, sampler_reject_high=3)


@pytest.mark.parametrize(
    ("keys", "setting"),
    [
        ({"algorithm": "reinforce++", "kl_coef": 0.1}, "kl_placement: reward"),
        ({"kl_placement": "reward", "kl_coef": 0.1, "kl": "full"}, "kl_placement: reward"),
        ({"algorithm": "ppo"}, "baseline: critic"),
        ({"baseline": "critic", "advantage_scale": "none"}, "baseline: critic"),
        ({"advantage_floor": "correct"}, "advantage_floor: correct"),
    ],
)
def test_the_advantage_of_rewards_needs_their_weight(keys: dict[str, Any], setting: str) -> None:
    with pytest.raises(UserError, match=f"{setting} is part of the advantage of rewards"):
        make_distil(**keys)
    assert make_distil(**keys, reward_weight=0.5)
    assert make_distil(**{**keys, **OWN})


def test_a_preset_without_a_penalty_needs_no_rewards() -> None:
    assert make_distil(algorithm="reinforce++").kl_placement == "reward"
    assert make_distil(algorithm="reinforce++", kl_coef=0.1, kl_placement="loss")


def load_distil(**given: Any) -> Distil:
    stage = {"type": "distil", **KEYS, "teacher": {"privileged": "answer"}, **given}
    data = {"name": "r", "world": {"name": "atlas"}, "stages": {"d": stage}, "dtype": "bfloat16"}
    recipe = build_recipe(data)
    require_valid(recipe)
    found = recipe.stages["d"]
    assert isinstance(found, Distil)
    return found


@pytest.mark.parametrize(
    ("keys", "cap"),
    [
        ({"kl": "sampled"}, 2.0),
        ({"kl": "full"}, None),
        ({"kl": "top-k", "top_k": 4}, None),
        ({"kl": "full", "reward_weight": 1.0}, 2.0),
        ({"kl": "full", "llds_coef": 0.1, "epochs": 2}, 2.0),
        ({"kl": "full", **OWN}, 2.0),
    ],
)
def test_the_usual_weight_is_set_where_it_acts(keys: dict[str, Any], cap: float | None) -> None:
    assert load_distil(**keys).sampler_is_cap == cap


def test_a_level_has_the_usual_cap() -> None:
    assert load_distil(sampler_is_level="sequence").sampler_is_cap == 2.0
    with pytest.raises(UserError, match="has a sampler_is_level, which weighs advantages"):
        load_distil(kl="full", sampler_is_level="sequence")


def test_a_stage_is_not_advised_to_set_what_it_would_refuse() -> None:
    rows = [{"step": n, "log_ratio_abs": 1.0} for n in range(5)]
    settings = make_distil(kl="full", **{"async": {"max_staleness": 1}})
    assert "set sampler_reject: token, " in str(describe_drift(rows, settings, "d"))
