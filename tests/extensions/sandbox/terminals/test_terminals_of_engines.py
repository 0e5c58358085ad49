"""Terminals of a container engine that is a script: what is asked of it when something fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from sandbox_parts import cancel_while_starting

from fieldcraft.extensions.sandbox.terminals.containers import ContainerTerminal

Calls = Callable[[], list[str]]
ENGINE = """#!/bin/sh
echo "$*" >> {folder}/calls
case "$*" in
    *"kill -9 -1") exit 0 ;;
    exec*) exec sleep 3600 ;;
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
