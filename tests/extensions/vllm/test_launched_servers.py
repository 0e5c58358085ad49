"""Servers that a launcher starts for a run: their weights, restarts, and lost machines."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from engine_parity import PROMPT, TOKENIZER, plain_logprobs
from fieldcraft.extensions.vllm.engine import VllmEngine
from fieldcraft.extensions.vllm.process import NodeLostError
from fieldcraft.extensions.vllm.servers import MAX_CONSECUTIVE_FAILURES, LaunchedServerPool
from fieldcraft.sampling import Completion, SamplingParams
from fieldcraft.tools.serving import serve_in_thread
from fieldcraft.types import UserError
from vllm_protocol import Fake
from vllm_rig import VllmRig
from waiting import wait_until_async

GREEDY = SamplingParams(6, 0.0)


class FakeLauncher:
    """Launcher of fake servers in this process, which have the attributes `faults`."""

    def __init__(self, rig: VllmRig, num_servers: int = 1, **faults: Any) -> None:
        self.rig = rig
        self.num_servers = num_servers
        self.exchange_folder = rig.resources.folder
        self.faults = faults
        self.lost: set[int] = set()  # indices of servers whose machine has failed
        self.started: list[tuple[int, Fake]] = []
        self.blocked: set[int] = set()  # indices of servers whose start does not end yet
        self.refused: set[int] = set()  # indices of servers whose start fails
        self.log: list[str] = []  # beginnings and ends of starts, and the end of the launcher

    async def require_usable(self, index: int) -> None:
        if index in self.lost:
            raise NodeLostError

    async def start(
        self, index: int, options: Sequence[str], variables: Mapping[str, str]
    ) -> tuple[str, Path]:
        self.log.append(f"{index} begins")
        try:
            await wait_until_async(lambda: index not in self.blocked)
            if index in self.refused:
                raise UserError(f"server {index} has no memory.")
        finally:
            self.log.append(f"{index} ends")
        folder = options[options.index("--model") + 1]
        fake = Fake(AutoModelForCausalLM.from_pretrained(folder).eval(), **self.faults)
        self.started.append((index, fake))
        return self.rig.stack.enter_context(serve_in_thread(fake.app)), Path("log")

    async def is_running(self, index: int) -> bool:
        return True

    async def describe_exit(self, index: int) -> str:
        return f"server {index} has exited"

    async def close(self) -> None:
        self.log.append("closed")


def launched(rig: VllmRig, launcher: FakeLauncher) -> VllmEngine:
    return VllmEngine(
        rig.model,
        TOKENIZER,
        resources=rig.resources,
        max_num_seqs=8,
        python=Path("python"),
        pool_factory=lambda python, exchange, settings, resources: LaunchedServerPool(
            launcher, settings, resources
        ),
    )


async def many(engine: VllmEngine) -> list[Completion]:
    return await asyncio.gather(*(engine.generate(PROMPT, GREEDY, f"s{i}") for i in range(8)))


async def give_up(engine: VllmEngine, launcher: FakeLauncher) -> None:
    """Cancel a call, as a time limit does, while it waits for the start of the first server."""
    launcher.blocked = {0}
    call = asyncio.create_task(engine.generate(PROMPT, GREEDY, "brief"))
    await wait_until_async(lambda: "0 begins" in launcher.log)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


def test_a_server_starts_with_the_weights_and_is_reused(rig: VllmRig) -> None:
    launcher = FakeLauncher(rig)
    engine = launched(rig, launcher)

    async def work() -> Completion:
        await engine.generate(PROMPT, GREEDY, "a")
        for parameter in rig.model.parameters():
            parameter.data.mul_(0.9)
        await engine.update_weights(1)
        return await engine.generate(PROMPT, GREEDY, "a")

    done = rig.run(work)
    assert done.ids == plain_logprobs(rig.model, PROMPT, done.ids, 0.0).argmax(1).tolist()
    [(_, fake)] = launcher.started
    assert len(fake.loads) == 1  # the first weights are those that it starts with


def test_a_server_that_never_responds_is_given_up(rig: VllmRig) -> None:
    launcher = FakeLauncher(rig, dies_after=1)  # after the probe
    engine = launched(rig, launcher)
    with pytest.raises(UserError, match=r"server 0 has exited\."):
        rig.run(lambda: engine.generate(PROMPT, GREEDY, "a"))
    assert len(launcher.started) == MAX_CONSECUTIVE_FAILURES


def test_a_server_that_responds_in_between_is_restarted_any_number_of_times(rig: VllmRig) -> None:
    launcher = FakeLauncher(rig, dies_after=2)
    engine = launched(rig, launcher)

    async def work() -> None:
        for number in range(2 * MAX_CONSECUTIVE_FAILURES):
            await engine.generate(PROMPT, GREEDY, str(number))

    rig.run(work)
    assert len(launcher.started) == 2 * MAX_CONSECUTIVE_FAILURES


def test_a_machine_that_fails_is_tried_again_with_the_next_weights(rig: VllmRig) -> None:
    launcher = FakeLauncher(rig, 2)
    launcher.lost = {1}
    engine = launched(rig, launcher)

    async def work() -> None:
        first = await many(engine)
        assert [index for index, _ in launcher.started] == [0]
        launcher.lost = set()
        await engine.update_weights(1)
        assert [one.ids for one in await many(engine)] == [one.ids for one in first]

    rig.run(work)
    assert [index for index, _ in launcher.started] == [0, 1]
    assert all(fake.requests for _, fake in launcher.started)


def test_a_start_outlives_the_calls_that_give_up(rig: VllmRig) -> None:
    launcher = FakeLauncher(rig)
    engine = launched(rig, launcher)

    async def work() -> Completion:
        for _ in range(MAX_CONSECUTIVE_FAILURES + 1):
            await give_up(engine, launcher)
        call = asyncio.create_task(engine.generate(PROMPT, GREEDY, "patient"))
        await asyncio.sleep(0)
        launcher.blocked = set()
        return await call

    assert len(rig.run(work).ids) == 6
    assert launcher.log == ["0 begins", "0 ends", "closed"]


def test_the_error_of_a_start_is_raised_even_if_no_call_waits_for_it(rig: VllmRig) -> None:
    launcher = FakeLauncher(rig)
    engine = launched(rig, launcher)

    async def work() -> None:
        await give_up(engine, launcher)
        launcher.refused, launcher.blocked = {0}, set()
        start = engine._pool._sync_task
        assert start is not None
        await wait_until_async(start.done)
        with pytest.raises(UserError, match=r"^server 0 has no memory\.$"):
            await engine.generate(PROMPT, GREEDY, "next")
        assert launcher.log == ["0 begins", "0 ends"]
        launcher.refused = set()
        await engine.generate(PROMPT, GREEDY, "last")

    rig.run(work)


def test_a_start_that_fails_ends_the_others_before_its_error_is_raised(rig: VllmRig) -> None:
    launcher = FakeLauncher(rig, 3)
    launcher.refused, launcher.blocked = {1}, {0, 1, 2}
    engine = launched(rig, launcher)

    async def work() -> None:
        call = asyncio.create_task(engine.generate(PROMPT, GREEDY, "a"))
        await wait_until_async(lambda: len(launcher.log) == 3)
        launcher.blocked = {0, 2}
        with pytest.raises(UserError, match=r"^server 1 has no memory\.$"):
            await call
        assert sorted(launcher.log[3:]) == ["0 ends", "1 ends", "2 ends"]

    rig.run(work)


def test_a_start_in_progress_ends_before_its_launcher_is_closed(rig: VllmRig) -> None:
    launcher = FakeLauncher(rig)
    engine = launched(rig, launcher)
    rig.run(lambda: give_up(engine, launcher))
    assert launcher.log == ["0 begins", "0 ends", "closed"]


def test_a_start_ends_with_its_event_loop_and_begins_again_in_the_next(rig: VllmRig) -> None:
    launcher = FakeLauncher(rig)
    engine = launched(rig, launcher)
    asyncio.run(give_up(engine, launcher))
    assert launcher.log == ["0 begins", "0 ends"]
    launcher.blocked = set()
    assert len(rig.run(lambda: engine.generate(PROMPT, GREEDY, "a")).ids) == 6
    assert launcher.log == ["0 begins", "0 ends"] * 2 + ["closed"]
