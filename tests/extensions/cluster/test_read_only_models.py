"""Read-only models of a stage with sharded trainers, without Ray."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from checkpoints import tiny_tokenizer, write_tiny_checkpoint
from fieldcraft.config.sections import Optim
from fieldcraft.extensions.cluster.backend import ShardedStageInputs
from fieldcraft.extensions.cluster.sharding.specs import ReferenceSpec


class Ranks:
    """Stub for the ranks that records their models, like `TrainerRank.make`."""

    world_size = 2

    def __init__(self) -> None:
        self.folders: dict[str, Path] = {}

    def call(self, method: str, arguments: list[tuple[str, ReferenceSpec]]) -> list[None]:
        assert method == "make"
        for name, spec in arguments:
            self.folders[name] = spec.folder
        return [None] * self.world_size


@pytest.fixture
def inputs(tmp_path: Path) -> Any:
    """Return the inputs of a stage that starts from the model `start`."""
    made = object.__new__(ShardedStageInputs)
    made.trainers = Ranks()  # type: ignore[assignment]
    made.start_model = tmp_path / "start"
    made.recipe = SimpleNamespace(dtype="float32")  # type: ignore[assignment]
    made.dialect = SimpleNamespace(tokenizer=tiny_tokenizer())  # type: ignore[assignment]
    stage_models = SimpleNamespace(model=lambda stage: tmp_path / stage)
    made.context = SimpleNamespace(folder=stage_models)  # type: ignore[assignment]
    return made


def test_every_read_only_model_of_a_stage_has_its_own_weights(inputs: Any, tmp_path: Path) -> None:
    outside = [tmp_path / "outside", tmp_path / "other"]
    for folder in outside:
        write_tiny_checkpoint(folder, "qwen3")
    optim = Optim(lr=1e-3)
    models = [inputs.make_reference(stage, optim) for stage in (None, "sft", "rl")]
    models += [inputs.load_external_model(folder, optim) for folder in outside]
    assert [inputs.trainers.folders[model.name] for model in models] == [
        tmp_path / "start",
        tmp_path / "sft",
        tmp_path / "rl",
        *outside,
    ]
