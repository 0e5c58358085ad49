"""What a run and its export leave: the trained model, for every program that reads it."""

import json
from pathlib import Path

import pytest

from checkpoints import tiny_tokenizer, write_tiny_checkpoint
from fieldcraft.engine.recommended import read_ends
from fieldcraft.recipes.loading import load_recipe
from fieldcraft.records.events import Events, write_metrics
from fieldcraft.runs import training
from fieldcraft.runs.agent import find_agent
from fieldcraft.runs.exporting import export
from fieldcraft.runs.run import run_recipe
from fieldcraft.train.lora import Adapter
from fieldcraft.types import UserError

RECIPE = """
recipe: tiny
device: cpu
dtype: bfloat16
instruction: ""
ungraded: trust
tools: []
tasks: tasks.jsonl
demonstrations: tasks.jsonl
budget: {turn_tokens: 8, total_tokens: 300}
stages:
  one: {type: sft, data: demonstrations, steps: 1, batch: 1, optim: {lr: 1.0e-3}}
evaluation: {splits: {heldout: 1}, workflows: []}
"""
ENDS = ("<|endoftext|>", "<|im_end|>")  # of the tokenizer, and of the chat template


def start(folder: Path, *overrides: str) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.eos_token = ENDS[0]
    write_tiny_checkpoint(folder / "model", "qwen2", tokenizer=tokenizer)
    asked = [{"question": f"Who is {i}?", "answer": "Ada"} for i in range(3)]
    shown = [{**one, "messages": messages(one)} for one in asked]
    for name, records in (("tasks", asked), ("shown", shown)):
        text = "".join(json.dumps(record) + "\n" for record in records)
        (folder / f"{name}.jsonl").write_text(text)
    (folder / "tiny.yaml").write_text(RECIPE)
    paths = [f"model={folder / 'model'}", f"tasks={folder / 'tasks.jsonl'}"]
    paths.append(f"demonstrations={folder / 'shown.jsonl'}")
    recipe = load_recipe(str(folder / "tiny.yaml"), [*paths, *overrides])
    run_recipe(recipe, folder / "out", Events([write_metrics]))


def messages(one: dict[str, str]) -> list[dict[str, str]]:
    answer = f"<think>\nIt is known.\n</think>\n\\boxed{{{one['answer']}}}"
    return [
        {"role": "user", "content": one["question"]},
        {"role": "assistant", "content": answer},
    ]


@pytest.mark.parametrize("overrides", [(), ("lora.rank=2",)], ids=["all weights", "an adapter"])
def test_what_is_left_behind(overrides: tuple[str, ...], tmp_path: Path) -> None:
    start(tmp_path, *overrides)
    left, exported = tmp_path / "out" / "one" / "model", tmp_path / "exported"
    export(tmp_path / "out", exported, "bfloat16")
    ends = tuple(tiny_tokenizer().convert_tokens_to_ids(list(ENDS)))
    assert read_ends(tmp_path / "model") == ends[:1]
    for folder, dtype in ((left, "float32"), (exported, "bfloat16")):
        assert read_ends(folder) == ends
        assert json.loads((folder / "config.json").read_text())["torch_dtype"] == dtype
    agent = find_agent(exported)
    assert agent.recipe.dtype == ("float32" if overrides else "bfloat16")


def test_an_adapter_that_is_merged_wrongly_leaves_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Forgetful(Adapter):  # type: ignore[misc]
        def merged(self) -> object:
            model = super().merged()
            model.model.layers[0].mlp.down_proj.weight.data.normal_()
            return model

    monkeypatch.setattr(training, "Adapter", Forgetful)
    with pytest.raises(UserError, match=r"another one than the policy: .* nats apart"):
        start(tmp_path, "lora.rank=2")
    assert (tmp_path / "out" / "one" / "adapter").exists()
    assert not (tmp_path / "out" / "one" / "model").exists()
