"""Differences that the comparison of golden runs finds, and differences that it ignores."""

import json
from pathlib import Path
from types import ModuleType

import pytest

from script_modules import load_script

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def golden(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = load_script("scripts/golden.py")
    monkeypatch.setattr(module, "RUNS", {"one": []})
    return module


def write(folder: Path, row: dict[str, object], name: str = "sft/metrics.jsonl") -> Path:
    path = folder / "one" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(row) + "\n")
    return folder


def test_numbers_are_compared_and_times_are_not(golden: ModuleType, tmp_path: Path) -> None:
    row = {"loss": 0.5, "seconds": 1.0, "inner": {"tool_seconds_mean": 3, "em": 1}}
    again = {"loss": 0.5, "seconds": 2.0, "inner": {"tool_seconds_mean": 4, "em": 1}}
    other = {"loss": 0.5, "seconds": 1.0, "inner": {"tool_seconds_mean": 3, "em": 0}}
    old, same, new = (tmp_path / name for name in ("old", "same", "new"))
    for folder, written in ((old, row), (same, again), (new, other)):
        write(folder, written)
    assert golden.differences(same, old, {}) == []
    assert golden.differences(new, old, {}) == ["one/sft/metrics.jsonl differs"]


def test_only_an_engine_process_may_round_differently(
    golden: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new, other = (tmp_path / name for name in ("old", "new", "other"))
    for folder, logprob in ((old, -2.8), (new, -2.800002), (other, -2.8001)):
        write(folder, {"segments": [{"logprobs": [-1.0, logprob]}]})
    assert golden.differences(new, old, {}) == ["one/sft/metrics.jsonl differs"]
    monkeypatch.setattr(golden, "ROUNDING", {"one": 1e-5})
    assert golden.differences(new, old, {}) == []
    assert golden.differences(other, old, {}) == ["one/sft/metrics.jsonl differs"]


def test_a_file_that_is_missing_is_a_difference(golden: ModuleType, tmp_path: Path) -> None:
    old = write(write(tmp_path / "old", {"em": 1}), {"em": 1}, "evaluations/base.jsonl")
    new = write(tmp_path / "new", {"em": 1})
    assert golden.differences(new, old, {}) == [
        "one/evaluations/base.jsonl exists in only one folder"
    ]


def test_renamed_keys_are_equal(golden: ModuleType, tmp_path: Path) -> None:
    old, new = write(tmp_path / "old", {"em": 1}), write(tmp_path / "new", {"exact_match": 1})
    assert golden.differences(new, old, {"em": "exact_match"}) == []
    assert golden.differences(new, old, {}) != []


def test_the_names_of_metrics_are_none_of_a_recipe(golden: ModuleType, tmp_path: Path) -> None:
    keys = json.loads((ROOT / "src/fieldcraft/records/renamed_metrics.json").read_text())
    evals = [{"rl": {"read_mean": 1.0}}, {"rl": {"prompt_tokens_mean": 1.0}}]
    recipe = {"config": {"ratio": "token"}}
    old, new = (
        write(tmp_path / str(number), {"evals": found} | recipe, "report.json")
        for number, found in enumerate(evals)
    )
    assert golden.differences(new, old, keys) == []
    assert golden.differences(new, old, {}) == ["one/report.json differs"]


def test_an_earlier_commit_gets_former_keys(golden: ModuleType) -> None:
    assert golden.knows_current_keys()
    overrides = {
        "stages.rl.group_filter=none": "stages.rl.keep_groups=all",
        "stages.rl.group_size=4": "stages.rl.group=4",
        "tiny_model.layers=2": "scratch.layers=2",
        "lora={rank: 4}": "lora={rank: 4}",
    }
    assert [golden.with_former_keys(current) for current in overrides] == [*overrides.values()]


def test_every_run_is_a_recipe() -> None:
    module = load_script("scripts/golden.py")
    assert len(module.RUNS) == 7
    for recipe, *overrides in module.RUNS.values():
        assert (ROOT / f"src/fieldcraft/recipes/{recipe}.yaml").exists()
        assert all("=" in override for override in overrides)
