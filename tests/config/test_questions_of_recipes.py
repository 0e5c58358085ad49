"""Files next to the questions of a recipe are read or refused."""

from pathlib import Path

import pytest

from fieldcraft.recipes.loading import load_recipe
from fieldcraft.types import UserError


def test_a_world_beside_the_questions_of_a_file_is_refused(tmp_path: Path) -> None:
    file, own = tmp_path / "file.jsonl", tmp_path / "own.yaml"
    file.touch()
    bare = "name: own\nstages: {}\n"
    for written, name, overrides in (
        (bare, str(own), [f"tasks={file}", "world.name=atlas"]),
        (f"{bare}tasks: {file}\nworld: {{name: atlas}}\n", str(own), []),
        (bare, "autocoa-mini", [f"tasks={file}", "world.people=40"]),
    ):
        own.write_text(written)
        with pytest.raises(UserError, match=r"^the world 'atlas' would be ignored, .*: remove one"):
            load_recipe(name, overrides)
    own.write_text(f"{bare}tasks: {file}\nworld: {{name: atlas}}\n")
    assert load_recipe(str(own), ["world=null"]).world is None
    assert load_recipe("autocoa-mini", [f"tasks={file}"]).tasks == file  # other questions


@pytest.mark.parametrize("key", ["corpus", "demonstrations", "pairs"])
def test_a_file_beside_a_world_is_refused(key: str, tmp_path: Path) -> None:
    file = tmp_path / "file.jsonl"
    file.touch()
    with pytest.raises(UserError, match=rf"^{key}=.* would not be read, .* give tasks=FILE, too"):
        load_recipe("autocoa-mini", [f"{key}={file}"])
    with_questions = load_recipe("autocoa-mini", [f"{key}={file}", f"tasks={file}"])
    assert getattr(with_questions, key) == file
