"""Every command that opens an incomplete checkpoint refuses it in one sentence."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertForMaskedLM

from checkpoints import tiny_tokenizer
from cli_parts import TINY, given, lines, sentence, status

Damage = Callable[[Path], object]
Tensors = dict[str, torch.Tensor]
QUERY, HEAD = "model.layers.1.self_attn.q_proj.weight", "lm_head.weight"


def rewrite(folder: Path, change: Callable[[Tensors], Tensors]) -> None:
    file = folder / "model.safetensors"
    save_file(change(load_file(file)), file, metadata={"format": "pt"})


def lose_a_tensor(folder: Path) -> None:
    rewrite(folder, lambda w: {name: tensor for name, tensor in w.items() if name != QUERY})


def change_a_shape(folder: Path) -> None:
    rewrite(folder, lambda w: w | {HEAD: w[HEAD][:-1].clone()})


def add_a_tensor(folder: Path) -> None:
    rewrite(folder, lambda w: w | {"model.layers.2.mlp.up_proj.weight": torch.ones(2)})


def put_nan(folder: Path) -> None:
    rewrite(folder, lambda w: w | {QUERY: w[QUERY] * torch.nan})


def cut_off(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def empty(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")


def break_config(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": ')


def break_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")


def name_code(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    code = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    config |= {"model_type": "own", "auto_map": code}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text("raise SystemExit('the code of a stranger was run')")


def quantise(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "awq", "bits": 4, "group_size": 128}
    (folder / "config.json").write_text(json.dumps(config))


def replace_by_an_encoder(folder: Path) -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    config = BertConfig(vocab_size=len(tiny_tokenizer()), num_attention_heads=2, **sizes)
    BertForMaskedLM(config).save_pretrained(folder)


def name_many_layers(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config |= {"num_hidden_layers": 10**6, "layer_types": None}
    (folder / "config.json").write_text(json.dumps(config))


FILE = "/model.safetensors"
FOLLOWED = [empty, break_tokenizer, lose_a_tensor, put_nan, break_config]
DAMAGES: list[tuple[Damage, tuple[str, ...]]] = [
    (lose_a_tensor, (FILE, f"the tensor {QUERY} is missing")),
    (change_a_shape, (FILE, f"the tensor {HEAD} has the shape (399, 32) instead of (400, 32)")),
    (add_a_tensor, (FILE, "the model does not have the tensor model.layers.2.mlp.up_proj.weight")),
    (put_nan, (FILE, f"the tensor {QUERY}", "non-finite")),
    (cut_off, (FILE, "damaged or cut off")),
    (empty, (FILE, "damaged or cut off")),
    (break_config, ("/config.json cannot be read",)),
    (name_many_layers, ("/config.json has num_hidden_layers=1000000, more than any model",)),
    (break_tokenizer, ("the tokenizer of ", "cannot be read")),
    (
        name_code,
        ("requires the custom code named in its config.json, which fieldcraft never runs",),
    ),
    (quantise, ("/model is quantised (awq)", "use the unquantised model that it was made from")),
    (replace_by_an_encoder, ("no causal language model: BertLMHeadModel has bidirectional",)),
]


@pytest.mark.parametrize(("damage", "words"), DAMAGES)
@pytest.mark.parametrize("command", ["run", "check", "ask", "eval", "export"])
def test_a_broken_checkpoint_is_refused(
    command: str,
    damage: Damage,
    words: tuple[str, ...],
    files: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("builtins.input", lambda _: "y")  # confirms every prompt
    model = files["model"] = Path(shutil.copytree(files["model"], tmp_path / "model"))
    damage(model)
    questions = lines(tmp_path / "questions.jsonl", [{"question": "Who?", "answer": "Ada"}])
    recipe = ["hotpotqa", *given(files), "stages.sft.batch_size=1"]
    arguments = {
        "run": [*recipe, "--out", tmp_path / "out"],
        "check": recipe,
        "ask": ["Who?", "--model", model],
        "eval": ["--model", model, "--tasks", questions],
        "export": [model, "--out", tmp_path / "out"],
    }
    assert status(command, *arguments[command]) == 2
    problem = sentence(capsys)
    for part in words:
        assert part in problem
    assert not (tmp_path / "out").exists()


def test_an_export_refuses_a_broken_chat_template(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Path(shutil.copytree(checkpoint, tmp_path / "model"))
    (model / "chat_template.jinja").write_text("{% for %}")
    assert status("export", model, "--out", tmp_path / "out") == 2
    assert "the model's chat template cannot be read (TemplateSyntaxError" in sentence(capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def follow_renaming(advice: str) -> None:
    """Carry out the renaming that a sentence advises."""
    for name, new in re.findall(r"rename (\S+) to (\S+?),? ", advice):
        path = Path(name)
        assert not path.with_name(new).exists()
        path.rename(path.with_name(new))


@pytest.mark.long
@pytest.mark.parametrize(
    "damage", [*FOLLOWED[:2], *(pytest.param(d, marks=pytest.mark.slow) for d in FOLLOWED[2:])]
)
def test_the_advice_about_the_model_of_a_stage_helps(
    damage: Damage, done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(done, copy)
    weights = (copy / "sft2" / "model" / "model.safetensors").read_bytes()
    damage(copy / "sft2" / "model")
    assert status("ask", "Who?", "--model", copy / "sft2") == 2
    advice = sentence(capsys)
    assert advice.endswith(
        f": rename {copy}/sft2 to sft2.damaged, rename {copy}/report.html to report.html.damaged"
        " and run the recipe again, which recreates this model."
    )
    follow_renaming(advice)
    assert status("run", "smoke", *TINY, "--out", copy) == 0
    assert status("ask", "Who?", "--model", copy / "sft2") == 0
    assert (copy / "sft2" / "model" / "model.safetensors").read_bytes() == weights
