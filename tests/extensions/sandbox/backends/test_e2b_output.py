"""Output of a machine of E2B that nobody reads, as between two calls of a session."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from fieldcraft.extensions.sandbox.backends.base import MachineError

pytest.importorskip("e2b", reason="needs the extra e2b")
from fieldcraft.extensions.sandbox.backends import e2b_machines


async def open_machine() -> tuple[e2b_machines.E2bMachine, Callable[[str], None]]:
    """Return a machine whose command never ends, and the function that receives its output."""
    listeners = list[Callable[[str], None]]()

    async def run_command(*_: Any, on_stdout: Callable[[str], None], **__: Any) -> Any:
        listeners.append(on_stdout)
        return SimpleNamespace(wait=asyncio.Event().wait)

    async def create() -> Any:
        return SimpleNamespace(commands=SimpleNamespace(run=run_command))

    machine = e2b_machines.E2bMachine(asyncio.create_task(create()))
    await machine.start(["true"])
    return machine, listeners[0]


def test_output_beyond_a_limit_ends_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(e2b_machines, "MAX_LINE_BYTES", 8)

    async def story() -> None:
        machine, add_output = await open_machine()
        for _ in range(1000):
            add_output("äää")  # 6 bytes
        assert machine._output.qsize() == 2  # 6 bytes are below the limit, and 12 above it
        with pytest.raises(MachineError, match="too much output"):
            await machine.receive()

    asyncio.run(story())


def test_output_that_is_read_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(e2b_machines, "MAX_LINE_BYTES", 8)

    async def story() -> None:
        machine, add_output = await open_machine()
        for _ in range(1000):
            add_output("abc")
            assert await machine.receive() == b"abc"
            receiving = asyncio.create_task(machine.receive())
            await asyncio.sleep(0)
            add_output("äää")
            assert (await receiving).decode() == "äää"

    asyncio.run(story())
