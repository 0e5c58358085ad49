"""Whole runs with trainers and servers of the real vLLM. A CPU is enough.

FIELDCRAFT_VLLM_PYTHON names the interpreter of an environment that has vLLM.
"""

import json
import os
import random
import signal
from pathlib import Path

import pytest

from cluster_runs import RECIPE, STEPS, Running, rows, title

PYTHON = os.environ.get("FIELDCRAFT_VLLM_PYTHON", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON, reason="FIELDCRAFT_VLLM_PYTHON names no Python with vLLM"),
]
# The width gives heads of 32, the smallest size that vLLM supports on a CPU.
MANY = ("cluster={trainers: 2, engines: 2}", "engine=vllm", "tiny_model.width=64")


def start(tmp_path: Path) -> Running:
    pytest.importorskip("ray")
    recipe = tmp_path / "tiny.yaml"
    recipe.write_text(RECIPE)
    return Running(recipe, tmp_path / "run", *MANY, f"engine.python={PYTHON}")


def servers() -> list[int]:
    """Return the process ids of the vLLM servers on this machine."""
    found = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return [pid for pid in found if "fieldcraft_server.py" in title(pid)]


def check_steps(run: Running) -> None:
    """Check that each step was done once, with weights that all servers had."""
    for stage, steps in STEPS.items():
        assert [row["step"] for row in rows(run.out, stage)] == [*range(steps)]
    for row in rows(run.out, "rl"):
        assert row["sampler_logp_diff"] < 1e-5
        assert row["publish_seconds"] > 0
    report = json.loads((run.out / "report.json").read_text())
    assert {"base", "rl"} & report["evals"].keys()


def test_weights_travel_from_ranks_to_servers(tmp_path: Path) -> None:
    run = start(tmp_path)
    assert run.end() == 0, run.text
    check_steps(run)
    model = run.out / "rl" / "model"
    size = (model / "model.safetensors").stat().st_size
    sent = rows(run.out, "rl")[-1]["publish_bytes"]
    assert abs(sent - size) < 0.1 * size  # the file also has a header


def test_a_server_may_be_killed(tmp_path: Path) -> None:
    before = set(servers())
    run = start(tmp_path)
    run.until_step("rl", 2)
    mine = [pid for pid in servers() if pid not in before]
    os.kill(random.Random(0).choice(mine), signal.SIGKILL)
    assert run.end() == 0, run.text
    check_steps(run)
    assert "its requests are retried" in " ".join(run.output.read_text().split())
