"""A run from scratch to a report, in which a model must have learned to use its tool."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.long
def test_the_smoke_recipe_raises_exact_match(tmp_path: Path) -> None:
    out = tmp_path / "run"
    subprocess.run(
        [sys.executable, "-m", "fieldcraft", "run", "smoke", "device=cpu", "--out", str(out)],
        check=True,
        capture_output=True,
    )
    report = json.loads((out / "report.json").read_text("utf-8"))
    evals = report["evals"]
    assert evals["base"]["calls_mean"] == 0
    assert evals["base"]["em"] < 0.3
    assert evals["sft2"]["em"] > evals["base"]["em"] + 0.3
    assert evals["rl2"]["em"] > evals["base"]["em"] + 0.3
    assert evals["rl2"]["calls_mean"] > 0.5
    assert (out / "report.html").stat().st_size < 2_000_000
