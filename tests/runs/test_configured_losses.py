"""Loss terms of a model's configuration that no stage uses are named by `check`."""

import json
from pathlib import Path

import pytest

from checkpoints import write_tiny_checkpoint
from fieldcraft.config.recipe import Recipe
from fieldcraft.runs.setup import CheckContext, CheckReport, load_first_model


@pytest.mark.parametrize("coefficient", [0.5, 0.0])
def test_a_loss_of_the_configuration_is_named(coefficient: float, tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path / "model", "qwen3")
    config = json.loads((folder / "config.json").read_text())
    experts = {"model_type": "qwen3_moe", "num_experts": 4, "moe_intermediate_size": 8}
    changed = config | experts | {"router_aux_loss_coef": coefficient}
    (folder / "config.json").write_text(json.dumps(changed))
    report = CheckReport()
    setup = CheckContext(Recipe(name="mine", model=folder, stages={}), tmp_path)
    load_first_model(setup, report)
    notes = report.notes
    message = "router_aux_loss_coef=0.5 of its config.json is not added to the loss of any stage"
    assert notes[0].startswith("qwen3_moe, ")
    assert notes[1:] == [message] * (coefficient > 0)
