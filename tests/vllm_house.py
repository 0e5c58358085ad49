"""A model in training, an engine on it, and fake servers of vLLM; for tests."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from engine_parity import TOKENIZER, sharp_model
from fieldcraft.engine.home import Home
from fieldcraft.engine.vllm.engine import VllmEngine
from fieldcraft.tools.serving import serving
from vllm_protocol import Fake


def fake_python(folder: Path) -> Path:
    """What looks like the Python of an environment that has vLLM."""
    path = folder / "vllm-python"
    path.write_text("#!/bin/sh\necho 0.33.0\n")
    path.chmod(0o755)
    return path


class House:
    """A model in training, and an engine over some fake servers with older weights."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.stack = stack
        self.model = sharp_model(folder / "model", "qwen3")
        self.said: list[Any] = []
        self.home = Home(folder / "engine", self.said.append)

    def fake(self, **how: Any) -> Fake:
        model = sharp_model(self.folder / "model", "qwen3")
        for parameter in model.parameters():
            parameter.data.mul_(0.5)
        return Fake(model, **how)

    def engine(self, *fakes: Fake, **settings: Any) -> VllmEngine:
        urls = tuple(self.stack.enter_context(serving(fake.app)) for fake in fakes)
        return VllmEngine(self.model, TOKENIZER, home=self.home, max_rows=8, urls=urls, **settings)

    def run(self, work: Callable[[], Awaitable[Any]]) -> Any:
        async def whole() -> Any:
            try:
                async with asyncio.timeout(120):  # a mistake must not hang
                    return await work()
            finally:
                await self.home.close()

        return asyncio.run(whole())
