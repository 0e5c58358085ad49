"""Components of an installed package are found by their plain names."""

import importlib
from pathlib import Path
from typing import Any

import pytest
from own_recipe import recipe_of, rl, sentence, status, write, write_files

from fieldcraft.config.components import ComponentKind
from fieldcraft.config.names import list_registered
from fieldcraft.config.recipe import get_split_titles
from fieldcraft.recipes.loading import load_recipe
from fieldcraft.rewards.factory import make_reward
from fieldcraft.types import Task, Trajectory

SOURCE = """
import fieldcraft as fc
from second_world import CodeBook


class Terse(fc.StatelessReward):
    name = "terse"

    def __init__(self, letters: int = 3) -> None:
        self.letters = letters

    def __call__(self, group):
        return [float(len(t.answer or "") <= self.letters) for t in group]


class Codes(CodeBook):
    pass


async def shrug(task, policy, env, key):
    raise NotImplementedError
"""
ENTRIES = """\
[fieldcraft.rewards]
terse = codes_plugin:Terse

[fieldcraft.worlds]
codes = codes_plugin:Codes

[fieldcraft.workflows]
shrugging = codes_plugin:shrug

[fieldcraft.stage_types]
gone = codes_plugin:Gone
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of an installed package."""
    record = tmp_path / "site" / "codes_plugin-1.0.dist-info"
    record.mkdir(parents=True)
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: codes-plugin\nVersion: 1.0\n")
    (record / "entry_points.txt").write_text(ENTRIES)
    (tmp_path / "site" / "codes_plugin.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "extensions" / "worlds"))
    importlib.invalidate_caches()
    return tmp_path


def test_they_are_known(installed: Path) -> None:
    assert list_registered(ComponentKind.REWARD)["terse"] == "codes_plugin:Terse"
    assert list(list_registered(ComponentKind.WORLD))[:3] == ["codes", "abacus", "atlas"]
    reward = make_reward("terse", {"letters": 2}, {})
    assert reward([Trajectory(Task("a", "?", ()), answer=text) for text in ("ab", "abc")]) == [1, 0]


@pytest.mark.long
def test_a_recipe_names_them(installed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe: dict[str, Any] = {
        "name": "codes",
        "device": "cpu",
        "instruction": "",
        "world": {"name": "codes", "codes": 9},
        "tiny_model": {"layers": 2, "width": 32, "heads": 2},
        "budget": {"max_calls": 2, "max_turn_tokens": 24, "max_context_tokens": 250},
        "stages": rl(steps=1, rewards={"em": 1.0, "terse": {"weight": 0.1, "letters": 4}}),
        "evaluation": {"splits": {"heldout": 2}, "workflows": []},
    }
    file = write(installed / "codes.yaml", recipe)
    assert status("check", file) == 0
    assert get_split_titles(load_recipe(str(file), []))["train"] == "Codes of the training"
    assert status("run", file, "--out", installed / "run") == 0
    assert status("check", file, "world.code=9") == 2
    assert "did you mean 'world.codes'?" in sentence(capsys)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stages": rl(rewards={"ters": 1.0})}, "did you mean 'terse'"),
        ({"evaluation": {"splits": {"heldout": 2}, "workflows": ["shrug"]}}, "'shrugging'"),
        ({"stages": {"x": {"type": "gone", "optim": {"lr": 1.0}}}}, "no 'Gone'; "),
    ],
)
def test_wrong_names_name_them(
    installed: Path, changes: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_files(installed)
    assert status("check", write(installed / "own.yaml", recipe_of(model, **changes))) == 2
    assert message in sentence(capsys)
