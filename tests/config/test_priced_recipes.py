"""Keys about costs, and the group filter for penalised calls."""

import json
from typing import Any

import pytest

from fieldcraft.config.choices import EnvironmentConfig, ToolConfig
from fieldcraft.config.rl import Rl
from fieldcraft.recipes.loading import load_recipe
from fieldcraft.types import UserError

OPTIM = {"lr": 1e-3}


def rl(**keys: Any) -> Rl:
    return Rl(steps=1, optim=OPTIM, **keys)


@pytest.mark.parametrize("reward", ["otc-grpo", "otc-ppo"])
def test_with_a_price_on_calls_groups_are_kept_by_reward(reward: str) -> None:
    assert rl(algorithm="dapo").group_filter == "accuracy"
    assert rl(algorithm="dapo", rewards={reward: 1.0}).group_filter == "reward"
    assert rl(algorithm="dapo", rewards={reward: 1.0}, group_filter="none").group_filter == "none"
    assert rl(rewards={reward: 1.0}).group_filter == "none"
    # a reward that is only recorded does not train
    recorded = {"em": 1.0, reward: 0.0}
    assert rl(algorithm="dapo", rewards=recorded).group_filter == "accuracy"
    assert rl(algorithm="dapo", rewards={reward: {"weight": 1.0}}).group_filter == "reward"


def test_with_a_price_on_calls_a_filter_by_accuracy_is_refused() -> None:
    with pytest.raises(UserError, match="from which OTC learns most: use group_filter: reward"):
        rl(rewards={"otc-grpo": 1.0}, group_filter="accuracy")


@pytest.mark.parametrize(
    "keys", [{"otc_smoothing": 2.0}, {"otc_counts": "calls"}, {"priced_rewards": {"em": 1.0}}]
)
def test_keys_of_otc_need_it(keys: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"{next(iter(keys))} applies to otc-grpo and otc-ppo only"):
        rl(**keys)
    assert rl(rewards={"otc-ppo": 1.0}, **keys)


def test_what_is_priced_are_rewards_with_weights_above_0() -> None:
    priced = {"otc-grpo": 1.0}
    assert rl(rewards=priced, priced_rewards={"correct": 1, "format": 0.2}).reward_names == {
        *("otc-grpo", "correct", "format")
    }
    with pytest.raises(UserError, match="contains 'otc-grpo', which prices them"):
        rl(rewards=priced, priced_rewards={"otc-grpo": 1.0})
    with pytest.raises(UserError, match="greater than 0"):
        rl(rewards=priced, priced_rewards={"em": -1.0})
    with pytest.raises(UserError, match="'formt'"):
        load_recipe("otc-cost-mini", ["stages.otc-calls.priced_rewards={formt: 1}"])


def test_costs_are_finite_and_not_below_0() -> None:
    assert ToolConfig(name="search", cost=0).max_call_cost == 0
    assert ToolConfig(name="search").max_call_cost == 1
    server = ToolConfig.model_validate({"mcp": "http://x/mcp", "cost": {"find": 3, "note": 0.5}})
    assert server.max_call_cost == 3
    for cost in (-1, float("inf"), float("nan")):
        with pytest.raises(UserError, match="cost"):
            ToolConfig(name="search", cost=cost)
    with pytest.raises(UserError, match="only an MCP server has costs by tool"):
        ToolConfig(name="search", cost={"search": 1})


def test_an_environment_of_others_has_costs_of_its_own() -> None:
    assert EnvironmentConfig(name="openenv", tool_costs={"step": 2}).settings == {}
    with pytest.raises(UserError, match="set cost on each tool instead"):
        EnvironmentConfig(tool_costs={"step": 2})


def test_the_dearest_call_of_a_recipe() -> None:
    assert load_recipe("otc-cost-mini", []).max_call_cost == 4
    assert load_recipe("otc-table", []).max_call_cost == 1


def test_the_recipe_that_shows_it() -> None:
    """Three stages of reinforcement learning start from one model and differ in their rewards."""
    recipe = load_recipe("otc-cost-mini", [])
    stages = [stage for stage in recipe.stages.values() if isinstance(stage, Rl)]
    assert [stage.start_from for stage in stages] == ["sft"] * 3
    rewards = [(stage.rewards, stage.otc_counts) for stage in stages]
    assert [stage.otc_smoothing for stage in stages] == [None, 1, 4]
    otc = {"otc-grpo": 1.0}
    assert rewards == [({"em": 1.0}, "costs"), (otc, "calls"), (otc, "costs")]
    same = [s.model_dump(exclude={"rewards", "otc_counts", "otc_smoothing"}) for s in stages]
    assert same[0] == same[1] == same[2]
    assert {tool.name: tool.cost for tool in recipe.tools} == {"web_search": 1, "crawl_page": 4}
    assert recipe.world is not None
    assert recipe.world.settings["snippet_parts"] == 1


@pytest.mark.parametrize(
    ("cost", "sentence"),
    [
        ("free", "'tools.0.cost' is wrong: it must be a number, not 'free'."),
        ({"search": -1}, "'tools.0.cost"),
    ],
)
def test_a_wrong_cost_is_named_by_its_key_alone(cost: Any, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        load_recipe("otc-sizes", [f"tools=[{{mcp: 'http://x/mcp', cost: {json.dumps(cost)}}}]"])
    assert str(caught.value).startswith(sentence)
    assert "constrained" not in str(caught.value)
