"""Shared helpers of the command-line tests."""

import json
from pathlib import Path

import pytest

from fieldcraft.cli.main import main

TINY = (
    "world.people=30",
    "world.heldout=0.5",
    "world.taught=0.4",
    "world.variants=2",
    "tiny_model.layers=2",
    "tiny_model.width=16",
    "tiny_model.heads=1",
    "stages.base.steps=2",
    "stages.base.max_examples=40",
    "stages.sft2.steps=1",
    "stages.sft2.max_examples=40",
    "stages.rl2.steps=1",
    "stages.rl2.questions_per_step=2",
    "stages.rl2.group_size=2",
    "evaluation.splits.heldout=4",
    "evaluation.splits.train=2",
    "evaluation.splits.known=2",
    "budget.max_turn_tokens=40",
    "budget.max_context_tokens=200",
)


def status(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def demonstration(answer: str) -> dict[str, str]:
    search = "<|begin_of_query|> film 0 <|end_of_query|>"
    read = "<|begin_of_documents|>(1)Title: Film 0 Text: Ada made it.<|end_of_documents|>"
    written = f"I search. {search} {read} It is she. <answer> {answer} </answer>"
    return {"question": "Who made it?", "answer": "Ada", "gen_text_store": written}


def lines(path: Path, records: list[dict[str, str]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def given(files: dict[str, Path]) -> list[str]:
    return [f"{key}={path}" for key, path in files.items()]


def sentence(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the only line on stderr."""
    error = capsys.readouterr().err
    assert error.startswith("fieldcraft: "), error
    assert error.count("\n") == 1
    return error.removeprefix("fieldcraft: ").rstrip()
