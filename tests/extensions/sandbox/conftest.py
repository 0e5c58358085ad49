"""A sandbox shared by the tests of a session, used from changing event loops."""

import asyncio
import sys
from collections.abc import Iterator

import pytest
from sandbox_parts import QUICK

import older_kernel
from fieldcraft.extensions.sandbox.layers import CONTAINED_BY, LAYERS
from fieldcraft.extensions.sandbox.limits import ProgramResult
from fieldcraft.extensions.sandbox.sandbox import Sandbox
from fieldcraft.types import UserError

# Modules that run in the sandbox of each kernel, and layers that each kernel has.
ON_EVERY_KERNEL = ("test_escapes", "test_resources")
LANDLOCK_LAYERS = {
    "landlock-5": ("landlock-files", "landlock-network"),
    "landlock-4": ("landlock-files", "landlock-network"),
    "landlock-3": ("landlock-files",),
    "landlock-2": (),
    "landlock-1": (),
    "landlock-none": (),
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.module.__name__ in ON_EVERY_KERNEL and "sandbox" in metafunc.fixturenames:
        older = [pytest.param(name, marks=pytest.mark.long) for name in LANDLOCK_LAYERS]
        values = [pytest.param(None, id="this-kernel"), *older]
        metafunc.parametrize("sandbox", values, indirect=True, scope="session")


@pytest.fixture(scope="session")
def sandbox(request, tmp_path_factory) -> Iterator[Sandbox]:
    change: str | None = getattr(request, "param", None)
    try:
        with pytest.MonkeyPatch.context() as patch:
            if change is not None:
                folder = tmp_path_factory.mktemp("kernel")
                patch.setattr(sys, "executable", older_kernel.write_interpreter(folder, change))
            instance = Sandbox(QUICK)
    except UserError as error:
        pytest.skip(f"this system has no full isolation: {error}")
    with instance:
        contained = {*instance.contained_layers}
        if change is not None:
            assert contained == CONTAINED_BY.keys() - {*LANDLOCK_LAYERS[change]}
        assert instance.layers == [layer for layer in LAYERS if layer not in contained]
        yield instance
        assert {*instance.contained_layers} == contained  # it was not started on another kernel


@pytest.fixture
def run(sandbox: Sandbox):
    """Run a program and wait for it."""

    def wait(code: str, **how) -> ProgramResult:
        return asyncio.run(sandbox.run(code, **how))

    return wait
