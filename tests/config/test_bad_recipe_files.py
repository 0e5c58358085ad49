"""Recipe files that would be misread are refused."""

from pathlib import Path

import pytest

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
    ],
)
def test_a_file_that_would_be_misread(tmp_path: Path, text: str, wrong: str) -> None:
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(UserError) as caught:
        load_recipe(str(tmp_path / "x.yaml"), [])
    assert wrong in str(caught.value)
