"""Models left by a run and its export: the trained model, for every program that reads it."""

import json
from pathlib import Path
from typing import Any

import pytest

from checkpoints import tiny_tokenizer
from fieldcraft.engine.generation_config import read_eos_token_ids
from fieldcraft.runs.agent import find_agent
from fieldcraft.runs.export import export
from fieldcraft.train.lora import LoraAdapter
from fieldcraft.types import UserError
from tiny_runs import ENDS, run_tiny


@pytest.mark.long
@pytest.mark.parametrize("overrides", [(), ("lora.rank=2",)], ids=["all weights", "an adapter"])
def test_what_is_left_behind(overrides: tuple[str, ...], tmp_path: Path) -> None:
    run_tiny(tmp_path, *overrides)
    left, exported = tmp_path / "out" / "one" / "model", tmp_path / "exported"
    export(tmp_path / "out", exported, "bfloat16")
    ends = tuple(tiny_tokenizer().convert_tokens_to_ids(list(ENDS)))
    assert read_eos_token_ids(tmp_path / "model") == ends[:1]
    for folder, dtype in ((left, "float32"), (exported, "bfloat16")):
        assert read_eos_token_ids(folder) == ends
        assert json.loads((folder / "config.json").read_text())["torch_dtype"] == dtype
    agent = find_agent(exported)
    assert agent.recipe.dtype == ("float32" if overrides else "bfloat16")


def test_an_adapter_that_is_merged_wrongly_leaves_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge = LoraAdapter.merge

    def merge_wrongly(adapter: LoraAdapter) -> Any:
        model = merge(adapter)
        model.model.layers[0].mlp.down_proj.weight.data.normal_()
        return model

    monkeypatch.setattr(LoraAdapter, "merge", merge_wrongly)
    with pytest.raises(UserError, match=r"differs from the policy: .* differ by .* nats"):
        run_tiny(tmp_path, "lora.rank=2")
    assert (tmp_path / "out" / "one" / "adapter").exists()
    assert not (tmp_path / "out" / "one" / "model").exists()
