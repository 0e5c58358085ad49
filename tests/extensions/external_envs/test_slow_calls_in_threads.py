"""Calls that read or write many files run in threads, so that other rollouts go on meanwhile."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fieldcraft.extensions.external_envs import guarded_commands
from fieldcraft.extensions.external_envs.guarded_commands import ANYWHERE, GuardedCommands
from fieldcraft.extensions.external_envs.programs import run_program
from fieldcraft.extensions.mcp.connection import McpAddress, McpConnection, McpServerLostError
from fieldcraft.extensions.sandbox.backends.base import CommandRequest
from fieldcraft.extensions.sandbox.command_folder import CommandFolder
from fieldcraft.extensions.sandbox.limits import MachineLimits
from fieldcraft.tools.descendants import ProcessDescendants
from waiting import wait_until_async


def note_threads(patch: pytest.MonkeyPatch, owner: type, name: str) -> list[bool]:
    """Return a list that tells of each call of a method whether it is in the main thread."""
    method: Callable[..., Any] = getattr(owner, name)
    noted = list[bool]()

    def note(*arguments: Any) -> Any:
        noted.append(threading.current_thread() is threading.main_thread())
        return method(*arguments)

    patch.setattr(owner, name, note)
    return noted


def test_a_program_is_searched_for_once_when_it_has_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    noted = note_threads(monkeypatch, ProcessDescendants, "kill")
    assert asyncio.run(run_program(["echo", "a"], b"", {}, tmp_path)) == (0, b"a\n", b"")
    assert noted == [False]


def test_a_server_of_tools_is_searched_for_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mcp")
    noted = note_threads(monkeypatch, ProcessDescendants, "kill")
    with pytest.raises(McpServerLostError):
        asyncio.run(McpConnection(McpAddress("false")).list_tools(600))
    assert noted == [False]


def test_files_of_a_command_are_written_in_a_thread(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A command that is cancelled meanwhile leaves no file."""
    begun, allowed = threading.Event(), threading.Event()
    create = CommandFolder.create

    def create_slowly(folder: CommandFolder, *arguments: Any) -> None:
        assert threading.current_thread() is not threading.main_thread()
        begun.set()
        allowed.wait()
        create(folder, *arguments)

    monkeypatch.setattr(CommandFolder, "create", create_slowly)
    monkeypatch.setattr(guarded_commands.tempfile, "tempdir", str(tmp_path))
    request = CommandRequest(
        line="true",
        stdin=b"",
        task=b"{}",
        files={"a.txt": (b"a", 0o644)},
        service_url="http://127.0.0.1:9/v1",
        make_variables=lambda url: {},
        results=(),
        limits=MachineLimits(),
        seconds=600.0,
    )

    async def story() -> None:
        running = asyncio.create_task(GuardedCommands([ANYWHERE], None).run_command(request))
        await wait_until_async(lambda: begun.is_set() or running.done())
        running.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(list(tmp_path.iterdir())) == 1
        allowed.set()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(story())
    assert list(tmp_path.iterdir()) == []
