"""Recipe files that would be misread are refused."""

from pathlib import Path

import pytest

from fieldcraft import Rl
from fieldcraft.recipes.loading import load_recipe
from fieldcraft.types import UserError

BOMB = "a0: &a0 x\n" + "".join(  # 9 ** 8 values
    f"a{level + 1}: &a{level + 1} [{', '.join([f'*a{level}'] * 9)}]\n" for level in range(8)
)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (
            "name: x\nstages:\n  a: {type: sft}\n  a: {type: rl}\n",
            "the key 'a' is repeated, line 4",
        ),
        (f"name: {'[' * 3000}{']' * 3000}", "is nested too deeply"),
        ("name: x\nrows: &all {b: *all}", "x.yaml is nested too deeply"),
        (BOMB, "it has more than 100,000 values, with its aliases written out, line 1"),
        ("name: x\n3: x", "the key 3 is not a string"),
        ("name: x\n? {a: b}\n: c", "a key is not plain text, line 2"),
        (
            'name: x\ninstruction: "\\ud800"',
            r"'instruction' is wrong: '\ud800' is not UTF-8: remove",
        ),
        ('name: x\n"\\ud800": 1', r"the key '\ud800' is not UTF-8: remove the characters"),
    ],
)
def test_a_file_that_would_be_misread(tmp_path: Path, text: str, wrong: str) -> None:
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(UserError) as caught:
        load_recipe(str(tmp_path / "x.yaml"), [])
    assert wrong in str(caught.value)


@pytest.mark.parametrize(
    "override",
    [
        "seed=yes",
        "seeds=[1, true]",
        "budget.max_calls=true",
        "budget.call_timeout_seconds=true",
        "stages.rl2.rewards={em: true}",
        "evaluation.samples=true",
        "tools=[{name: search, cost: true}]",
        "world={name: atlas, people: true}",
    ],
)
def test_a_truth_value_is_no_number(override: str) -> None:
    with pytest.raises(UserError, match="it must be a number, not true or false"):
        load_recipe("smoke", [override])


def test_a_truth_value_remains_where_one_is_expected() -> None:
    overrides = ["stages.rl2.where={known: true, hops: 1}", "stages.rl2.train_void=false"]
    stage = load_recipe("smoke", overrides).stages["rl2"]
    assert isinstance(stage, Rl)
    assert (stage.where["known"], stage.where["hops"], stage.train_void) == (True, 1, False)
    assert isinstance(stage.where["known"], bool)
    assert not isinstance(stage.where["hops"], bool)
