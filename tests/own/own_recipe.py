"""A recipe that names every component of `own_parts`, a tiny checkpoint and a few questions."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from own_parts import PEOPLE

from checkpoints import write_tiny_checkpoint
from fieldcraft.cli.main import main

OPTIM = {"lr": 1e-2}
STAGES: dict[str, Any] = {
    "sft": {
        "type": "sft",
        "dataset": "demonstrations",
        "steps": 60,
        "batch_size": 4,
        "optim": {"lr": 1e-2, "schedule": "linear"},
    },
    "reject": {"type": "own_parts:Rejection", "steps": 3, "optim": {"lr": 1e-3}},
    "rl": {
        "type": "rl",
        "algorithm": "own_parts:CAREFUL",
        "steps": 3,
        "questions_per_step": 3,
        "group_size": 3,
        "checkpoint_every": 2,
        "rewards": {
            "em": 1.0,
            "own_parts:Brief": {"weight": 0.1, "words": 3},
            "own_parts:shortest": 0.2,
        },
        "optim": {"lr": 1e-5},  # a higher rate would teach this model to answer immediately
    },
}
TOOLS = ["own_parts:population", {"name": "own_parts:Notes", "pages": 2}]


def recipe_of(model: Path, **changes: Any) -> dict[str, Any]:
    """Return the contents of a recipe file."""
    folder = model.parent
    return {
        "name": "own",
        "device": "cpu",
        "model": str(model),
        "tasks": str(folder / "questions.jsonl"),
        "demonstrations": str(folder / "demonstrations.jsonl"),
        "dialect": "own_parts:Brackets",
        "tools": TOOLS,
        "budget": {"max_calls": 2, "max_turn_tokens": 20, "max_context_tokens": 140},
        "stages": STAGES,
        "verdict_reward": "own_parts:Numeric",
        "evaluation": {"splits": {"heldout": 3}, "workflows": ["own_parts:ask_first"]},
        **changes,
    }


def rl(**changes: Any) -> dict[str, Any]:
    """Return the stages of a recipe with a single stage of two steps."""
    stage = {"type": "rl", "steps": 2, "questions_per_step": 2, "group_size": 2, "optim": OPTIM}
    return {"rl": {**stage, **changes}}


def write(file: Path, recipe: Mapping[str, Any]) -> Path:
    file.write_text(yaml.safe_dump(dict(recipe), sort_keys=False))
    return file


def write_files(folder: Path) -> Path:
    """Write a tiny checkpoint, questions and demonstrations; return the checkpoint's folder."""
    records = []
    for city, people in PEOPLE.items():
        call = {"action": "population", "arguments": {"city": city}}
        observation = {"observation": f"{people} live in {city}."}
        records.append(
            {
                "id": city,
                "metadata": {},
                "question": f"How many people live in {city}?",
                "golden_answers": [str(people)],
                "steps": [call, observation, {"answer": str(people)}],
            }
        )
    for name in ("questions", "demonstrations"):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    return write_tiny_checkpoint(folder / "model", "qwen2")


def status(*arguments: object) -> int:
    """Return the exit status of the command line."""
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def sentence(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the only line on stderr."""
    error = capsys.readouterr().err
    assert error.startswith("fieldcraft: "), error
    assert error.count("\n") == 1, error
    assert "Traceback" not in error
    return error.removeprefix("fieldcraft: ").rstrip()


def rows(run: Path, stage: str) -> list[dict[str, Any]]:
    """Return the metrics of a stage, without measured times."""
    found = [json.loads(line) for line in (run / stage / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if "second" not in k} for row in found]
