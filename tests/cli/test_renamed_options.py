"""Former options and commands: a sentence says what to do instead, and `view` still runs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from starlette.testclient import TestClient

from cli_parts import sentence, status
from fieldcraft.cli.app import REMOVED_OPTIONS, RENAMED_OPTIONS, app
from fieldcraft.tools import serving
from view_parts import write_run

RENAMED = [
    (command, old, new) for command, names in RENAMED_OPTIONS.items() for old, new in names.items()
]

REMOVED = [(command, option) for command, gone in REMOVED_OPTIONS.items() for option in gone]


def options_of(command: str) -> Iterator[str]:
    found: Any = typer.main.get_command(app)
    for word in command.split():
        found = found.commands[word]
    for parameter in found.params:
        yield from (*parameter.opts, *parameter.secondary_opts)


@pytest.mark.parametrize(("command", "old", "new"), RENAMED)
def test_an_old_option_names_the_new_one(
    command: str, old: str, new: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert new in options_of(command)
    assert status(*command.split(), "x", f"{old}=1") == 2
    assert sentence(capsys) == f"{old} is now called {new}."
    assert status(*command.split(), old, "1") == 2
    assert sentence(capsys) == f"{old} is now called {new}."


@pytest.mark.parametrize(("command", "option"), REMOVED)
def test_a_removed_option_says_what_to_do_instead(
    command: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert option not in options_of(command)
    assert status(*command.split(), "x", option, "1") == 2
    assert sentence(capsys) == (
        f"{option} was for times, which plan no longer estimates: leave it out, and measure a few"
        " steps of the run (`seconds` in metrics.jsonl)."
    )


@pytest.mark.parametrize("arguments", [["show", "x", "--rigth"], ["ask", "Why?", "--number", "1"]])
def test_another_unknown_option_is_reported_as_such(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(*arguments) == 2
    error = capsys.readouterr().err
    assert "No such option" in error
    assert "is now called" not in error


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """Record the pages instead of serving them: name, host, port, path and token."""
    found: list[tuple[object, ...]] = []

    def serve(page: Any, *arguments: Any) -> None:
        *place, close, token = arguments
        with TestClient(page):  # which starts and ends it
            close()
        found.append((*place, token))

    monkeypatch.setattr(serving, "serve_until_interrupt", serve)
    return found


@pytest.mark.parametrize("command", ["studio", "view"])
def test_view_runs_studio(command: str, tmp_path: Path, served: list[tuple[object, ...]]) -> None:
    run = write_run(tmp_path / "one")
    assert status(command, run, "--host", "::1", "--port", 9, "--allow-sampling") == 0
    assert served == [("studio", "::1", 9, "/", None)]


def test_the_help_of_view_says_how_it_is_called_now(capsys: pytest.CaptureFixture[str]) -> None:
    assert status("--help") == 0
    assert " view " not in capsys.readouterr().out
    assert status("view", "--help") == 0
    assert "Run 'fieldcraft studio', as this command is now called." in capsys.readouterr().out


@pytest.mark.parametrize("variable", ["FIELDCRAFT_STUDIO_TOKEN", "FIELDCRAFT_VIEW_TOKEN"])
def test_both_variables_have_the_token(
    variable: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    served: list[tuple[object, ...]],
) -> None:
    monkeypatch.setenv(variable, "secret")
    assert status("studio", write_run(tmp_path / "one")) == 0
    assert served == [("studio", "127.0.0.1", 8001, "/?token=secret", "secret")]
