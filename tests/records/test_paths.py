"""Paths with a leading ~ are accepted in every place where users write paths."""

import json
from pathlib import Path

import pytest

from fieldcraft.cli.main import main
from fieldcraft.data.tasks import read_tasks
from fieldcraft.recipes.loading import load_recipe, parse_recipe
from fieldcraft.records.paths import expand_home, expand_home_in_argument
from source_files import lines


@pytest.fixture
def home(tmp_path, monkeypatch):
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.chdir(tmp_path)
    lines(folder / "q.jsonl", {"question": "Q?", "answer": "A"})
    lines(folder / "corpus.jsonl", {"text": "A"})
    return folder


def test_the_paths_of_a_recipe(home):
    files = {"tasks": "~/q.jsonl", "corpus": "~/corpus.jsonl"}
    recipe = parse_recipe({"name": "mine", "stages": {}} | files)
    assert (recipe.tasks, recipe.corpus) == (home / "q.jsonl", home / "corpus.jsonl")
    data = {"teacher": {"model": "~/model"}, "tools": [{"name": "x", "file": "~/a"}]}
    assert expand_home(data)["teacher"] == {"model": f"{home}/model"}
    assert expand_home(data)["tools"] == [{"name": "x", "file": f"{home}/a"}]


def test_a_key_on_the_command_line(home):
    (home / "mine.yaml").write_text("name: mine\nstages: {}\n")
    recipe = load_recipe("~/mine.yaml", ["tasks=~/q.jsonl"])
    assert recipe.tasks == home / "q.jsonl"


def test_other_texts_stay():
    for value in ("~", "a ~/b", "~x/y", 7, None, [1, "~"], {"~/a": True}):
        assert expand_home(value) == value
    for argument in ("~", "--out=a~/b", "-x", "what is ~/a=~/b?", "seed=7"):
        assert expand_home_in_argument(argument) == argument


@pytest.mark.parametrize("argument", ["{}", "--out={}", "tasks={}", "stages.d.checkpoint={}"])
def test_arguments(home, argument):
    assert expand_home_in_argument(argument.format("~/x")) == argument.format(home / "x")


def test_convert_writes_below_the_home(home):
    with pytest.raises(SystemExit) as done:
        main(["convert", "~/q.jsonl", "--to", "questions", "--out=~/new/q.jsonl"])
    assert done.value.code == 0
    [written] = (home / "new" / "q.jsonl").read_text().splitlines()
    assert json.loads(written)["question"] == "Q?"
    assert not Path("~").exists()
    assert read_tasks(Path("~/q.jsonl"))[0].answers == ("A",)
