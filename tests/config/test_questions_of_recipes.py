"""Files beside the questions of a recipe are read, or refused."""

from pathlib import Path

import pytest

from fieldcraft.recipes.loading import load_recipe
from fieldcraft.types import UserError


@pytest.mark.parametrize("key", ["corpus", "demonstrations", "pairs"])
def test_a_file_beside_a_world_is_refused(key: str, tmp_path: Path) -> None:
    file = tmp_path / "file.jsonl"
    file.touch()
    with pytest.raises(UserError, match=rf"^{key}=.* would not be read, .* give tasks=FILE, too"):
        load_recipe("autocoa-mini", [f"{key}={file}"])
    with_questions = load_recipe("autocoa-mini", [f"{key}={file}", f"tasks={file}"])
    assert getattr(with_questions, key) == file
