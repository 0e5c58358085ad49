"""The package without `extensions/` trains a model with a user's tool in the dialect hermes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from yaml import safe_dump

from checkpoints import write_tiny_checkpoint

PACKAGE = Path(__file__).parents[1] / "src" / "fieldcraft"
TOOLS = '''
import fieldcraft as fc

@fc.tool
def population(city: str) -> str:
    """How many people live in a city.

    Args:
        city: its name.
    """
    return f"7 live in {city}."
'''
CITIES = ("Turin", "Rome", "Oslo", "Bern", "Lima", "Nice")


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    """Provide a folder with a package without extensions, a model, tasks and a recipe."""
    ignored = shutil.ignore_patterns("extensions", "__pycache__")
    shutil.copytree(PACKAGE, tmp_path / "site" / "fieldcraft", ignore=ignored)
    write_tiny_checkpoint(tmp_path / "model", "llama")
    (tmp_path / "own_tools.py").write_text(TOOLS)
    tasks = [{"id": c, "question": f"How many live in {c}?", "answer": "7"} for c in CITIES]
    (tmp_path / "tasks.jsonl").write_text("\n".join(map(json.dumps, tasks)))
    rl = {"type": "rl", "steps": 2, "questions_per_step": 2, "group_size": 2, "optim": {"lr": 1e-3}}
    recipe = {
        "name": "alone",
        "device": "cpu",
        "model": "model",
        "tasks": "tasks.jsonl",
        "dialect": "hermes",
        "tools": ["own_tools:population"],
        "budget": {"max_calls": 2, "max_turn_tokens": 8, "max_context_tokens": 800},
        "stages": {"rl": rl | {"rewards": {"em": 1.0}}},
        "evaluation": {"splits": {"heldout": 2}, "workflows": []},
    }
    (tmp_path / "recipe.yaml").write_text(safe_dump(recipe))
    return tmp_path


def fieldcraft(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fieldcraft", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder / "site"), "COLUMNS": "200"},
        capture_output=True,
        text=True,
    )


@pytest.mark.long
def test_it_trains_with_a_tool(alone: Path) -> None:
    checked = fieldcraft(alone, "check", "recipe.yaml")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    done = fieldcraft(alone, "run", "recipe.yaml", "--out", "run")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((alone / "run" / "report.json").read_text())
    assert list(report["evals"]) == ["base", "rl"]
    asked = fieldcraft(alone, "ask", "--model", "run", "How many live in Rome?")
    assert asked.returncode == 0, asked.stdout + asked.stderr


@pytest.mark.long
def test_a_part_of_an_extension_is_refused_by_its_name(alone: Path) -> None:
    for change in ("dialect=autocoa", "tools=[search]", "tools=[python]"):
        done = fieldcraft(alone, "check", "recipe.yaml", change)
        assert done.returncode == 2, done.stdout + done.stderr
        assert "fieldcraft.extensions" in done.stdout + done.stderr
        assert "Traceback" not in done.stderr
