"""Resumption of a killed stage with the same result as an uninterrupted one."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from checkpoints import tiny_tokenizer
from fieldcraft.config.sections import Optim
from fieldcraft.config.stages import Sft
from fieldcraft.records.events import (
    EarlyStop,
    EarlyStopError,
    Event,
    EventCallback,
    StepCompleted,
    ignore_event,
)
from fieldcraft.records.metrics import MetricsLog
from fieldcraft.train.losses import CrossEntropyLoss
from fieldcraft.train.model import choose_device, load_model, load_tokenizer
from fieldcraft.train.saving import restore_checkpoint, save_checkpoint
from fieldcraft.train.stages.base import StepMetrics
from fieldcraft.train.trainer import Trainer
from fieldcraft.types import UserError
from training_parts import Steps, assert_same, make_trainer, random_samples, run_stage, weights

OPTIM = Optim(lr=1e-2, warmup_steps=2, schedule="cosine", weight_decay=0.1)
STAGE = Sft(type="sft", dataset="", steps=7, checkpoint_every=2, optim=OPTIM)


class Killed(BaseException):
    """Simulated end of the process."""


def new_trainer(folder: Path) -> Trainer:
    return Trainer(make_trainer(folder / "start").model, OPTIM, STAGE.steps)


def run(
    folder: Path,
    dies_in: int | None = None,
    stage: Sft = STAGE,
    callback: EventCallback = ignore_event,
) -> tuple[Trainer, list[StepMetrics]]:
    """Run the stage in `folder` with a step that also depends on a growing state."""
    trainer = new_trainer(folder)
    best = {"total": 0}

    def step(number: int) -> StepMetrics:
        if number == dies_in:
            raise Killed
        best["total"] += number
        units = [(sample,) for sample in random_samples(3, seed=number)]
        row = trainer.step(units, CrossEntropyLoss(), 20.0 + best["total"])
        return {**row, "tokens": 30, "total": best["total"]}

    return trainer, run_stage(Steps(trainer, step, best), stage, folder, callback=callback)


def figures(rows: list[StepMetrics]) -> list[StepMetrics]:
    """Return rows without the values that depend on a clock."""
    clock = {"seconds", "tokens_per_second"}
    return [{k: v for k, v in row.items() if k not in clock} for row in rows]


def steps_saved(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if "step" in path.name)


@pytest.mark.parametrize("moments", [[0], [1], [2], [3], [6], [1, 3, 3, 4, 6]])
def test_killed_and_gone_on_equals_never_killed(tmp_path: Path, moments: list[int]) -> None:
    whole, rows = run(tmp_path / "whole")
    for moment in moments:
        with pytest.raises(Killed):
            run(tmp_path / "killed", dies_in=moment)
    resumed, resumed_rows = run(tmp_path / "killed")
    assert_same(weights(whole.model), weights(resumed.model))
    assert figures(resumed_rows) == figures(rows)
    assert [row["step"] for row in rows] == list(range(7))
    assert MetricsLog(tmp_path / "killed" / "metrics.jsonl").read_rows() == resumed_rows


def test_a_stage_that_is_complete_runs_no_step_again(tmp_path: Path) -> None:
    first, rows = run(tmp_path)
    again, same_rows = run(tmp_path, dies_in=0)
    assert same_rows == rows
    assert_same(weights(first.model), weights(again.model))


def test_a_handler_ends_the_stage_after_a_step_and_it_is_resumed(tmp_path: Path) -> None:
    """The stage stops between two regular checkpoints, and ends as an uninterrupted one."""
    whole, rows = run(tmp_path / "whole")
    seen: list[int] = []

    def stop_after_three(event: Event) -> EarlyStop | None:
        if not isinstance(event, StepCompleted):
            return None
        seen.append(event.row["step"])
        return EarlyStop("enough") if seen == [0, 1, 2] else None

    with pytest.raises(EarlyStopError) as caught:
        run(tmp_path / "stopped", callback=stop_after_three)
    assert str(caught.value) == (
        "an event handler ended the training of stage 'stopped' after step 3 of 7: enough"
    )
    assert (caught.value.stage, steps_saved(tmp_path / "stopped")) == ("stopped", ["step-000003"])
    resumed, again = run(tmp_path / "stopped", callback=stop_after_three)
    assert seen == [0, 1, 2, 3, 4, 5, 6]
    assert figures(again) == figures(rows)
    assert_same(weights(resumed.model), weights(whole.model))


def test_a_stop_in_the_last_step_is_the_end(tmp_path: Path) -> None:
    def stop_at_the_end(event: Event) -> EarlyStop | None:
        is_last = isinstance(event, StepCompleted) and event.row["step"] == 6
        return EarlyStop("done") if is_last else None

    _, rows = run(tmp_path / "stage", callback=stop_at_the_end)
    assert len(rows) == 7


def test_there_is_one_checkpoint_and_it_is_the_newest(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        run(tmp_path, dies_in=5)
    assert steps_saved(tmp_path) == ["step-000004"]
    run(tmp_path)
    assert steps_saved(tmp_path) == ["step-000007"]


def test_a_checkpoint_cut_short_is_as_if_it_were_not(tmp_path: Path) -> None:
    _, rows = run(tmp_path / "whole")
    with pytest.raises(Killed):
        run(tmp_path / "killed", dies_in=4)
    older = tmp_path / "killed" / "step-000004"
    shutil.copytree(older, tmp_path / "killed" / ".step-000006.draft")
    (tmp_path / "killed" / ".step-000006.draft" / "trainer.pt").unlink()
    _, resumed_rows = run(tmp_path / "killed")
    assert figures(resumed_rows) == figures(rows)


def test_killed_between_a_new_checkpoint_and_the_deletion_of_the_old(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        run(tmp_path, dies_in=5)
    half_deleted = tmp_path / "step-000002"
    half_deleted.mkdir()
    (half_deleted / "config.json").touch()
    resumed, _ = run(tmp_path)
    whole, _ = run(tmp_path / "whole")
    assert_same(weights(whole.model), weights(resumed.model))


def test_a_step_without_training_counts_too(tmp_path: Path) -> None:
    """Reinforcement learning skips the optimiser if all rewards are equal."""
    trainer = new_trainer(tmp_path)
    rows = run_stage(Steps(trainer, lambda number: {"tokens": 1}), STAGE, tmp_path)
    assert (trainer.done, len(rows)) == (7, 7)
    assert rows[3]["tokens_per_second"] == pytest.approx(1 / rows[3]["seconds"])


def test_the_rows_of_a_checkpoint_are_on_disk_before_it_appears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power failure loses what was appended to a file since it was last synced."""
    metrics, sync, rename = tmp_path / "metrics.jsonl", os.fsync, Path.rename
    synced_rows = 0
    rows_at_checkpoint: dict[str, int] = {}

    def record_sync(descriptor: int) -> None:
        nonlocal synced_rows
        sync(descriptor)
        if metrics.exists() and os.path.samestat(os.fstat(descriptor), metrics.stat()):
            synced_rows = len(metrics.read_text().splitlines())

    def record_rename(draft: Path, target: Path) -> Path:
        rows_at_checkpoint[target.name] = synced_rows
        return rename(draft, target)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(Path, "rename", record_rename)
    run(tmp_path)
    counts = {f"step-{steps:06d}": steps for steps in (2, 4, 6, 7)}
    assert {name: rows_at_checkpoint[name] for name in counts} == counts


# -- checkpoints --------------------------------------------------------------------------------


def test_a_checkpoint_holds_weights_optimiser_and_extra(tmp_path: Path) -> None:
    trainer = new_trainer(tmp_path)
    trainer.step([(s,) for s in random_samples(2)], CrossEntropyLoss(), 1.0)
    extra: dict[str, Any] = {"state": {"best": {"q": 2}}}
    saved = save_checkpoint(tmp_path / "stage", trainer, tiny_tokenizer(), extra)
    other = new_trainer(tmp_path)
    assert restore_checkpoint(tmp_path / "stage", other) == extra
    assert_same(weights(trainer.model), weights(other.model))
    assert other.done == 1
    mine, theirs = trainer.adamw.state_dict()["state"], other.adamw.state_dict()["state"]
    assert all(torch.equal(mine[i][k], theirs[i][k]) for i in mine for k in mine[i])
    # the folder is a checkpoint that transformers loads
    loaded = load_model(saved, torch.device("cpu"))
    assert_same(weights(trainer.model), weights(loaded))
    text = "Ada Lind <|im_end|>"
    assert load_tokenizer(saved).encode(text) == tiny_tokenizer().encode(text)


def test_without_a_checkpoint_nothing_is_restored(tmp_path: Path) -> None:
    trainer = new_trainer(tmp_path)
    before = weights(trainer.model)
    assert restore_checkpoint(tmp_path / "nothing", trainer) == {}
    assert_same(before, weights(trainer.model))


# -- loading ------------------------------------------------------------------------------------


def test_folders_that_hold_no_model_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a checkpoint"):
        load_model(tmp_path, torch.device("cpu"))
    with pytest.raises(UserError, match="contains no tokenizer"):
        load_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    with pytest.raises(UserError, match=r"cannot be (loaded|read)"):
        load_model(tmp_path, torch.device("cpu"))


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert str(choose_device("auto")) == str(choose_device("cpu")) == "cpu"
    with pytest.raises(UserError, match="device=cuda"):
        choose_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert str(choose_device("auto")) == str(choose_device("cuda")) == "cuda"
    assert str(choose_device("cpu")) == "cpu"
