"""A sandbox shared by the tests of a session, used from changing event loops."""

import asyncio
from collections.abc import Iterator

import pytest
from sandbox_parts import QUICK

from fieldcraft.extensions.sandbox.layers import LAYERS
from fieldcraft.extensions.sandbox.limits import ProgramResult
from fieldcraft.extensions.sandbox.sandbox import Sandbox
from fieldcraft.types import UserError


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    try:
        instance = Sandbox(QUICK)
    except UserError as error:
        pytest.skip(f"this system has no full isolation: {error}")
    with instance:
        assert instance.layers == list(LAYERS)
        yield instance


@pytest.fixture
def run(sandbox: Sandbox):
    """Run a program and wait for it."""

    def wait(code: str, **how) -> ProgramResult:
        return asyncio.run(sandbox.run(code, **how))

    return wait
