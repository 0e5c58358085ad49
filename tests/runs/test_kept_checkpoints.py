"""Intermediate checkpoints: their number, and their uses."""

from pathlib import Path

import pytest
import torch

from fieldcraft.config.rl import Rl
from fieldcraft.engine.generation_config import read_eos_token_ids
from fieldcraft.recipes.loading import load_recipe
from fieldcraft.runs.agent import find_agent
from fieldcraft.runs.export import export
from fieldcraft.runs.folder import find_model
from fieldcraft.train.model import load_model
from fieldcraft.train.saving import list_checkpoint_steps
from fieldcraft.train.stages.base import StepMetrics
from fieldcraft.types import UserError
from tiny_runs import run_tiny
from training_parts import Steps, make_trainer, run_stage

pytestmark = pytest.mark.long

STEPS = ("stages.one.steps=4", "stages.one.checkpoint_every=1")


@pytest.mark.parametrize(("keep", "left"), [(None, 1), (1, 1), (2, 2), (9, 5), ("all", 5)])
def test_so_many_of_the_newest_stay(keep: int | str | None, left: int, tmp_path: Path) -> None:
    settings = {"steps": 5, "checkpoint_every": 1, "keep_checkpoints": keep}
    stage = Rl.model_validate({"type": "rl", "optim": {"lr": 1.0}, **settings})

    def step(_: int) -> StepMetrics:
        return {"tokens": 1}

    run_stage(Steps(make_trainer(tmp_path / "start", steps=5), step), stage, tmp_path / "rl")
    assert list_checkpoint_steps(tmp_path / "rl") == [1, 2, 3, 4, 5][-left:]


@pytest.mark.parametrize("keep", ["0", "some", "-1", "true"])
def test_what_is_no_number_of_checkpoints_is_refused(keep: str) -> None:
    with pytest.raises(UserError, match="keep_checkpoints"):
        load_recipe("smoke", [f"stages.rl2.keep_checkpoints={keep}"])


@pytest.mark.parametrize(("keep", "left"), [("all", [1, 2, 3, 4]), ("2", [3, 4]), ("null", [])])
def test_a_stage_that_is_done_still_has_them(keep: str, left: list[int], tmp_path: Path) -> None:
    run = run_tiny(tmp_path, *STEPS, f"stages.one.keep_checkpoints={keep}")
    assert list_checkpoint_steps(run / "one") == left


def test_each_is_an_agent_and_the_last_one_is_the_model(tmp_path: Path) -> None:
    run = run_tiny(tmp_path, *STEPS, "stages.one.keep_checkpoints=all")
    trained, same = weights(run / "one" / "model"), []
    for done in range(1, 5):
        agent = find_agent(run / "one" / f"step-{done:06d}")
        assert agent.recipe.name == "tiny"
        found = weights(agent.model)
        same.append(all(torch.equal(found[name], trained[name]) for name in trained))
    assert same == [False, False, False, True]


def test_a_stage_that_is_not_finished_has_its_newest_checkpoint(tmp_path: Path) -> None:
    run = run_tiny(tmp_path, *STEPS, "stages.one.keep_checkpoints=2")
    unfinish(run)
    assert find_model(run / "one")[1] == run / "one" / "step-000004"
    with pytest.raises(UserError, match=f"give a stage, as in {run / 'one'}, for its newest"):
        find_model(run)


def unfinish(run: Path) -> None:
    """Make a stage look unfinished, as during training."""
    (run / "one" / "stage.json").unlink()
    (run / "one" / "model").rename(run / "elsewhere")


def test_an_adapter_is_made_a_model(tmp_path: Path) -> None:
    """The checkpoint of the last step becomes the model that the stage wrote."""
    run = run_tiny(tmp_path, *STEPS, "stages.one.keep_checkpoints=1", "lora.rank=2")
    checkpoint = run / "one" / "step-000004"
    with pytest.raises(UserError, match=f"is an adapter: make .* export {checkpoint}"):
        find_model(checkpoint)
    export(run, tmp_path / "whole", "float32")
    unfinish(run)
    export(checkpoint, tmp_path / "of a checkpoint", "float32")
    export(run / "one", tmp_path / "of a stage", "float32")
    whole = weights(tmp_path / "whole")
    for name in ("of a checkpoint", "of a stage"):
        assert read_eos_token_ids(tmp_path / name) == read_eos_token_ids(tmp_path / "whole")
        made = weights(tmp_path / name)
        assert made.keys() == whole.keys()
        assert [key for key in made if not torch.equal(made[key], whole[key])] == []


def weights(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = load_model(folder, torch.device("cpu")).state_dict()
    return found


def test_an_adapter_without_its_run_is_refused(tmp_path: Path) -> None:
    run = run_tiny(tmp_path, *STEPS, "stages.one.keep_checkpoints=1", "lora.rank=2")
    alone = tmp_path / "alone" / "one" / "step-000004"
    alone.parent.mkdir(parents=True)
    (run / "one" / "step-000004").rename(alone)
    with pytest.raises(UserError, match="is an adapter without its run, which knows the model"):
        export(alone, tmp_path / "out", "float32")
