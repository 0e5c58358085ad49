"""A third-party folder is data: everything else that it requests is refused until allowed by
name."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fieldcraft
from checkpoints import write_tiny_checkpoint
from cli_parts import sentence, status
from fieldcraft.extensions.search.index import build_index
from fieldcraft.extensions.studio.run_view import load_run_views
from fieldcraft.recipes.consent import (
    ConsentRequiredError,
    allow_permissions,
    hash_contents,
    record_own_consent,
    require_consent,
)
from fieldcraft.recipes.exported import AGENT_FILE, write_agent_settings
from fieldcraft.recipes.loading import build_recipe, parse_recipe
from fieldcraft.runs.agent import find_agent
from former_keys import write_former_keys
from tiny_runs import run_tiny

MCP = {"name": "mcp", "mcp": "sh -c 'touch started'"}
MODULE = {"name": "evil_tools:find"}


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of stored consent; nothing is allowed yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil_tools.py").write_text("open('imported', 'w')\n")
    return tmp_path / "settings"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("checkpoint"), "qwen2")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provide a finished run."""
    return run_tiny(tmp_path_factory.mktemp("made"))


def forget(settings: Path) -> None:
    """Remove all consent, as if the folders came from another machine."""
    for path in settings.rglob("*.json"):
        path.unlink()


def change(file: Path, **keys: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | keys))


@pytest.fixture
def exported(checkpoint: Path, tmp_path: Path, settings: Path) -> Path:
    """Provide a third-party model folder that starts a program."""
    folder = tmp_path / "downloaded"
    folder.mkdir()
    for path in checkpoint.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    write_agent_settings(
        folder, build_recipe({"name": "theirs", "stages": {}}), None, trained_with_tools=True
    )
    change(folder / AGENT_FILE, tools=[MCP])
    return folder


@pytest.fixture
def run(made: Path, tmp_path: Path, settings: Path) -> Path:
    """Provide a third-party run whose recipe starts a program."""
    folder = tmp_path / "theirs"
    for path in made.rglob("*"):
        if path.is_file():
            copy = folder / path.relative_to(made)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    change(folder / "recipe.json", tools=[MCP])
    return folder


def recipe_with(model: Path) -> None:
    questions = Path("questions.jsonl")
    questions.write_text('{"question": "Who?", "answer": "Ada"}\n' * 2)
    data = {"name": "mine", "model": str(model), "tasks": str(questions), "stages": {}}
    parse_recipe(data)


LOADS: dict[str, Callable[[Path], Any]] = {
    "load": lambda folder: fieldcraft.load(folder),
    "find_agent": lambda folder: find_agent(folder),
    "ask": lambda folder: status("ask", "Who?", "--model", folder),
    "eval": lambda folder: status("eval", "--model", folder, "--tasks", write_questions()),
    "serve": lambda folder: status("serve", "agent", "--model", folder),
    "export": lambda folder: status("export", folder, "--out", "out"),
}
OF_EXPORTS = {**LOADS, "model=": recipe_with}
OF_RUNS = {
    **LOADS,
    "stage": lambda folder: find_agent(folder / "one"),
    "branch": lambda folder: status("branch", folder, "--index", 0),
    "studio --allow-sampling": lambda folder: status("studio", folder, "--allow-sampling"),
}


def write_questions() -> Path:
    path = Path("asked.jsonl")
    path.write_text('{"question": "Who?", "answer": "Ada"}\n')
    return path


def refused(load: Callable[[Path], Any], folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the message for the user."""
    capsys.readouterr()
    try:
        assert load(folder) == 2
    except ConsentRequiredError as error:
        return str(error)
    return sentence(capsys)


@pytest.mark.parametrize("way", OF_EXPORTS)
def test_no_way_of_loading_an_export_starts_a_program(
    way: str, exported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = refused(OF_EXPORTS[way], exported, capsys)
    assert message.startswith(f"{exported / AGENT_FILE} would use the MCP server 'sh -c")
    assert "'tools.0.mcp'" in message
    assert "--allow mcp" in message
    assert not Path("started").exists()


@pytest.mark.parametrize("way", OF_RUNS)
def test_nor_does_any_way_of_loading_a_run(
    way: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = refused(OF_RUNS[way], run, capsys)
    assert f"{run / 'recipe.json'} would use the MCP server" in message
    assert not Path("started").exists()


def test_reading_a_run_imports_nothing_of_it(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(run / "recipe.json", tools=[], stages={"one": {"type": "evil_tools:Stage"}})
    capsys.readouterr()
    messages = [load_run_views([run])[0].error]
    for command in (["show", run], ["compare", run, run], ["branch", run, "--index", 0]):
        assert status(*command) == 2
        messages.append(capsys.readouterr().err)
    assert all("would import 'evil_tools:Stage' ('stages.one.type')" in each for each in messages)
    assert not Path("imported").exists()


def test_a_run_of_others_is_shown_without_consent(run: Path) -> None:
    assert status("show", run) == 0


def test_it_is_asked_once_and_remembered_until_the_file_changes(exported: Path) -> None:
    assert fieldcraft.load(exported, allow=["mcp"]).recipe.tools[0].name == "mcp"
    fieldcraft.load(exported)
    change(exported / AGENT_FILE, tools=[{**MCP, "mcp": "sh -c 'touch other'"}])
    with pytest.raises(ConsentRequiredError):
        fieldcraft.load(exported)


def test_consent_to_one_thing_is_none_to_another(exported: Path) -> None:
    change(exported / AGENT_FILE, tools=[MCP, MODULE], verdict_reward="evil_tools:Right")
    with pytest.raises(ConsentRequiredError, match=r"import 'evil_tools:find'.*, and 1 more"):
        fieldcraft.load(exported, allow=["mcp"])
    assert not Path("imported").exists()


def test_the_option_allows_and_remembers(
    exported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(exported / AGENT_FILE, tools=[{"name": "mcp", "mcp": "nobody-has-this"}])
    capsys.readouterr()
    assert status("ask", "Who?", "--model", exported, "--allow", "mcp") == 2
    assert "nobody-has-this" in capsys.readouterr().err  # it was attempted
    fieldcraft.load(exported)


def test_a_name_that_allows_nothing_is_refused(
    exported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status("ask", "Who?", "--model", exported, "--allow", "mpc") == 2
    assert "nothing is allowed by the name 'mpc'; did you mean 'mcp'?" in sentence(capsys)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("answer", "allowed"), [("y\n", True), ("\n", False), ("", False)])
def test_a_terminal_is_asked(
    answer: str, allowed: bool, exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(exported / AGENT_FILE, tools=[{"name": "mcp", "mcp": "nobody-has-this\x1b[2J"}])
    screen = Terminal()
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    monkeypatch.setattr(sys, "stderr", screen)
    assert status("ask", "Who?", "--model", exported) == 2
    assert "use the MCP server 'nobody-has-this?[2J' ('tools.0.mcp')" in screen.getvalue()
    assert screen.getvalue().count("[y/N]") == 1
    if allowed:
        fieldcraft.load(exported)
    else:
        with pytest.raises(ConsentRequiredError):
            fieldcraft.load(exported)


def test_an_export_of_this_user_asks_for_nothing(checkpoint: Path) -> None:
    recipe = build_recipe({"name": "mine", "stages": {}, "tools": [MCP]})
    write_agent_settings(checkpoint, recipe, None, trained_with_tools=True)
    try:
        assert find_agent(checkpoint).recipe.tools == recipe.tools
    finally:
        (checkpoint / AGENT_FILE).unlink()


def test_consent_to_a_file_with_former_keys_stays(exported: Path) -> None:
    former = write_former_keys(exported / AGENT_FILE)
    record_own_consent(exported / AGENT_FILE, former)
    assert find_agent(exported).recipe.tools[0].name == "mcp"


def test_a_run_of_this_user_asks_for_nothing(tmp_path: Path, settings: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    out = run_tiny(folder)  # its model and its questions are outside of it
    find_agent(out)
    forget(settings)
    with pytest.raises(ConsentRequiredError, match="--allow file"):
        find_agent(out)


def test_nothing_to_allow_leaves_nothing(settings: Path, tmp_path: Path) -> None:
    write_agent_settings(
        tmp_path, build_recipe({"name": "mine", "stages": {}}), None, trained_with_tools=True
    )
    assert not settings.exists()


def test_consent_that_cannot_be_kept_is_no_consent(exported: Path, settings: Path) -> None:
    settings.write_text("no folder")
    with pytest.raises(fieldcraft.UserError, match="set XDG_CONFIG_HOME"):
        fieldcraft.load(exported, allow=["mcp"])


def test_links_out_of_a_folder_ask(exported: Path, tmp_path: Path) -> None:
    change(exported / AGENT_FILE, tools=[])
    (tmp_path / "secret").write_text("x")
    (exported / "inner").symlink_to(exported / AGENT_FILE)
    fieldcraft.load(exported)
    (exported / "notes.txt").symlink_to(tmp_path / "secret")
    with pytest.raises(ConsentRequiredError, match=r"'notes.txt'.*--allow file"):
        fieldcraft.load(exported)
    fieldcraft.load(exported, allow=["file"])
    (exported / "notes.txt").unlink()
    (exported / "notes.txt").symlink_to("/etc")
    with pytest.raises(ConsentRequiredError):
        fieldcraft.load(exported)


def test_an_index_of_others_names_its_encoder(tmp_path: Path, settings: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"id": "0", "contents": "A\\nIt is blue."}\n')
    build_index(corpus, tmp_path / "index")
    change(tmp_path / "index" / "manifest.json", encoder="their/model", ranking="dense")
    assert status("serve", "search", "--index", tmp_path / "index") == 2
    with pytest.raises(ConsentRequiredError, match=r"would contact 'their/model' \('encoder'\)"):
        open_with(tmp_path / "index")


def open_with(index: Path) -> None:
    find_agent(write_tiny_checkpoint(index.parent / "bare", "qwen2")).with_options(
        None, index, None
    )


def test_consent_is_to_values_and_not_to_the_layout(tmp_path: Path) -> None:
    data = {"a": 1, "tools": ["mine:find"]}
    with allow_permissions(["module"]):
        require_consent(tmp_path / "x", data)
    require_consent(tmp_path / "y", {"tools": ["mine:find"], "a": 1})
    assert hash_contents(data) != hash_contents(data | {"a": 2})
