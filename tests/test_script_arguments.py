"""Scripts state their arguments, and reject others before they do anything."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LONG = {"architecture_table"}  # imports every architecture of transformers
SCRIPTS = [
    pytest.param(script, marks=[pytest.mark.long] * (script.stem in LONG), id=script.stem)
    for script in sorted((ROOT / "scripts").glob("*.py"))
]


def run(script: Path, argument: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, script, argument],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )


@pytest.mark.long
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_has_help(script: Path, tmp_path: Path) -> None:
    done = run(script, "--help", tmp_path)
    assert (done.returncode, done.stdout.startswith("usage: ")) == (0, True), done.stderr
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("script", SCRIPTS)
def test_an_unknown_option_ends_with_the_usage(script: Path, tmp_path: Path) -> None:
    done = run(script, "--nothing", tmp_path)
    assert (done.returncode, done.stderr.startswith("usage: ")) == (2, True), done.stderr
    assert not [*tmp_path.iterdir()]
