"""A command reports that it loads torch before it does so; a command that does not need torch does
not load it."""

import json
import subprocess
import sys
from pathlib import Path

from cli_parts import TINY

SMALL = (
    *("world.people=30", "world.taught=0.4", "world.heldout=0.5"),
    "evaluation.splits={heldout: 5, known: 2}",
)

# Runs commands in a new process. An import of torch ends a command with the status 99. Prints for
# each command its status and its output up to that point.
PROGRAM = """
import io, json, sys

class NoTorch:
    def find_spec(self, name, *_):
        if name == "torch":
            sys.exit(99)

sys.meta_path.insert(0, NoTorch())
from fieldcraft.cli.main import main
for command in json.loads(sys.argv[1]):
    sys.stdout, sys.stderr = io.StringIO(), io.StringIO()
    try:
        main(command)
    except SystemExit as ended:
        print(json.dumps([ended.code, sys.stderr.getvalue()]), file=sys.__stdout__)
"""


def ended(*commands: list[object]) -> list[list[object]]:
    """Return for each command its status, 99 if it imports torch, and its output up to that
    point."""
    given = json.dumps([[str(word) for word in command] for command in commands])
    program = [sys.executable, "-c", PROGRAM, given]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_mistakes_are_answered_before_anything_heavy_is_loaded(done: Path) -> None:
    questions = done / "world" / "evaluation.jsonl"
    mistakes: list[list[object]] = [
        ["run", "autocoa-mimi"],
        ["run", "smoke", "stages.rl2.grup=2"],
        ["run", "smoke", "--out", done],
        ["check", "smoke", "sede=1"],
        ["ask", "--model", "/none", "Why?"],
        ["ask", "--model", done, " "],
        ["ask", "--model", done, "--dialect", "herms", "Why?"],
        ["ask", "--model", done, "--index", "/none", "Why?"],
        ["export", "/none", "--out", "/none"],
        ["eval", "--model", done],
        ["eval", "--model", done, "--tasks", "/none.jsonl"],
        ["eval", "--model", "/none", "--tasks", questions],
        ["show", "/none"],
        ["show", done, "--index", "9999"],
        ["show", done, "--index", "9999", "--mask"],
        ["index", "/none.jsonl", "--out", "/none"],
        ["world", "atlas", "world.poeple=3", "--out", "/none"],
    ]
    for command, (status, output) in zip(mistakes, ended(*mistakes), strict=True):
        assert status == 2, command
        assert str(output).startswith("fieldcraft: "), command


def test_light_commands_load_no_torch(done: Path, tmp_path: Path) -> None:
    light: list[list[object]] = [
        ["--help"],
        ["--version"],
        ["recipes"],
        ["show", done],
        ["show", done, "--index", 0],
        ["run", "smoke", *TINY, "--out", done],
        ["world", "atlas", *SMALL, "--out", tmp_path / "world"],
        ["index", tmp_path / "world" / "corpus.jsonl", "--out", tmp_path / "index"],
    ]
    assert ended(*light) == [[0, ""]] * len(light)


def test_what_takes_seconds_is_said_before_it_begins(done: Path, tmp_path: Path) -> None:
    questions = done / "world" / "evaluation.jsonl"
    heavy: list[list[object]] = [
        ["run", "smoke", *TINY, "--out", tmp_path / "run"],
        ["check", "smoke"],
        ["ask", "--model", done, "Why?"],
        ["eval", "--model", done, "--tasks", questions],
        ["export", done, "--out", tmp_path / "export"],
        ["show", done, "--mask"],
        ["world", "atlas", *SMALL, "--with-model", "--out", tmp_path / "world"],
    ]
    assert ended(*heavy) == [[99, "Loading torch and transformers ...\n"]] * len(heavy)
    assert not [*tmp_path.iterdir()]
