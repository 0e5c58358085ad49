"""Every file of a run and of a checkpoint, broken in many ways: no command ends in a traceback."""

import random
import shutil
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broken_files import BREAKS
from cli_parts import TINY, sentence, status
from fieldcraft.cli.main import main
from fieldcraft.runs import training
from fieldcraft.types import UserError

SAMPLE = 5  # of the broken files, in the default suite


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provide a run that stopped after the last step of its last stage, with its checkpoint."""
    out = tmp_path_factory.mktemp("runs") / "stopped"
    write = training.write_json

    def stop(path: Path, value: Any) -> None:
        if path.parent.name == "rl2":
            raise UserError("stopped.")
        write(path, value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "write_json", stop)
        assert status("run", "smoke", *TINY, "--out", out) == 2
    return out


def commands(run: Path, file: Path) -> Iterator[list[str]]:
    """Return the commands that read a file. The last stage is unfinished, so agents come from the
    one before."""
    read = file.relative_to(run).parts[0]
    copy = str(run.parent / "copy")
    if read in ("sft2", "index", "recipe.json"):
        yield ["ask", "Where?", "--model", str(run)]
    if read in ("sft2", "recipe.json"):
        yield ["export", str(run), "--out", copy]
    if read in ("evaluations", "recipe.json"):
        yield ["show", str(run)]
    yield ["run", "smoke", *TINY, "--out", str(run)]
    if read == "evaluations":
        yield ["run", "smoke", *TINY, "--out", str(run)]  # finished by now


def files_of(run: Path) -> list[str]:
    return sorted(str(p.relative_to(run)) for p in run.rglob("*") if p.is_file())


def ended(command: list[str]) -> object:
    """Return how a command ended: its status, or an exception that the user would see."""
    try:
        main(command)
    except SystemExit as end:
        return end.code
    except Exception:  # noqa: BLE001 - the exception that the test is about
        return traceback.format_exc()
    return 0


def try_all(chosen: list[tuple[str, str]], run: Path, tmp_path: Path, capsys: Any) -> None:
    for file, how in chosen:
        copy = tmp_path / "run"
        shutil.copytree(run, copy)
        BREAKS[how](copy / file)
        for command in commands(copy, copy / file):
            capsys.readouterr()
            code = ended(command)
            assert code in (0, 2), (file, how, command)
            if code == 2:
                assert sentence(capsys).endswith("."), (file, how, command)
            shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        shutil.rmtree(copy)


@pytest.mark.long
def test_broken_files_end_in_a_sentence(run: Path, tmp_path: Path, capsys: Any) -> None:
    cases = [(file, how) for file in files_of(run) for how in BREAKS]
    try_all(random.Random(0).sample(cases, SAMPLE), run, tmp_path, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("how", BREAKS)
def test_every_file_broken(run: Path, how: str, tmp_path: Path, capsys: Any) -> None:
    try_all([(file, how) for file in files_of(run)], run, tmp_path, capsys)
