"""Terminals of a container engine that is a script: what is asked of it when something fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from sandbox_parts import cancel_while_starting

from fieldcraft.extensions.sandbox.terminals.base import TerminalError, TerminalImage
from fieldcraft.extensions.sandbox.terminals.containers import (
    ContainerTerminal,
    ContainerTerminals,
)

Calls = Callable[[], list[str]]
ENGINE = """#!/bin/sh
echo "$*" >> {folder}/calls
case "$*" in
    *"kill -9 -1") exit 0 ;;
    exec*) exec sleep 3600 ;;
    "image inspect"*) [ -e {folder}/built ] ;;
    build*)
        [ -e {folder}/available ] || {{ echo "no registry"; exit 1; }}
        touch {folder}/built ;;
    run*) echo ready; exec cat ;;
esac
"""


@pytest.fixture
def read_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Install a script as docker, and return a function that reads its calls."""
    program, calls = tmp_path / "docker", tmp_path / "calls"
    calls.touch()
    program.write_text(ENGINE.format(folder=tmp_path))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return lambda: calls.read_text().splitlines()


def test_a_command_whose_start_is_cancelled_is_ended(
    read_calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = ContainerTerminal("docker", "name", {}).run(("sleep", "1000"), 600)
    process = asyncio.run(cancel_while_starting(work, monkeypatch, lambda: read_calls() != []))
    assert process.returncode == -9
    assert read_calls() == [
        "exec --interactive name sleep 1000",
        "exec name sh -c kill -9 -1",
    ]


def test_a_build_that_failed_is_tried_again_by_the_next_terminal(
    read_calls: Calls, tmp_path: Path
) -> None:
    folder = tmp_path / "environment"
    folder.mkdir()
    (folder / "Dockerfile").write_text("FROM scratch\n")
    backend, image = ContainerTerminals("docker"), TerminalImage(name="a task", folder=folder)

    async def open_terminal() -> None:
        async with backend.open_terminal(image):
            pass

    async def story() -> None:
        together = await asyncio.gather(open_terminal(), open_terminal(), return_exceptions=True)
        assert [str(error) for error in together] == [
            "The image of a task cannot be built (no registry)."
        ] * 2
        with pytest.raises(TerminalError, match="no registry"):
            await open_terminal()
        (tmp_path / "available").touch()
        for _ in range(2):
            await open_terminal()

    asyncio.run(story())
    # Terminals that are opened together wait for one build, and a successful one is kept.
    assert sum(call.startswith("build ") for call in read_calls()) == 3
    assert sum(call.startswith("run ") for call in read_calls()) == 2
