"""A command says that it loads torch before it does, and one that needs none loads none."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cli_parts import TINY

# Runs a command, and prints what was on stderr when torch was first imported, if it was.
PROGRAM = """
import io, json, sys
class Watch:
    def find_spec(self, name, *_):
        if name == "torch" and not seen:
            seen.append(sys.stderr.getvalue())
seen = []
sys.meta_path.insert(0, Watch())
sys.stderr = io.StringIO()
from fieldcraft.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit as ended:
    print("\\n" + json.dumps([ended.code, seen, sys.stderr.getvalue()]))
"""


def ran(*arguments: object) -> tuple[int, list[str], str]:
    """Status, what had been said when torch was imported, and all that was said."""
    command = [sys.executable, "-c", PROGRAM, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    status, seen, said = json.loads(done.stdout.splitlines()[-1])
    return status, seen, said


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["recipes"],
        ["run", "autocoa-mimi"],
        ["run", "smoke", "stages.rl2.grup=2"],
        ["run", "smoke", "--out", "{run}"],
        ["check", "smoke", "sede=1"],
        ["ask", "--model", "/none", "Why?"],
        ["ask", "--model", "{run}", " "],
        ["ask", "--model", "{run}", "--dialect", "herms", "Why?"],
        ["ask", "--model", "{run}", "--index", "/none", "Why?"],
        ["export", "/none", "--out", "/none"],
        ["eval", "--model", "{run}"],
        ["eval", "--model", "{run}", "--tasks", "/none.jsonl"],
        ["show", "/none"],
        ["show", "{run}", "--number", "9999"],
        ["index", "/none.jsonl", "--out", "/none"],
    ],
    ids=" ".join,
)
def test_mistakes_and_light_commands_load_no_torch(arguments: list[str], done: Path) -> None:
    status, seen, _ = ran(*(argument.format(run=done) for argument in arguments))
    assert status == (0 if arguments[0] in ("--help", "recipes") else 2)
    assert seen == []


def test_show_and_world_and_index_load_no_torch(done: Path, tmp_path: Path) -> None:
    small = ["world.people=30", "evaluation.splits.heldout=4"]
    for command in (
        ["show", done],
        ["show", done, "--number", 0],
        ["run", "smoke", *TINY, "--out", done],
        ["world", "atlas", *small, "--out", tmp_path / "world"],
        ["index", tmp_path / "world" / "corpus.jsonl", "--out", tmp_path / "index"],
    ):
        assert ran(*command) == (0, [], "")


def test_what_takes_seconds_is_said_before_it_begins(done: Path) -> None:
    for command in (["show", done, "--mask"], ["ask", "--model", done, "Why?"]):
        status, seen, _ = ran(*command)
        assert status == 0
        assert seen == ["Loading torch and transformers ...\n"]
