"""Trainers in Ray processes: the same steps as in one process, and publication to engines."""

import asyncio
import os
import random
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine_parity import PROMPT, TOKENIZER, sharp_model
from fieldcraft.config.sections import ClusterConfig, Optim
from fieldcraft.engine.local.engine import LocalEngine
from fieldcraft.extensions.cluster.engine_pool import EnginePool
from fieldcraft.extensions.cluster.ranks import (
    HEALTH_GROUP,
    RayTrainerGroup,
    ShardedWeights,
)
from fieldcraft.extensions.cluster.session import open_cluster
from fieldcraft.extensions.cluster.sharding.specs import PolicySpec
from fieldcraft.extensions.cluster.sharding.trainer import ShardedTrainer
from fieldcraft.sampling import SamplingParams
from fieldcraft.train.batch import Sample, SampleUnit
from fieldcraft.train.losses import CrossEntropyLoss
from fieldcraft.train.model import load_model, make_empty_model
from fieldcraft.train.protocols import TrainersLostError
from fieldcraft.train.trainer import Trainer
from fieldcraft.types import UserError

pytestmark = pytest.mark.long

OPTIM = Optim(lr=1e-2)


class Scene:
    """Policy on two ranks."""

    def __init__(self, ranks: RayTrainerGroup, ray: Any, folder: Path) -> None:
        self.ray = ray
        self.folder = folder / "model"
        sharp_model(self.folder, "qwen3")
        self.ranks = ranks
        self.trainer = self.begin()

    def begin(self) -> ShardedTrainer:
        self.ranks.start()
        spec = PolicySpec(folder=self.folder, optim=OPTIM, steps=9)
        return ShardedTrainer(self.ranks, spec)


@pytest.fixture(scope="module")
def ranks(ray: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayTrainerGroup]:
    """Start two processes that the tests share."""
    with open_cluster(
        ClusterConfig(trainers=2), "cpu", tmp_path_factory.mktemp("ranks")
    ) as session:
        group = RayTrainerGroup(session)
        yield group
        asyncio.run(group.close())


@pytest.fixture
def scene(ranks: RayTrainerGroup, ray: Any, tmp_path: Path) -> Scene:
    return Scene(ranks, ray, tmp_path)


def units(seed: int) -> list[SampleUnit]:
    """Return eight texts of different lengths."""
    drawn = np.random.default_rng(seed)
    return [(text(drawn.integers(3, 400, drawn.integers(4, 40))),) for _ in range(8)]


def text(ids: np.ndarray) -> Sample:
    zeros = np.zeros(len(ids), np.float32)
    weight = np.ones(len(ids), np.float32)
    weight[0] = 0
    return Sample(ids.astype(np.int64), weight, zeros, zeros, zeros, zeros, zeros, zeros)


def test_two_ranks_train_as_one_process_does_and_engines_get_their_weights(
    scene: Scene, engines: EnginePool
) -> None:
    local = Trainer(load_model(scene.folder, torch.device("cpu")), OPTIM, 9)
    for step in range(3):
        row = scene.trainer.step(units(step), CrossEntropyLoss(), 100.0)
        expected = local.step(units(step), CrossEntropyLoss(), 100.0)
        assert row["loss"] == pytest.approx(expected["loss"], abs=1e-5)
    model = make_empty_model(scene.folder)
    source = ShardedWeights(scene.ranks, scene.trainer, model.config)
    group = engines.make_group(model, TOKENIZER, source=source, max_num_seqs=8)

    async def work() -> None:
        try:
            await group.update_weights(3)
            found = await group.generate(PROMPT, SamplingParams(20, seed=1), "s")
            engine = LocalEngine(local.model, TOKENIZER, max_num_seqs=8)
            assert found.ids == (await engine.generate(PROMPT, SamplingParams(20, seed=1), "s")).ids
        finally:
            await group.close()

    asyncio.run(work())


def train_on(trainer: ShardedTrainer) -> None:
    """Train until a step fails."""
    for step in count(3):
        trainer.step(units(step), CrossEntropyLoss(), 100.0)


def test_a_rank_that_dies_is_noticed_and_all_can_begin_again(scene: Scene) -> None:
    checkpoint = scene.folder.parent / "step-000002"
    for step in range(2):
        scene.trainer.step(units(step), CrossEntropyLoss(), 100.0)
    scene.trainer.save(checkpoint, TOKENIZER, {"state": 7})
    scene.trainer.wait_for_saves()
    row = scene.trainer.step(units(2), CrossEntropyLoss(), 100.0)
    moment = random.Random(3)
    victim = scene.ranks._actors[moment.randrange(2)]
    process = scene.ray.get(victim.get_process_id.remote())
    threading.Timer(moment.uniform(0, 0.5), os.kill, (process, signal.SIGKILL)).start()
    with pytest.raises(TrainersLostError):
        train_on(scene.trainer)
    scene.trainer = scene.begin()
    assert scene.trainer.load(checkpoint) == {"state": 7}
    assert scene.trainer.done == 2
    again = scene.trainer.step(units(2), CrossEntropyLoss(), 100.0)
    assert again["loss"] == pytest.approx(row["loss"], abs=1e-6)


@pytest.mark.slow
def test_a_rank_that_hangs_is_ended(
    ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fieldcraft.extensions.cluster.ranks.HEALTH_CHECK_SECONDS", 0.5)
    with open_cluster(ClusterConfig(trainers=2), "cpu", tmp_path) as session:
        scene = Scene(RayTrainerGroup(session), ray, tmp_path)
        impatient = replace(
            session, settings=ClusterConfig(trainers=2, heartbeat_timeout_seconds=2.0)
        )
        monkeypatch.setattr(scene.ranks, "session", impatient)
        scene.trainer.step(units(0), CrossEntropyLoss(), 100.0)
        process = (
            scene.ranks._actors[1].get_process_id.options(concurrency_group=HEALTH_GROUP).remote()
        )
        os.kill(ray.get(process), signal.SIGSTOP)
        with pytest.raises(TrainersLostError, match="no heartbeat for 2 s"):
            train_on(scene.trainer)
        asyncio.run(scene.ranks.close())


def test_what_ranks_refuse_is_a_sentence(scene: Scene, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a checkpoint"):
        ShardedTrainer(scene.ranks, PolicySpec(folder=tmp_path / "x", optim=OPTIM, steps=9))
    scene.trainer.step(units(0), CrossEntropyLoss(), 100.0)  # the ranks still work
