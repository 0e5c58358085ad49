"""The demo, sampled by vLLM; about half an hour on two cores."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PYTHON = os.environ.get("FIELDCRAFT_VLLM_PYTHON", "")
LOCAL = {
    "sft2": (0.88, 0.96),
    "rl2": (0.94, 1.0),
}  # with the local engine, over seeds, and a tolerance
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON, reason="FIELDCRAFT_VLLM_PYTHON names no Python with vLLM"),
]


def test_it_ends_where_the_local_engine_does(tmp_path: Path) -> None:
    recipe = ["autocoa-mini", "engine=vllm", f"engine.python={PYTHON}"]
    out = tmp_path / "run"
    subprocess.run(
        [sys.executable, "-m", "fieldcraft", "run", *recipe, "--out", str(out)], check=True
    )
    check(out)


def check(run: Path) -> None:
    evals = json.loads((run / "report.json").read_text())["evals"]
    for stage, (least, most) in LOCAL.items():
        assert least <= evals[stage]["em"] <= most
    for stage in ("rl1", "rl2"):
        rows = (run / stage / "metrics.jsonl").read_text().splitlines()
        gaps = [json.loads(row).get("sampler_logp_diff", 0.0) for row in rows]
        assert 0 < max(gaps) < 1e-5
