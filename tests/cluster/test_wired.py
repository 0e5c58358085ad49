"""Weights that trainers send to servers of vLLM: fake servers, the rest is real, over gloo."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from engine_parity import PROMPT, TOKENIZER
from fieldcraft.cluster.outbox import Outbox
from fieldcraft.cluster.parcels import Keeper
from fieldcraft.cluster.wired import Wired
from fieldcraft.engine.home import Home
from fieldcraft.engine.local.engine import LocalEngine
from fieldcraft.engine.vllm.client import Server
from fieldcraft.engine.vllm.engine import VllmEngine
from fieldcraft.engine.vllm.servers import Serving
from fieldcraft.engine.vllm.weights import Proof, Weights, merged_state, prove
from fieldcraft.engine.vllm.worker.fieldcraft_wire import Form
from fieldcraft.sampling import Sampling
from fieldcraft.tools.serving import serving
from fieldcraft.types import UserError
from vllm_house import House

CPU = torch.device("cpu")


class Trainer(Keeper):
    """What the first rank does, in this process."""

    process = "rank 0"

    def __init__(self, model: Any) -> None:
        self.model = model
        self.outbox = Outbox("127.0.0.1", CPU)

    def write(self, folder: Path) -> Proof:
        raise AssertionError("nothing is written unless a server starts")

    def keep(
        self, label: str, dtype: torch.dtype, others: Sequence[str]
    ) -> tuple[list[Form], Proof]:
        state = merged_state(self.model)
        return self.outbox.keep(label, self.model, state, dtype, others), prove(self.model)

    def open(self, size: int) -> tuple[str, int]:
        return self.outbox.open(size)

    def send(self, label: str) -> str:
        return self.outbox.send(label)

    def write_kept(self, label: str, folder: Path) -> None:
        raise AssertionError("nothing is written unless a server starts")


class Running(Wired):
    """Servers that run already."""

    def __init__(self, urls: Sequence[str], settings: Serving, home: Home) -> None:
        super().__init__(settings, home, 1)
        self.all = [Server(url, 60.0) for url in urls]

    async def check(self, config: Mapping[str, Any]) -> None: ...

    @property
    def place(self) -> Path:
        return self.home.folder

    async def _reach(self, weights: Weights, config: Mapping[str, Any]) -> Sequence[Server]:
        if not self._live:
            for server in self.all:
                await server.check(config)
            self._live = list(self.all)
        return list(self._live)


class Scene:
    """A model in training, and an engine over fake servers with other weights."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.house = House(folder, stack)
        self.fakes = [self.house.fake() for _ in range(2)]
        urls = [stack.enter_context(serving(fake.app)) for fake in self.fakes]
        self.model = self.house.model
        self.engine = VllmEngine(
            self.model,
            TOKENIZER,
            home=self.house.home,
            max_rows=8,
            python=Path("python"),
            source=Trainer(self.model),
            elsewhere=lambda python, exchange, settings, home: Running(urls, settings, home),
        )

    def change(self) -> None:
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.mul_(0.9)

    async def sample(self) -> None:
        """On all servers, from the weights in training."""
        expected = await self.plain()
        asked = [self.engine.generate(PROMPT, Sampling(6, 0.0), f"s{i}") for i in range(8)]
        for done in await asyncio.gather(*asked):
            assert done.ids == expected
            assert {version for version, _ in done.versions} == {self.engine.version}

    async def plain(self) -> list[int]:
        here = LocalEngine(self.model, TOKENIZER, max_rows=8)
        return (await here.generate(PROMPT, Sampling(6, 0.0), "s")).ids


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(tmp_path, stack)


def test_all_servers_get_each_version_over_one_wire(scene: Scene) -> None:
    async def work() -> None:
        await scene.engine.publish(1)
        await scene.sample()
        for version in (2, 3):
            scene.change()
            await scene.engine.publish(version)
            await scene.sample()

    scene.house.run(work)
    assert [len(fake.wires) for fake in scene.fakes] == [1, 1]
    assert [fake.received for fake in scene.fakes] == [3, 3]
    assert scene.engine.published["publish_bytes"] == 4 * scene.model.num_parameters()
    assert [fake.loads for fake in scene.fakes] == [[], []]  # no files


@pytest.mark.long
def test_a_server_that_dies_meanwhile_keeps_nobody_waiting(scene: Scene) -> None:
    async def work() -> None:
        await scene.engine.publish(1)
        await scene.sample()
        scene.change()
        scene.fakes[1].leaves = True
        await scene.engine.publish(2)
        await scene.sample()

    scene.house.run(work)
    assert scene.fakes[0].received == 2
    assert len(scene.fakes[0].wires) == 2
    assert "what it was asked for is asked again" in scene.house.said[0].text


def test_other_weights_than_those_sent_stop_the_run(scene: Scene) -> None:
    async def work() -> None:
        await scene.engine.publish(1)
        await scene.sample()
        scene.change()
        scene.fakes[0].deaf = True
        with pytest.raises(UserError, match="does not sample from the weights that are trained"):
            await scene.engine.publish(2)

    scene.house.run(work)
