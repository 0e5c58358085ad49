"""Weights that trainers send to vLLM servers over gloo. Only the servers are fake."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest
import torch

from engine_parity import PROMPT, TOKENIZER
from fieldcraft.engine.local.engine import LocalEngine
from fieldcraft.engine.resources import RunResources
from fieldcraft.engine.weights import TensorMeta, WeightSnapshot, merge_lora, run_probe
from fieldcraft.extensions.cluster.ranks import ShardedWeights
from fieldcraft.extensions.cluster.vllm_servers import BroadcastTransport
from fieldcraft.extensions.cluster.weights import WeightSender
from fieldcraft.extensions.vllm.client import VllmClient
from fieldcraft.extensions.vllm.engine import VllmEngine
from fieldcraft.extensions.vllm.process import VllmServerSettings
from fieldcraft.extensions.vllm.servers import VllmServerPool
from fieldcraft.sampling import SamplingParams
from fieldcraft.tools.serving import serve_in_thread
from fieldcraft.train.batch import SampleUnit
from fieldcraft.types import UserError
from vllm_rig import VllmRig

CPU = torch.device("cpu")


class Ranks:
    """The first rank, in this process."""

    first_actor = "rank 0"

    def __init__(self, model: Any) -> None:
        self.model = model
        self.snapshots = WeakSet[WeightSnapshot]()
        self.sender = WeightSender("127.0.0.1", CPU)

    def store_weights(self, name: str, label: str, dtype: torch.dtype) -> list[TensorMeta]:
        retained_labels = [snapshot.label for snapshot in self.snapshots]
        state = dict(merge_lora(self.model.state_dict(), self.model))
        return self.sender.store(label, self.model, state, dtype, retained_labels)

    def add_snapshot(self, snapshot: WeightSnapshot) -> None:
        self.snapshots.add(snapshot)

    def call_sender(self, method: str, *args: Any) -> Any:
        assert method != "write", "nothing is written unless a server starts"
        return getattr(self.sender, method)(*args)


class Policy:
    """The trained policy, in this process."""

    name = "policy"

    def __init__(self, model: Any) -> None:
        self.model = model

    def fill_logprobs(self, units: Sequence[SampleUnit], field: str, temperature: float) -> None:
        [(sample,)] = units
        assert (field, temperature) == ("old_logp", 1.0)
        sample.old_logp[1:] = run_probe(self.model).logprobs


def weights_of(model: Any) -> ShardedWeights:
    ranks: Any = Ranks(model)
    policy: Any = Policy(model)
    return ShardedWeights(ranks, policy, model.config)


class Running(VllmServerPool):
    """Pool of servers that are already running, and receive broadcasts."""

    def __init__(
        self, urls: Sequence[str], settings: VllmServerSettings, resources: RunResources
    ) -> None:
        super().__init__(settings, resources, BroadcastTransport(1))
        self.all = [VllmClient(url, 60.0) for url in urls]

    async def require_usable(self, config: Mapping[str, Any]) -> None: ...

    @property
    def exchange_folder(self) -> Path:
        return self.resources.folder

    async def _connect(
        self, snapshot: WeightSnapshot, config: Mapping[str, Any]
    ) -> Sequence[VllmClient]:
        if not self.live_servers:
            for server in self.all:
                await server.require_compatible(config)
            self.live_servers = list(self.all)
        return list(self.live_servers)


class Scene:
    """Model in training, and an engine over fake servers with other weights."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.rig = VllmRig(folder, stack)
        self.fakes = [self.rig.fake() for _ in range(2)]
        urls = [stack.enter_context(serve_in_thread(fake.app)) for fake in self.fakes]
        self.model = self.rig.model
        self.engine = VllmEngine(
            self.model,
            TOKENIZER,
            resources=self.rig.resources,
            max_num_seqs=8,
            python=Path("python"),
            source=weights_of(self.model),
            pool_factory=lambda python, exchange, settings, resources: Running(
                urls, settings, resources
            ),
        )

    def change(self) -> None:
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.mul_(0.9)

    async def sample(self) -> None:
        """Sample on all servers and compare with the weights in training."""
        expected = await self.plain()
        calls = [self.engine.generate(PROMPT, SamplingParams(6, 0.0), f"s{i}") for i in range(8)]
        for done in await asyncio.gather(*calls):
            assert done.ids == expected
            assert {version for version, _ in done.versions} == {self.engine.version}

    async def plain(self) -> list[int]:
        engine = LocalEngine(self.model, TOKENIZER, max_num_seqs=8)
        return (await engine.generate(PROMPT, SamplingParams(6, 0.0), "s")).ids


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(tmp_path, stack)


def test_all_servers_get_each_version_over_one_wire(scene: Scene) -> None:
    async def work() -> None:
        await scene.engine.update_weights(1)
        await scene.sample()
        for version in (2, 3):
            scene.change()
            await scene.engine.update_weights(version)
            await scene.sample()

    scene.rig.run(work)
    assert [len(fake.ports) for fake in scene.fakes] == [1, 1]
    assert [fake.received for fake in scene.fakes] == [3, 3]
    assert scene.engine.last_update_metrics["publish_bytes"] == 4 * scene.model.num_parameters()
    assert [fake.loads for fake in scene.fakes] == [[], []]  # no files


@pytest.mark.long
def test_a_server_that_dies_meanwhile_keeps_nobody_waiting(scene: Scene) -> None:
    async def work() -> None:
        await scene.engine.update_weights(1)
        await scene.sample()
        scene.change()
        scene.fakes[1].leaves = True
        await scene.engine.update_weights(2)
        await scene.sample()

    scene.rig.run(work)
    assert scene.fakes[0].received == 2
    assert len(scene.fakes[0].ports) == 2
    assert "its requests are retried" in scene.rig.messages[0].text


def test_other_weights_than_those_sent_stop_the_run(scene: Scene) -> None:
    async def work() -> None:
        await scene.engine.update_weights(1)
        await scene.sample()
        scene.change()
        scene.fakes[0].deaf = True
        with pytest.raises(UserError, match="does not sample from the trained weights"):
            await scene.engine.update_weights(2)

    scene.rig.run(work)
