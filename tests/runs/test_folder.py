"""The run folder of a process that is killed at critical moments."""

import math
from pathlib import Path
from typing import Any

import pytest

from fieldcraft.config.recipe import dump_recipe
from fieldcraft.recipes.loading import parse_recipe
from fieldcraft.records.files import atomic_folder, write_json
from fieldcraft.records.metrics import MetricsLog
from fieldcraft.records.reading import read_json
from fieldcraft.runs.folder import RunFolder, find_model
from fieldcraft.runs.resume import open_run_folder
from fieldcraft.types import UserError

SFT = {"type": "sft", "dataset": "d", "steps": 5, "optim": {"lr": 0.1, "warmup_steps": 0}}
RECIPE: dict[str, Any] = {"name": "mini", "world": {"name": "atlas"}, "stages": {"sft": SFT}}


def opened(path: Path, recipe: dict[str, Any] = RECIPE) -> RunFolder:
    with open_run_folder(path, parse_recipe(recipe)) as folder:
        return folder


class Killed(BaseException):
    """An exception that represents the end of the process."""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


# -- folders and files, complete or absent ------------------------------------------------------


def test_a_folder_appears_when_it_is_complete(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "model"
    with atomic_folder(target) as draft:
        (draft / "weights").write_text("whole")
        assert not target.exists()
    assert names(tmp_path / "deep") == ["model"]
    assert (target / "weights").read_text() == "whole"


def test_a_folder_cut_short_is_not_there_and_its_rest_is_thrown_away(tmp_path: Path) -> None:
    target = tmp_path / "model"

    def write_half() -> None:
        with atomic_folder(target) as draft:
            (draft / "half").write_text("")
            raise Killed

    with pytest.raises(Killed):
        write_half()
    assert not target.exists()
    assert names(tmp_path) == []
    with atomic_folder(target) as draft:
        (draft / "whole").write_text("")
    assert names(target) == ["whole"]
    assert list(tmp_path.iterdir()) == [target]


def test_json_cut_short_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a" / "x.json"
    write_json(path, {"a": [1, 2.5, None, "ä"]})
    with pytest.raises(TypeError):
        write_json(path, {"first": 1, "second": object()})  # fails in the middle of the file
    with pytest.raises(UserError, match=r"would contain a\.1\.mean = inf, which is not finite"):
        write_json(path, {"a": [1.0, {"mean": math.inf}]})
    assert list(path.parent.iterdir()) == [path]
    assert read_json(path, Any, "") == {"a": [1, 2.5, None, "ä"]}


# -- metrics ------------------------------------------------------------------------------------


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    assert log.read_rows() == []
    log.append({"step": 0, "loss": 0.1 + 0.2})
    log.append({"step": 1, "loss": 1e-30})
    assert log.read_rows() == [{"step": 0, "loss": 0.1 + 0.2}, {"step": 1, "loss": 1e-30}]


def test_a_torn_last_line_is_no_row_and_spoils_no_later_one(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.append({"step": 0, "loss": 3.0})
    with log.path.open("a") as file:
        file.write('{"step": 1, "lo')
    assert log.read_rows() == [{"step": 0, "loss": 3.0}]
    log.truncate_after(1)
    log.append({"step": 1, "loss": 2.0})
    assert log.read_rows() == [{"step": 0, "loss": 3.0}, {"step": 1, "loss": 2.0}]


def test_a_file_that_is_one_torn_line_has_no_rows(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.path.write_text('{"step": 0')
    assert log.read_rows() == []


def test_rows_of_finished_steps_that_are_missing_are_told(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "sft" / "metrics.jsonl")
    log.path.parent.mkdir()
    log.append({"step": 0})
    with pytest.raises(UserError) as caught:
        log.truncate_after(2)
    assert str(caught.value) == (
        f"{log.path} holds 1 rows for 2 finished steps; rename {tmp_path / 'sft'} to sft.damaged to"
        " train this stage again."
    )


def test_rewinding_forgets_steps_that_are_done_again(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "new" / "metrics.jsonl")
    log.truncate_after(0)
    for step in range(5):
        log.append({"step": step})
    log.truncate_after(3)
    assert log.read_rows() == [{"step": 0}, {"step": 1}, {"step": 2}]


# -- the run ------------------------------------------------------------------------------------


def test_the_same_recipe_goes_on(tmp_path: Path) -> None:
    opened(tmp_path / "run")
    opened(tmp_path / "run")
    assert read_json(tmp_path / "run" / "recipe.json", Any, "") == dump_recipe(parse_recipe(RECIPE))


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        ({**RECIPE, "seed": 7}, "seed=0 in the folder, 7 in this recipe"),
        (
            {**RECIPE, "stages": {"sft": {**SFT, "optim": {"lr": 0.2, "warmup_steps": 1}}}},
            "stages.sft.optim.lr=0.1 in the folder, 0.2 in this recipe",
        ),
        ({**RECIPE, "stages": {}}, r"with other settings \(stages.sft only in the folder\)"),
        ({**RECIPE, "device": "cpu"}, "device=auto in the folder, cpu in this recipe"),
    ],
)
def test_another_recipe_is_refused_by_its_first_difference(
    tmp_path: Path, other: dict[str, Any], difference: str
) -> None:
    opened(tmp_path / "run")
    with pytest.raises(UserError, match=difference) as caught:
        opened(tmp_path / "run", other)
    assert "'mini'" in str(caught.value)
    assert "--out" in str(caught.value)
    assert read_json(tmp_path / "run" / "recipe.json", Any, "") == dump_recipe(parse_recipe(RECIPE))


@pytest.mark.parametrize(
    "change",
    [
        {"max_num_seqs": 7},
        {"engine": {"name": "vllm", "python": "/other"}},
        {
            "stages": {
                "sft": {**SFT, "optim": {"lr": 0.1, "warmup_steps": 0, "micro_batch_tokens": 64}}
            }
        },
        {
            "stages": {
                "sft": {
                    **SFT,
                    "optim": {"lr": 0.1, "warmup_steps": 0, "activation_checkpointing": True},
                }
            }
        },
    ],
)
def test_what_only_takes_memory_and_how_an_engine_is_reached_can_change(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    engine = {"engine": {"name": "vllm", "python": "/one"}} if "engine" in change else {}
    opened(tmp_path / "run", RECIPE | engine)
    opened(tmp_path / "run", RECIPE | change)


@pytest.mark.parametrize("key", ["tasks", "demonstrations", "pairs", "evaluation.tasks"])
def test_a_changed_input_file_is_refused_and_the_restored_one_accepted(
    tmp_path: Path, key: str
) -> None:
    files = {
        name: tmp_path / f"{name}.jsonl"
        for name in ("tasks", "corpus", "demonstrations", "pairs", "evaluation.tasks")
    }
    for file in files.values():
        file.write_text("{}\n")
    evaluation = {"tasks": str(files["evaluation.tasks"])}
    recipe = {name: str(file) for name, file in files.items() if "." not in name}
    recipe |= {"name": "mine", "model": str(tmp_path), "evaluation": evaluation, "stages": {}}
    opened(tmp_path / "run", recipe)
    opened(tmp_path / "run", recipe)
    files[key].write_text("{} \n")
    with pytest.raises(UserError) as caught:
        opened(tmp_path / "run", recipe)
    assert str(caught.value) == (
        f"{files[key]} has changed since the run in {tmp_path / 'run'} began: restore the file,"
        " or choose another folder with --out."
    )
    files[key].write_text("{}\n")
    opened(tmp_path / "run", recipe)


def test_a_run_that_another_process_executes_is_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with open_run_folder(path, parse_recipe(RECIPE)):
        with pytest.raises(UserError, match="is locked by another process"):
            opened(path, RECIPE | {"max_num_seqs": 7})
        assert read_json(path / "recipe.json", Any, "") == dump_recipe(parse_recipe(RECIPE))
    assert opened(path, RECIPE | {"max_num_seqs": 7}).recipe.max_num_seqs == 7
    assert read_json(path / "recipe.json", dict[str, Any], "")["max_num_seqs"] == 7


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    opened(tmp_path / "letters")  # empty, so nothing is lost
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "me.jpg").touch()
    (tmp_path / "file").touch()
    for name in ("photos", "file"):
        with pytest.raises(UserError, match="is not a run"):
            opened(tmp_path / name)
    assert [path.name for path in (tmp_path / "photos").iterdir()] == ["me.jpg"]


@pytest.mark.parametrize("first", ["recipe.json", "questions.jsonl"])
def test_a_run_killed_while_its_first_file_was_written_begins_again(
    tmp_path: Path, first: str
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").touch()
    (tmp_path / "run" / f".{first}.draft").write_text("{")
    opened(tmp_path / "run")
    assert read_json(tmp_path / "run" / "recipe.json", Any, "") == dump_recipe(parse_recipe(RECIPE))


def test_a_part_is_made_once(tmp_path: Path) -> None:
    folder = opened(tmp_path / "run")
    made = []

    def make(draft: Path) -> None:
        made.append(draft)
        (draft / "corpus").write_text(str(len(made)))
        if len(made) == 1:
            raise Killed

    with pytest.raises(Killed):
        folder.make_once("start/world", make)
    for _ in range(2):
        assert (folder.make_once("start/world", make) / "corpus").read_text() == "2"


def test_an_evaluation_has_no_model_of_its_own(tmp_path: Path) -> None:
    recipe = {"name": "graded", "world": {"name": "atlas"}, "model": tmp_path, "stages": {}}
    write_json(tmp_path / "run" / "recipe.json", dump_recipe(parse_recipe(recipe)))
    with pytest.raises(UserError) as refused:
        find_model(tmp_path / "run")
    message = f"{tmp_path / 'run'} has trained no model: give its model, {tmp_path}."
    assert str(refused.value) == message
