"""Small tasks in the format of Harbor, and rollouts of a script in them."""

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

CONFIG = """\
version = "1.0"

[metadata]
difficulty = "easy"

[agent]
timeout_sec = 300.0

[verifier]
timeout_sec = 300.0
"""
DOCKERFILE = "FROM ubuntu:24.04\nENV GREETING=hello\nWORKDIR /app\nCOPY words.txt .\n"
TEST_SCRIPT = """\
#!/bin/bash
if [ "$(cat /app/word.txt)" = "$(cat /tests/expected)" ]; then
    echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
"""


def write_task(folder: Path, word: str = "bird", **files: str) -> Path:
    """Write a task that wants a word in a file; `files` replace its files, by their names without
    folders and endings."""
    texts = {
        "task.toml": files.get("task", CONFIG),
        "instruction.md": files.get("instruction", f"Write {word} into word.txt.\n"),
        "environment/Dockerfile": files.get("Dockerfile", DOCKERFILE),
        "environment/words.txt": "bird\nstone\n",
        "tests/test.sh": files.get("test", TEST_SCRIPT),
        "tests/expected": word + "\n",
    }
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


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
