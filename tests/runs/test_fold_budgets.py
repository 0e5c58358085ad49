"""Checks of budgets whose chains could not be folded, or would be folded after each call."""

import re
from pathlib import Path

import pytest

from fieldcraft.recipes.loading import load_recipe
from fieldcraft.runs.check import check_recipe


def problems(override: str) -> list[str]:
    return check_recipe(load_recipe("fold-mini", [override]), Path.cwd(), lambda *_: None)


def test_a_chain_has_room_for_a_turn_its_observation_and_the_summary() -> None:
    [problem] = problems("budget.fold.trigger_tokens=130")
    match = re.fullmatch(
        r"a chain of budget\.fold\.trigger_tokens=130 tokens has no room for one more turn, its"
        r" observation of (\d+), and a request of 2 with its summary: set"
        r" budget\.fold\.trigger_tokens=(\d+) or less\.",
        problem,
    )
    assert match is not None, problem
    observation, latest = map(int, match.groups())
    assert 64 < observation < 80
    assert latest == 240 - 2 * 32 - observation - 2
    assert problems(f"budget.fold.trigger_tokens={latest}") == []
    assert len(problems(f"budget.fold.trigger_tokens={latest + 1}")) == 1


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        (
            "budget.max_observation_tokens=300",
            "with its summary: set max_observation_tokens lower.",
        ),
        (
            "budget.fold.trigger_tokens=48",
            "the longest prompt with a summary can have 48 tokens, so each chain would be folded"
            " after its first call: set budget.fold.trigger_tokens=49 or more.",
        ),
    ],
)
def test_other_budgets(override: str, complaint: str) -> None:
    [problem] = problems(override)
    assert problem.endswith(complaint)
