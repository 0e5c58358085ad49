"""Files of earlier versions are read with the current metric names."""

import json
from pathlib import Path

import pytest
import torch

from cluster_parts import EngineGroupRig, ModelledEngine
from fieldcraft.data.world import SimulationVerdict
from fieldcraft.evaluation.fidelity import compute_fidelity_metrics
from fieldcraft.evaluation.summary import summarise_evaluation
from fieldcraft.records.metrics import (
    METRICS,
    RENAMED_METRICS,
    MetricsLog,
    rename_report,
    rename_summary,
)
from fieldcraft.runs.stage_files import EvaluationFiles, StageFolder
from fieldcraft.train.losses import PolicyGradientLoss, TokenBatch
from report_parts import trajectory
from rl_parts import MIXED, stage
from training_parts import step
from virtual_time import virtually

OLD_ROW = {"step": 0, "seconds": 1.0, "equal_groups": 0.5, "ratio": 1.5, "engines_lost": 2.0}
NEW_ROW = {
    **{"step": 0, "seconds": 1.0, "no_signal_group_rate": 0.5},
    **{"ratio_mean": 1.5, "engine_restarts": 2.0},
}
OLD_FIGURES = {"n": 2, "em": 0.5, "read_mean": 20.0, "written_mean": 6.0}
NEW_FIGURES = {"n": 2, "em": 0.5, "prompt_tokens_mean": 20.0, "completion_tokens_mean": 6.0}


def grouped(figures: dict[str, float]) -> dict[str, object]:
    """Return a summary with a split and a data source named like old metrics."""
    return {**figures, "splits": {"ratio": {**figures, "sources": {"dropped": figures}}}}


def write_log(folder: Path, *rows: dict[str, object]) -> MetricsLog:
    path = folder / "metrics.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return MetricsLog(path)


def rows_of_the_code() -> set[str]:
    """Return the metric names in the code, collected without a model."""
    rl, _, _ = stage(MIXED)
    ones, places = torch.ones(2), torch.zeros(2, dtype=torch.long)
    batch = TokenBatch(ones, ones, ones, places, places, ones, ones, ones, ones, 1)
    _, of_the_loss = PolicyGradientLoss(importance_cap=2.0, reject="token")(batch, 2.0)
    rig = EngineGroupRig(ModelledEngine(0))
    virtually(rig.group.update_weights(0))
    verdicts = [SimulationVerdict(True, True, False, taught=taught) for taught in (True, False)]
    evaluated = trajectory("a", correct=True)
    return {
        *(step(rl, 0).keys() | of_the_loss.keys() | rig.group.last_update_metrics.keys()),
        *(compute_fidelity_metrics(lambda _: list(verdicts), [evaluated]).keys()),
        *(metric.heldout for metric in METRICS.values() if metric.heldout),
        *summarise_evaluation([evaluated]),
    }


def test_an_old_row_reads_as_a_new_one(tmp_path: Path) -> None:
    assert write_log(tmp_path, OLD_ROW, NEW_ROW).read_rows() == [NEW_ROW, NEW_ROW]


@pytest.mark.parametrize(("old", "new"), RENAMED_METRICS.items())
def test_each_old_name_reads_as_the_new_one(tmp_path: Path, old: str, new: str) -> None:
    row: dict[str, object] = {"step": 0, "seconds": 1.0, "equal_groups": 0.5}
    [found] = write_log(tmp_path, row | {old: 0.25}).read_rows()
    assert found[new] == 0.25
    assert old not in found


def test_metrics_of_a_stage_of_ones_own_keep_their_names(tmp_path: Path) -> None:
    row = {"step": 0, "seconds": 1.0, "ratio": 2.0, "no_signal_group_rate": 0.0, "dropped": 1}
    assert write_log(tmp_path, row).read_rows() == [row]


def test_a_resumed_stage_has_rows_of_one_kind(tmp_path: Path) -> None:
    log = write_log(tmp_path, OLD_ROW, OLD_ROW | {"step": 1})
    log.truncate_after(1)
    assert [json.loads(line) for line in log.path.read_text().splitlines()] == [NEW_ROW]


def test_an_old_stage_and_an_old_evaluation_read_as_new_ones(tmp_path: Path) -> None:
    (tmp_path / "stage.json").write_text(json.dumps({"seconds": 1.0, "metrics": OLD_ROW}))
    assert StageFolder(tmp_path).read_record()["metrics"] == NEW_ROW
    files = EvaluationFiles(tmp_path / "rl.jsonl", tmp_path / "rl.json")
    files.summary.write_text(json.dumps({"seconds": 1.0, "summary": grouped(OLD_FIGURES)}))
    assert files.read_summary() == grouped(NEW_FIGURES)


def test_an_old_report_reads_as_a_new_one() -> None:
    old = {"stages": [{"name": "rl", "metrics": OLD_ROW}], "evals": {"rl": grouped(OLD_FIGURES)}}
    new = {"stages": [{"name": "rl", "metrics": NEW_ROW}], "evals": {"rl": grouped(NEW_FIGURES)}}
    recipe = {"config": {"stages": {"rl": {"ratio": "token"}}}}
    assert rename_report(old | recipe) == new | recipe
    assert rename_report(new) == new
    assert rename_report({"rows": []}) == {"rows": []}  # of several seeds
    assert rename_summary({}) == {}


def test_every_new_name_is_one_of_the_code() -> None:
    written = rows_of_the_code()
    assert written.isdisjoint(RENAMED_METRICS)
    of_other_tests = {"rollouts_dropped", "trainer_wait_seconds"}  # train/test_async_sampler.py
    assert {*RENAMED_METRICS.values()} - written == of_other_tests
