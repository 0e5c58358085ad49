"""Numbers and names in a recipe that are out of range."""

import pytest

from fieldcraft.recipes.loading import load_recipe
from fieldcraft.types import UserError


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("stages.rl2.optim.beta1=1.5", ["'stages.rl2.optim.beta1'", "less than 1"]),
        ("stages.rl2.optim.beta2=1", ["'stages.rl2.optim.beta2'", "less than 1"]),
        ("stages.rl2.optim.beta1=-0.1", ["'stages.rl2.optim.beta1'", "or more, not -"]),
        ("stages.rl2.optim.weight_decay=1.1", ["optim.weight_decay'", "or less, not 1.1"]),
        ("stages.rl2.optim.weight_decay=-1", ["optim.weight_decay'", "or more, not -"]),
        ("stages.rl2.optim.warmup_steps=-1", ["optim.warmup_steps'", "or more, not -"]),
        ("name=../evil", ["'name'", "it is used as a folder name"]),
        ("name=/evil", ["'name'", "it is used as a folder name"]),
        ('name="..\\\\evil"', ["'name'", "it is used as a folder name"]),
        ("name=.", ["'name'", "it is used as a folder name"]),
        ('name=" "', ["'name'", "it is used as a folder name"]),
        ('name="a\\x1b[2Jb"', ["'name'", "it is used as a folder name"]),
        (f"name={'a' * 101}", ["'name'", "at most 100"]),
    ],
)
def test_what_is_out_of_range_is_named(override: str, parts: list[str]) -> None:
    with pytest.raises(UserError) as refused:
        load_recipe("smoke", [override])
    for part in parts:
        assert part in str(refused.value)
