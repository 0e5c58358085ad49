"""Tasks that a model of 7,000 parameters learns: each wants one of four letters in a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from learning import STAGE, write_player

from bandit import ANSWERS, Letters
from fieldcraft.dialects.base import BaseDialect
from fieldcraft.recipes.loading import parse_recipe
from fieldcraft.records.events import EventBus, write_metrics
from fieldcraft.runs.check import check_recipe
from fieldcraft.runs.run import run_recipe
from fieldcraft.types import Answer, ToolCall, ToolCalls
from harbor_folders import write_task

WANTED = "badc"


@dataclass(frozen=True)
class LetterCommands(Letters):
    """Dialect in which a letter from a to d writes itself into the file, and s ends the rollout."""

    name = "letter-commands"
    callable_tools = ("bash",)

    def encode_prompt(self, question: str, tools: Sequence[dict[str, Any]]) -> list[int]:
        return BaseDialect.encode_prompt(self, question, [])

    def parse(self, turns: Sequence[str]) -> Answer | ToolCalls | None:
        last = turns[-1][-1]
        if last in ANSWERS:
            return (ToolCall("bash", {"command": f"echo {last} > word.txt"}),)
        return Answer("done") if last == "s" else None


def write_letter_tasks(folder: Path) -> Path:
    """Write two tasks of each digit, which the model reads as the instruction. The second ones are
    held out."""
    for group in ("a", "b"):
        for digit, letter in enumerate(WANTED):
            write_task(folder / f"{group}-{digit}", letter, instruction=str(digit))
    return folder


def learn_letters(folder: Path, seed: int = 0, **stage: Any) -> list[dict[str, Any]]:
    """Train on the tasks with a recipe, which must pass `check`, and return the metrics."""
    recipe = parse_recipe(
        {
            "name": "terminal",
            "seed": seed,
            "device": "cpu",
            "model": str(write_player(folder / "player", seed)),
            "dialect": "letter_tasks:LetterCommands",
            "instruction": "",
            "environment": {
                "name": "harbor",
                "tasks": str(write_letter_tasks(folder / "tasks")),
                "max_concurrent": 4,
            },
            "budget": {"max_turn_tokens": 4, "max_context_tokens": 60, "max_calls": 2},
            "stages": {"rl": STAGE | stage},
            "evaluation": {"splits": {"heldout": 4}},
        }
    )
    assert check_recipe(recipe, folder, lambda *_: None) == []
    run_recipe(recipe, folder / "run", EventBus([write_metrics]))
    lines = (folder / "run" / "rl" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]
