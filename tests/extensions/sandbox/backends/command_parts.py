"""Commands for every backend, and the service that they call."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from backend_parts import LIMITS, SETTINGS

from fieldcraft.extensions.external_envs.guarded_commands import GuardedCommands
from fieldcraft.extensions.sandbox.backends.base import (
    CommandBackend,
    CommandOutcome,
    CommandRequest,
)
from fieldcraft.extensions.sandbox.backends.factory import open_backend
from fieldcraft.extensions.sandbox.limits import MachineLimits
from fieldcraft.types import UserError

COMMAND_BACKENDS = ["local", pytest.param("container", marks=pytest.mark.long), "e2b"]
NO_SERVICE = "http://127.0.0.1:9/rollout/v1"
SERVICE_VARIABLE = "SERVICE"


def open_commands(name: str, request: pytest.FixtureRequest) -> CommandBackend:
    """Open a backend. The test is skipped if this machine does not have it."""
    if name != "local":
        opened = open_backend(name, SETTINGS[name](request), LIMITS, None, "this test")
        assert isinstance(opened, CommandBackend)
        return opened
    try:
        return GuardedCommands([], None)
    except UserError as error:
        pytest.skip(f"this system cannot guard commands: {error}")


def make_request(line: str, **changes: Any) -> CommandRequest:
    found: dict[str, Any] = {
        "line": line,
        "stdin": b"in",
        "task": b"{}",
        "service_url": NO_SERVICE,
        "make_variables": lambda url: {SERVICE_VARIABLE: url},
        "results": ("answer.txt", "reward.txt"),
        "limits": MachineLimits(memory_mb=256, processes=64, disk_mb=16),
        "seconds": 600.0,
    }
    return CommandRequest(**{**found, **changes})


def run_commands(
    backend: CommandBackend, *requests: CommandRequest
) -> list[CommandOutcome | BaseException]:
    """Run commands at the same time, and return their results or errors."""

    async def run_all() -> list[CommandOutcome | BaseException]:
        jobs = (backend.run_command(request) for request in requests)
        return await asyncio.gather(*jobs, return_exceptions=True)

    return asyncio.run(run_all())
