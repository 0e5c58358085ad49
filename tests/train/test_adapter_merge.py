"""Merging of PEFT adapters with their base into full models."""

import json
import shutil
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file

from checkpoints import tiny_tokenizer
from cli_parts import sentence, status
from engine_parity import sharp_model
from fieldcraft.hub.models import resolve_checkpoint
from fieldcraft.train.lora import write_merged_model
from fieldcraft.train.model import load_model, load_tokenizer
from fieldcraft.train.saving import save_model
from fieldcraft.types import UserError
from hub_parts import NAME, go_offline, hub
from hub_server import Hub

__all__ = ["hub"]
# PEFT, which writes the adapters of these tests
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
CPU = torch.device("cpu")
IDS = torch.arange(3, 40)[None]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base") / "model"
    save_model(folder, sharp_model(folder, "qwen2").bfloat16(), tiny_tokenizer())
    return folder


def write_adapter(folder: Path, base: Path | str, own: Path, **settings: Any) -> torch.Tensor:
    """Write an adapter on `base` with the weights of `own`, and return the logits of both."""
    torch.manual_seed(0)
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=2, init_lora_weights=False, **settings)
    model = peft.get_peft_model(load_model(own, CPU), config)
    model.peft_config["default"].base_model_name_or_path = str(base)
    model.save_pretrained(folder, save_embedding_layers=False)
    with torch.no_grad():
        return model.eval()(IDS).logits


def compute_logits(folder: Path) -> torch.Tensor:
    with torch.no_grad():
        return load_model(folder, CPU)(IDS).logits


def refused(adapter: Path) -> str:
    with pytest.raises(UserError) as raised:
        resolve_checkpoint(adapter)
    return str(raised.value)


@pytest.mark.parametrize("settings", [{}, {"use_dora": True}, {"modules_to_save": ["lm_head"]}])
def test_a_merged_model_says_what_the_two_said(
    tmp_path: Path, base: Path, settings: dict[str, Any]
) -> None:
    expected = write_adapter(tmp_path / "adapter", base, base, **settings)
    (tmp_path / "made").mkdir()
    write_merged_model(tmp_path / "made", tmp_path / "adapter", base)
    torch.testing.assert_close(compute_logits(tmp_path / "made"), expected, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(expected, compute_logits(base), atol=0.1)
    assert load_tokenizer(tmp_path / "made").get_vocab() == load_tokenizer(base).get_vocab()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_weights_without_an_adapter_are_those_of_the_base(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    base, made = tmp_path / "base", tmp_path / "made"
    save_model(base, sharp_model(base, "qwen2").to(dtype), tiny_tokenizer())
    write_adapter(tmp_path / "adapter", base, base, target_modules=["q_proj"])
    made.mkdir()
    write_merged_model(made, tmp_path / "adapter", base)
    stored, merged = (load_file(folder / "model.safetensors") for folder in (base, made))
    assert stored.keys() == merged.keys()
    different = {name for name in stored if not torch.equal(stored[name].float(), merged[name])}
    assert different == {name for name in stored if name.endswith("q_proj.weight")}


@pytest.mark.long
def test_an_adapter_on_a_model_of_the_hub(
    tmp_path: Path, base: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add_folder(f"models/{NAME}", base)
    write_adapter(tmp_path / "adapter", NAME, base)
    hub.add_folder("models/org/adapter", tmp_path / "adapter")
    made = resolve_checkpoint(Path("org/adapter"))
    assert (made / "model.safetensors").exists()
    go_offline(monkeypatch)
    assert resolve_checkpoint(Path("org/adapter")) == made  # another folder with the same contents
    assert (
        resolve_checkpoint(tmp_path / "adapter").name.rpartition("-")[2]
        == made.name.rpartition("-")[2]
    )


def test_an_adapter_without_its_base(
    tmp_path: Path, base: Path, hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    adapter = tmp_path / "adapter"
    write_adapter(adapter, "/nowhere/at/all", base)
    for command in (["ask", "Who?", "--model"], ["export", "--out", "copy"]):
        assert status(*command, adapter) == 2
        message = sentence(capsys)
        assert f"{adapter} is an adapter, and its base /nowhere/at/all is not here: set" in message
    config = adapter / "adapter_config.json"
    found = json.loads(config.read_bytes())
    config.write_text(json.dumps(found | {"base_model_name_or_path": None}))
    assert "its base model is not here" in refused(adapter)
    config.write_text(json.dumps(found | {"base_model_name_or_path": "org/other"}))
    assert refused(adapter).startswith("org/other is not a folder, and http://127.0.0.1")
    config.write_text(json.dumps(found | {"base_model_name_or_path": str(adapter)}))
    assert f"its base {adapter} is not here" in refused(adapter)
    config.write_text("[")
    assert str(config) in refused(adapter)


def test_an_adapter_that_does_not_fit(tmp_path: Path, base: Path) -> None:
    adapter, out = tmp_path / "adapter", tmp_path / "made"
    other = sharp_model(tmp_path / "llama", "llama")
    save_model(tmp_path / "other", other, tiny_tokenizer())
    write_adapter(adapter, base, tmp_path / "other", target_modules=["q_proj"])
    weights = adapter / "adapter_model.safetensors"
    shutil.copy(tmp_path / "other" / "model.safetensors", weights)
    with pytest.raises(UserError, match="does not fit the model in"):
        write_merged_model(out, adapter, base)
    weights.write_bytes(b"?")
    with pytest.raises(UserError, match="does not fit the model in"):
        write_merged_model(out, adapter, base)
    weights.rename(adapter / "adapter_model.bin")
    assert "is an adapter without weights in safetensors" in refused(adapter)


def test_what_cannot_be_merged(tmp_path: Path, base: Path) -> None:
    adapter = tmp_path / "adapter"
    config = peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    peft.get_peft_model(load_model(base, CPU), config).save_pretrained(adapter)
    with pytest.raises(UserError, match="type PREFIX_TUNING, which cannot be merged"):
        write_merged_model(tmp_path / "made", adapter, base)
    found = json.loads((adapter / "adapter_config.json").read_bytes())
    found["task_type"] = "SEQ_CLS"
    (adapter / "adapter_config.json").write_text(json.dumps(found))
    with pytest.raises(UserError, match="is an adapter for SEQ_CLS and not for a model that"):
        write_merged_model(tmp_path / "made", adapter, base)
