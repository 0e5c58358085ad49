"""Models that a trainer or an engine would refuse are refused before a run starts."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from checkpoints import write_tiny_checkpoint
from fieldcraft.recipes.loading import parse_recipe
from fieldcraft.runs import setup as module
from fieldcraft.runs.setup import CheckContext, CheckReport, check_weights, load_first_model
from fieldcraft.types import UserError

NEMOTRON = {
    "model_type": "nemotron",
    "hidden_size": 3072,
    "intermediate_size": 9216,
    "num_attention_heads": 24,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_hidden_layers": 32,
    "vocab_size": 400,
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("checkpoint"), "qwen2")


def setup_of(model: Path, draft: Path) -> CheckContext:
    sft = {"type": "sft", "dataset": "demonstrations", "steps": 1, "optim": {"lr": 1e-3}}
    recipe = {"name": "own", "model": str(model), "world": {"name": "atlas"}}
    return CheckContext(parse_recipe({**recipe, "stages": {"sft": sft}}), draft)


def test_a_large_one_by_its_configuration_alone(tmp_path: Path, checkpoint: Path) -> None:
    folder = tmp_path / "nemotron"
    shutil.copytree(checkpoint, folder)
    (folder / "config.json").write_text(json.dumps(NEMOTRON))
    with pytest.raises(UserError, match="its layers do not pass the sequence boundaries"):
        load_first_model(setup_of(folder, tmp_path), CheckReport())


def test_a_small_one_with_its_weights(
    tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[int, str]] = []

    def compare(model: Any, dtype: str) -> None:
        compared.append((sum(p.numel() for p in model.parameters()), dtype))
        raise UserError("is another one")

    monkeypatch.setattr(module, "require_forward_parity", compare)
    setup = setup_of(checkpoint, tmp_path)
    load_first_model(setup, CheckReport())
    with pytest.raises(UserError, match="is another one"):
        check_weights(setup, CheckReport())
    assert compared == [(setup.sizes.parameters, "float32")]


def test_one_that_is_sound(tmp_path: Path, checkpoint: Path) -> None:
    setup, report = setup_of(checkpoint, tmp_path), CheckReport()
    load_first_model(setup, CheckReport())
    check_weights(setup, report)
    assert report.errors == []
    assert report.notes == ["27 tensors, complete and finite"]
