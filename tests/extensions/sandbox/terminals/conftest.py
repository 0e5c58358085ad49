"""Every backend of terminals that this machine has."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from sandbox_parts import find_engine
from terminal_images import build_base_image, list_containers

from fieldcraft.extensions.sandbox.terminals.base import TerminalBackend, TerminalImage
from fieldcraft.extensions.sandbox.terminals.containers import ContainerTerminals
from fieldcraft.extensions.sandbox.terminals.local import LocalTerminals
from fieldcraft.types import UserError

BACKENDS = ["local", pytest.param("container", marks=pytest.mark.long)]


@pytest.fixture(scope="session")
def base_image() -> Iterator[tuple[str, str]]:
    """A container engine, and an image that it has."""
    engine = find_engine()
    with build_base_image(engine) as image:
        yield engine, image
    assert list_containers(engine) == []


@pytest.fixture(params=BACKENDS)
def opened(request, tmp_path: Path) -> tuple[TerminalBackend, TerminalImage]:
    """A backend, and an image for it with a file, a variable and a working folder."""
    if request.param == "local":
        return request.getfixturevalue("local")
    engine, base = request.getfixturevalue("base_image")
    return ContainerTerminals(engine), write_image(tmp_path, base)


@pytest.fixture
def local(tmp_path: Path) -> tuple[TerminalBackend, TerminalImage]:
    """Our own sandbox, and an image."""
    backend, image = LocalTerminals(), write_image(tmp_path, "scratch")

    async def open_once() -> None:
        async with backend.open_terminal(image):
            pass

    try:
        asyncio.run(open_once())
    except UserError as error:
        pytest.skip(f"this system isolates no terminal: {error}")
    return backend, image


def write_image(parent: Path, base: str) -> TerminalImage:
    folder = parent / "environment"
    folder.mkdir()
    (folder / "words.txt").write_text("bird\n")
    (folder / "Dockerfile").write_text(
        f"FROM {base}\nENV GREETING=hello\nWORKDIR /app\nCOPY words.txt .\n"
    )
    return TerminalImage(name="a task", folder=folder, variables={"LEVEL": "high"}, memory_mb=256)
