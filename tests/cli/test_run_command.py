"""What `run` prints, and with which status it ends."""

import functools
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cli_parts import TINY, sentence, status
from fieldcraft.records.trajectories import read_trajectories
from fieldcraft.runs import check as preflight
from fieldcraft.runs import run
from fieldcraft.types import UserError


def test_nothing_heavy_is_loaded_before_a_command_needs_it() -> None:
    heavy = "{'torch', 'transformers', 'matplotlib', 'bm25s', 'uvicorn', 'pyarrow'}"
    code = f"import sys, fieldcraft.cli; sys.exit(str({heavy} & set(sys.modules) or ''))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.stderr.strip() == ""


def test_a_run_ends_with_its_numbers_and_how_to_go_on(
    done: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def execute(*_: object) -> None:
        raise AssertionError("a finished run is not done again")

    monkeypatch.setattr(run, "run_recipe", execute)
    assert status("run", "smoke", *TINY, "--out", done) == 0
    shown = capsys.readouterr().out
    for stage in ("base", "workflow", "sft2", "rl2"):
        assert re.search(rf"^{stage} +\d\.\d{{3}} \[", shown, re.MULTILINE)
    question = read_trajectories(done / "evaluations" / "rl2.jsonl")[0].task.question
    assert shown.endswith(
        f"{done}/report.json\n{done}/report.html\nfieldcraft ask --model {done} '{question}'\n"
    )


def test_a_run_goes_by_default_to_a_folder_of_its_recipe_and_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders: list[Path] = []

    def start(recipe: object, out: Path, events: object) -> None:
        folders.append(out)
        raise UserError("that is all")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(preflight, "check_recipe", lambda *_: [])
    monkeypatch.setattr(run, "run_recipe", start)
    assert status("run", "smoke") == 2
    assert status("run", "smoke", "seed=3") == 2
    assert folders == [Path("runs/smoke"), Path("runs/smoke-seed3")]


def test_the_folder_of_other_settings_is_refused(
    done: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status("run", "smoke", *TINY, "seed=1", "--out", done) == 2
    assert "with other settings (seed=0 there, 1 here)" in sentence(capsys)


def test_a_folder_that_is_no_run_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "letter.txt").touch()
    assert status("run", "smoke", "--out", tmp_path) == 2
    assert sentence(capsys) == (
        f"{tmp_path} exists and is not a run: choose another folder with --out."
    )


def test_ctrl_c_ends_in_one_sentence(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fieldcraft", "run", "smoke", *TINY, "stages.base.steps=9999"]
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell starts background jobs with SIGINT ignored, and children inherit that.
        preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    metrics = tmp_path / "run" / "base" / "metrics.jsonl"
    try:
        while not metrics.exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    loading, stopped = error.splitlines()
    assert loading == "Loading torch and transformers ..."
    given = " ".join([*TINY, "stages.base.steps=9999"])
    assert stopped == (
        f"fieldcraft: stopped; resume with: fieldcraft run smoke {given} --out {tmp_path / 'run'}"
    )
