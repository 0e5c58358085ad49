"""Checkpoints of ranks: written during training, atomic, and readable by any number of ranks."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest
import torch
from safetensors.torch import load_file
from sharded_parts import (
    WORDS,
    Models,
    ModelsSpec,
    gap,
    parted,
    plain,
    sharded,
    units,
    weight_of,
    write_model,
    written,
)
from torch.distributed.checkpoint.state_dict_loader import load
from transformers import AutoModelForCausalLM, AutoTokenizer

from checkpoints import tiny_tokenizer
from cli_parts import sentence, status
from fieldcraft.config.rl import CriticConfig
from fieldcraft.config.sections import LoraConfig, Optim
from fieldcraft.config.stages import Sft
from fieldcraft.extensions.cluster.sharding.checkpoint import load_sharded_policy
from fieldcraft.recipes.loading import build_recipe
from fieldcraft.runs.resume import open_run_folder
from fieldcraft.train.losses import CrossEntropyLoss
from fieldcraft.train.protocols import TrainablePolicy
from fieldcraft.train.stages.base import StageInputs, StepMetrics
from fieldcraft.train.stages.supervised import SupervisedStage
from fieldcraft.types import UserError
from rank_processes import Pool
from training_parts import run_stage

OPTIM = Optim(lr=1e-3, micro_batch_tokens=120, schedule="linear")
ALIKE = 1e-5


def make_spec(folder: Path, tied: bool = False, **given: object) -> ModelsSpec:
    start = write_model(folder / "start", tied=tied)
    tiny_tokenizer().save_pretrained(start)
    return ModelsSpec(start=start, optim=OPTIM, **given)  # type: ignore[arg-type]


def learn(models: Models, numbers: range) -> list[float]:
    """Run steps of the policy and of its critic, and return their losses."""
    losses = []
    for number in numbers:
        chosen = units(number)
        total = weight_of(chosen)
        if models.critic:
            models.critic.fill_values(chosen)
        losses.append(models.trainer.step(chosen, CrossEntropyLoss(), total)["loss"])
        if models.critic:
            losses.append(models.critic.step(chosen, total)["loss"])
    return losses


@pytest.mark.long
@pytest.mark.parametrize(
    ("data", "context", "backbone"),
    [
        (4, 1, "policy"),
        pytest.param(1, 1, "separate", marks=pytest.mark.slow),
        pytest.param(1, 2, "separate", marks=pytest.mark.slow),
    ],
)
def test_another_number_of_ranks_goes_on_where_two_were(
    pool: Pool, tmp_path: Path, data: int, context: int, backbone: str
) -> None:
    spec = make_spec(tmp_path, critic=CriticConfig(backbone=backbone))
    target = tmp_path / "step-000003"
    with sharded(pool, tmp_path, spec, 2) as models:
        start = written(models, tmp_path / "start-of-it")
        learn(models, range(3))
        assert models.critic is not None
        models.trainer.save(target, None, {"critic": models.critic.state_dict()})
        losses = learn(models, range(3, 6))  # while the checkpoint is being written
        models.trainer.wait_for_saves()
        weights = written(models, tmp_path / "whole")
    with sharded(pool, tmp_path, spec, data, context) as models:
        assert models.critic is not None
        learn(models, range(7, 8))  # loading discards what these steps learn
        models.trainer.fill_logprobs(units(7), "old_logp", 1.0)  # leaves stale full weights behind
        models.critic.load_state_dict(models.trainer.load(target)["critic"])
        assert models.trainer.done == models.critic.done == 3
        assert learn(models, range(3, 6)) == pytest.approx(losses, abs=ALIKE)
        assert parted(start, weights, written(models, tmp_path / "resumed")) < 1e-3


@pytest.mark.long
def test_a_checkpoint_is_there_when_it_is_whole(pool: Pool, tmp_path: Path) -> None:
    spec, target = make_spec(tmp_path), tmp_path / "saved" / "step-000001"
    with sharded(pool, tmp_path, spec, 2) as models:
        learn(models, range(1))
        models.trainer.save(target, None, {"kept": [1, 2]})
        assert models.trainer.load(target) == {"kept": [1, 2]}  # waits until it is written
        models.trainer.save(target, None, {})  # like the save at the end of a stage
        models.trainer.wait_for_saves()
        assert [path.name for path in target.parent.iterdir()] == ["step-000001"]
        assert models.trainer.load(target) == {"kept": [1, 2]}


def test_a_damaged_checkpoint_is_refused_with_a_sentence(pool: Pool, tmp_path: Path) -> None:
    spec = make_spec(tmp_path)
    with sharded(pool, tmp_path, spec, 2) as models:
        models.trainer.save(tmp_path / "step-000000", None, {})
        models.trainer.wait_for_saves()
        shard = next((tmp_path / "step-000000").glob("*.distcp"))
        shard.write_bytes(shard.read_bytes()[: shard.stat().st_size // 2])
        with pytest.raises(UserError, match="step-000000"):
            models.trainer.load(tmp_path / "step-000000")


@pytest.mark.long
@pytest.mark.parametrize(
    ("tied", "lora"),
    [
        (False, LoraConfig(rank=4, alpha=8)),
        pytest.param(False, None, marks=pytest.mark.slow),
        pytest.param(True, None, marks=pytest.mark.slow),
    ],
    ids=["lora", "whole", "tied"],
)
def test_a_checkpoint_becomes_a_folder_of_transformers(
    pool: Pool,
    tmp_path: Path,
    tied: bool,
    lora: LoraConfig | None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    spec = make_spec(tmp_path, tied, lora=lora)
    run = write_run(tmp_path / "run", spec)
    target = run / "only" / "step-000002"
    with sharded(pool, tmp_path, spec, 4) as models:
        learn(models, range(2))
        models.trainer.save(target, None, {})
        expected = written(models, tmp_path / "expected")
        learn(models, range(2, 4))
        models.trainer.wait_for_saves()
    model, adapter = load_sharded_policy(target, spec.start, "float32", lora)
    if adapter is None:
        assert gap(dict(model.named_parameters()), expected) == 0
    else:
        adapter.save(tmp_path / "adapter")
        assert gap(load_file(tmp_path / "adapter" / "adapter_model.safetensors"), expected) == 0
        model = adapter.merge()
    out = tmp_path / "exported"
    assert status("export", target, "--out", out, "--dtype", "float32") == 0
    exported = AutoModelForCausalLM.from_pretrained(out)
    assert gap(exported.state_dict(), model.state_dict()) == 0
    assert AutoTokenizer.from_pretrained(out).vocab_size == tiny_tokenizer().vocab_size
    assert status("ask", "Who?", "--model", target) == 2
    assert f"make a model of it with 'fieldcraft export {target} --out FOLDER'" in sentence(capsys)
    moved = target.rename(tmp_path / "step-000002")
    assert status("export", moved, "--out", tmp_path / "again") == 2
    assert "without its run" in sentence(capsys)


def write_run(folder: Path, spec: ModelsSpec) -> Path:
    """Create the folder of a run with a single stage."""
    lora = spec.lora and spec.lora.model_dump()
    stage = {
        "type": "sft",
        "dataset": "d",
        "steps": 20,
        "optim": {"lr": 1e-3, "micro_batch_tokens": 120},
    }
    keys = {"model": str(spec.start), "lora": lora, "stages": {"only": stage}, "tools": []}
    recipe = build_recipe({"name": "mine", "tasks": "t", "demonstrations": "d", **keys})
    with open_run_folder(folder, recipe):
        pass
    (folder / "only").mkdir()
    return folder


def test_one_process_and_ranks_do_not_read_each_others_checkpoints(
    pool: Pool, tmp_path: Path
) -> None:
    spec = make_spec(tmp_path)
    shards, whole = tmp_path / "step-000001", tmp_path / "step-000002"
    alone = plain(spec).trainer
    alone.save(whole, tiny_tokenizer(), {})
    with sharded(pool, tmp_path, spec, 2) as models:
        models.trainer.save(shards, None, {})
        with pytest.raises(UserError, match=f"rename {whole} to"):
            models.trainer.load(whole)
        learn(models, range(1))  # training continues
    with pytest.raises(UserError, match=f"{shards}"):
        alone.load(shards)


def test_gradients_of_bfloat16_are_added_up_in_float32(pool: Pool, tmp_path: Path) -> None:
    optim = Optim(lr=1e-3, micro_batch_tokens=1000, beta1=0.0, max_grad_norm=1e6)
    spec = replace(make_spec(tmp_path, dtype="bfloat16"), optim=optim)
    with sharded(pool, tmp_path, spec, 2) as models:
        learn(models, range(1))
        models.trainer.save(tmp_path / "step-000001", None, {})
    gradient = torch.zeros(WORDS, 24)  # with beta1 = 0 the first moment is the gradient
    moments = {"lm_head.weight": {"exp_avg": gradient}}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        load({"policy": {"moments": moments}}, checkpoint_id=tmp_path / "step-000001", no_dist=True)
    assert gradient.abs().max() > 1e-3
    assert (gradient != gradient.bfloat16()).any()


class Steps(SupervisedStage):
    """Stage over a few units that is killed before one of its steps."""

    def __init__(self, trainer: TrainablePolicy, dies_in: int | None = None) -> None:
        super().__init__(trainer, units(0, groups=5), CrossEntropyLoss(), 4, 0)
        self.dies_in = dies_in
        self.done: list[int] = []

    @classmethod
    async def create(cls, settings: Any, material: StageInputs) -> Self:
        raise AssertionError("it is made by hand")

    async def step(self, number: int) -> StepMetrics:
        if number == self.dies_in:
            raise KeyboardInterrupt
        self.done.append(number)
        return await super().step(number)


@pytest.mark.long
def test_a_stage_that_was_killed_goes_on_with_other_ranks(pool: Pool, tmp_path: Path) -> None:
    given = {"type": "sft", "dataset": "d", "steps": 8, "batch_size": 4, "checkpoint_every": 2}
    settings = Sft.model_validate({**given, "optim": OPTIM})
    spec, stage = make_spec(tmp_path, steps=8), tmp_path / "stage"
    alone = plain(spec)
    start = written(alone, tmp_path / "start-of-it")
    expected = run_stage(Steps(alone.trainer), settings, tmp_path / "alone")
    with sharded(pool, tmp_path, spec, 2) as models, pytest.raises(KeyboardInterrupt):
        run_stage(Steps(models.trainer, dies_in=5), settings, stage)
    with sharded(pool, tmp_path, spec, 2, 2) as models:
        second = Steps(models.trainer)
        rows = run_stage(second, settings, stage)
        found = written(models, tmp_path / "spread")
    assert second.done == [4, 5, 6, 7]  # the newest checkpoint is the one after four steps
    for name in ("loss", "grad_norm", "lr", "tokens"):
        assert [row[name] for row in rows] == pytest.approx(
            [row[name] for row in expected], abs=ALIKE
        )
    assert parted(start, found, written(alone, tmp_path / "plain")) < 1e-3
    assert [path.name for path in stage.glob("step-*")] == ["step-000008"]


def test_a_gradient_that_is_not_finite_leaves_all_ranks_as_they_were(
    pool: Pool, tmp_path: Path
) -> None:
    spec = make_spec(tmp_path)
    with sharded(pool, tmp_path, spec, 2) as models:
        learn(models, range(1))
        before = written(models, tmp_path / "before")
        chosen = units(1)
        chosen[0][0].weight[-1] = torch.inf  # only one rank has it
        with pytest.raises(UserError, match="step 1 has a non-finite gradient"):
            models.trainer.step(chosen, CrossEntropyLoss(), 10.0)
        assert gap(before, written(models, tmp_path / "after")) == 0
        assert models.trainer.done == 1
        learn(models, range(1, 2))
