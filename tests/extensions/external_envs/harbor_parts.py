"""Rollouts of a script in tasks of Harbor."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from blackbox_parts import TOKENIZER, InOrder

from fieldcraft.config.sections import BudgetConfig
from fieldcraft.dialects import make_dialect
from fieldcraft.environments.base import isolate_failures
from fieldcraft.environments.turns import Policy
from fieldcraft.extensions.external_envs.harbor import HarborEnvironment
from fieldcraft.extensions.sandbox.terminals.base import TerminalImage
from fieldcraft.extensions.sandbox.terminals.local import LocalTerminals
from fieldcraft.types import Task, Trajectory, UserError


def call(command: str) -> str:
    """Return a turn that calls the tool."""
    written = {"name": "bash", "arguments": {"command": command}}
    return f"<tool_call>\n{json.dumps(written)}\n</tool_call>"


def run_rollouts(
    environment: HarborEnvironment, scripts: Sequence[tuple[str, Sequence[str]]], **budget: Any
) -> list[Trajectory]:
    """Run a rollout of each (task, turns), all at the same time."""
    limits = BudgetConfig.model_validate({"max_context_tokens": 4000, **budget})
    tasks = {task.id: task for group in environment.tasks(0) for task in group}

    async def run() -> list[Trajectory]:
        dialect = make_dialect("hermes", TOKENIZER)
        async with isolate_failures(environment, dialect, limits) as go:
            engines = [InOrder(turns, TOKENIZER) for _, turns in scripts]
            jobs = [
                go.run(tasks.get(name, Task(name, "?", ())), Policy(engine=engine), name)
                for (name, _), engine in zip(scripts, engines, strict=True)
            ]
            done = await asyncio.gather(*jobs)
        assert all(engine.sessions == set() for engine in engines)
        return done

    return asyncio.run(run())


def skip_without_terminals(folder: Path) -> None:
    """Skip the test where our own sandbox opens no terminals."""
    (folder / "Dockerfile").write_text("FROM scratch\n")

    async def open_once() -> None:
        async with LocalTerminals().open_terminal(TerminalImage(name="first", folder=folder)):
            pass

    try:
        asyncio.run(open_once())
    except UserError as error:
        pytest.skip(f"this system isolates no terminal: {error}")
