"""Complete runs whose reinforcement learning simulates its search."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fieldcraft.engine.threads import ThreadCounts
from fieldcraft.recipes.loading import load_recipe
from fieldcraft.records.events import EventBus, write_metrics
from fieldcraft.records.metrics import MetricsLog
from fieldcraft.runs import context, stage_inputs
from fieldcraft.runs.run import run_recipe
from fieldcraft.train import lora, model
from report_parts import charts_of

RECIPE = """
name: tiny
device: cpu
instruction: ""
world: {name: atlas, people: 30, variants: 3}
tiny_model: {layers: 2, width: 32, heads: 2}
search: {top_k: 1}
budget: {max_calls: 2, max_turn_tokens: 40, max_context_tokens: 200}
stages:
  sft3:
    type: sft
    dataset: demonstrations
    max_examples: 200
    train_on: [policy, tool]
    steps: 60
    batch_size: 8
    evaluate: false
    optim: {lr: 1.0e-2, warmup_steps: 5, schedule: linear}
  sft4:
    type: sft
    dataset: demonstrations
    max_examples: 8
    steps: 1
    batch_size: 8
    evaluate: false
    optim: {lr: 1.0e-3}
  rl1:
    type: rl
    observations: mixed
    simulated_share: 0.5
    simulator: frozen
    simulator_stage: sft3
    steps: 4
    questions_per_step: 3
    group_size: 3
    checkpoint_every: 2
    temperature: 0.5
    entropy_coef: 0.01 # so that steps train, whatever this model is rewarded for
    optim: {lr: 1.0e-3}
evaluation: {splits: {heldout: 4, train: 2, known: 2}, workflows: []}
"""


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Use one thread; measuring the fastest number would give each run another one."""
    before = torch.get_num_threads()
    monkeypatch.setattr(context, "find_fastest_threads", lambda _: ThreadCounts(1, 1))
    yield
    torch.set_num_threads(before)


def run(folder: Path) -> None:
    recipe = folder.parent / "tiny.yaml"
    recipe.write_text(RECIPE)
    run_recipe(load_recipe(str(recipe), []), folder, EventBus([write_metrics]))


def rows(run: Path) -> list[dict[str, Any]]:
    found = [json.loads(row) for row in (run / "rl1" / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if "second" not in k} for row in found]


def same_weights(one: Path, other: Path) -> bool:
    a, b = (load_file(folder / "model" / "model.safetensors") for folder in (one, other))
    return all(torch.equal(tensor, b[name]) for name, tensor in a.items())


@pytest.mark.slow
def test_a_mixed_stage_with_a_frozen_simulator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    loaded: list[Path] = []

    def load_model(path: Path, *settings: Any) -> Any:
        loaded.append(path)
        return load(path, *settings)

    load = model.load_model
    for module in (context, lora, stage_inputs):
        monkeypatch.setattr(module, "load_model", load_model)
    run(whole)
    # the trained model, the simulator, and then the result of the stage are evaluated
    assert loaded[-3:] == [
        whole / "sft4" / "model",
        whole / "sft3" / "model",
        whole / "rl1" / "model",
    ]

    found = rows(whole)
    simulated = [{key for key in row if key.startswith("fidelity/")} for row in found]
    assert [bool(keys) for keys in simulated] == [True, False, True, False]
    assert sum(found[i]["fidelity/n"] + found[i]["fidelity/unknown"] for i in (0, 2)) > 3
    assert all(row["grad_norm"] > 0 for row in found)
    assert not same_weights(whole / "sft4", whole / "rl1")
    page = (whole / "report.html").read_text("utf-8")
    assert ("Fidelity" in charts_of(page)) == any(
        "fidelity/supports_answer" in row for row in found
    )

    # A run killed after the step that follows a checkpoint ends with the same numbers.
    ignored = shutil.ignore_patterns("rl1", "evaluations", "report*", ".lock")
    shutil.copytree(whole, killed, ignore=ignored)
    append = MetricsLog.append

    def die(log: MetricsLog, row: dict[str, Any]) -> None:
        append(log, row)
        if row["step"] == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(MetricsLog, "append", die)
    with pytest.raises(KeyboardInterrupt):
        run(killed)
    monkeypatch.setattr(MetricsLog, "append", append)
    assert len(rows(killed)) == 3
    run(killed)
    assert rows(killed) == found
    assert same_weights(killed / "rl1", whole / "rl1")
