"""Model in training, an engine on it, and fake vLLM servers; for tests."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from engine_parity import TOKENIZER, sharp_model
from fieldcraft.engine.resources import RunResources
from fieldcraft.extensions.vllm.engine import VllmEngine
from fieldcraft.tools.serving import serve_in_thread
from vllm_protocol import Fake


def fake_python(folder: Path) -> Path:
    """Write an imitation of the Python of an environment with vLLM."""
    path = folder / "vllm-python"
    path.write_text("#!/bin/sh\necho 0.33.0\n")
    path.chmod(0o755)
    return path


class VllmRig:
    """Model in training, and an engine over fake servers with older weights."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.stack = stack
        self.model = sharp_model(folder / "model", "qwen3")
        self.messages: list[Any] = []
        self.resources = RunResources(folder / "engine", self.messages.append)

    def fake(self, **how: Any) -> Fake:
        model = sharp_model(self.folder / "model", "qwen3")
        for parameter in model.parameters():
            parameter.data.mul_(0.5)
        return Fake(model, **how)

    def engine(self, *fakes: Fake, **settings: Any) -> VllmEngine:
        urls = tuple(self.stack.enter_context(serve_in_thread(fake.app)) for fake in fakes)
        return VllmEngine(
            self.model, TOKENIZER, resources=self.resources, max_num_seqs=8, urls=urls, **settings
        )

    def run(self, work: Callable[[], Awaitable[Any]]) -> Any:
        async def run_and_close() -> Any:
            try:
                async with asyncio.timeout(300):  # a bug must not hang the test
                    return await work()
            finally:
                await self.resources.close()

        return asyncio.run(run_and_close())


def model_of(tied: bool) -> Any:
    """Return a model with heads of 32, the smallest size that vLLM supports on a CPU."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "qwen3",
        vocab_size=400,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=tied,
        eos_token_id=2,
        pad_token_id=0,
    )
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(8)
    return model
