"""Output and exit status of `run`."""

import functools
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cli_parts import TINY, sentence, status
from fieldcraft.records.training_rollouts import read_training_rollouts
from fieldcraft.records.trajectories import read_trajectories
from fieldcraft.runs import check as preflight
from fieldcraft.runs import run
from fieldcraft.types import UserError
from report_parts import unpacked


def test_nothing_heavy_is_loaded_before_a_command_needs_it() -> None:
    heavy = "{'torch', 'transformers', 'tantivy', 'uvicorn', 'pyarrow'}"
    code = f"import sys, fieldcraft.cli; sys.exit(str({heavy} & set(sys.modules) or ''))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.stderr.strip() == ""


def test_a_run_ends_with_its_numbers_and_how_to_go_on(
    done: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def execute(*_: object) -> None:
        raise AssertionError("a finished run is not done again")

    monkeypatch.setattr(run, "run_recipe", execute)
    (done / ".lock").unlink(missing_ok=True)
    assert status("run", "smoke", *TINY, "--out", done) == 0
    assert not (done / ".lock").exists()  # nothing is written: the folder may be read-only
    output = capsys.readouterr().out
    for stage in ("base", "workflow", "sft2", "rl2"):
        assert re.search(rf"^{stage} +\d\.\d{{3}} \[", output, re.MULTILINE)
    question = next(read_trajectories(done / "evaluations" / "rl2.jsonl")).task.question
    assert output.endswith(
        f"{done}/report.json\n{done}/report.html\nfieldcraft ask --model {done} '{question}'\n"
    )


def test_an_evaluation_offers_no_model_to_ask(
    done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, out = done / "sft2" / "model", tmp_path / "graded"
    settings = [key for key in TINY if not key.startswith("stages.")]
    given = [*settings, "stages={}", f"model={model}", "evaluation.workflows=[]"]
    assert status("run", "smoke", *given, "--out", out) == 0
    assert capsys.readouterr().out.endswith(f"{out}/report.json\n{out}/report.html\n")
    assert status("ask", "--model", out, "Who?") == 2
    assert sentence(capsys) == f"{out} has trained no model: give its model, {model}."


def test_training_rollouts_are_kept_beside_their_stage_and_in_the_page(done: Path) -> None:
    rollouts = list(read_training_rollouts(done / "rl2" / "rollouts"))
    assert [rollout.step for rollout in rollouts] == [0, 0]
    assert all(rollout.advantages is not None for rollout in rollouts)
    assert "rollouts" not in {path.name for path in (done / "sft2").iterdir()}
    lines = unpacked((done / "report.html").read_text("utf-8"))
    steps = [line["step"] for line in lines if line.get("kind") == "training"]
    assert steps == [0, 0]


def test_only_one_question_is_read_for_the_command_that_is_offered(
    done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(done, copy)
    file = copy / "evaluations" / "rl2.jsonl"
    first, rest = file.read_text().split("\n", maxsplit=1)
    file.write_text(f"{first}\nbroken\n{rest}")
    assert status("run", "smoke", *TINY, "--out", copy) == 0
    question = json.loads(first)["task"]["question"]
    assert capsys.readouterr().out.endswith(f"fieldcraft ask --model {copy} '{question}'\n")


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
    assert "with other settings (seed=0 in the folder, 1 in this recipe)" in sentence(capsys)


def test_a_stage_of_one_recipe_only_is_named_without_its_keys(
    done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    added = "stages.more={type: sft, dataset: demonstrations, epochs: 1, optim: {lr: 0.001}}"
    assert status("run", "smoke", *TINY, added, "--out", done) == 2
    assert "with other settings (stages.more only in this recipe): choose" in sentence(capsys)
    stored = json.loads((done / "recipe.json").read_text())
    stored["stages"]["gone"] = next(iter(stored["stages"].values()))
    (tmp_path / "recipe.json").write_text(json.dumps(stored))
    assert status("run", "smoke", *TINY, "--out", tmp_path) == 2
    assert "with other settings (stages.gone only in the folder): choose" in sentence(capsys)


def test_a_folder_that_is_no_run_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "letter.txt").touch()
    assert status("run", "smoke", "--out", tmp_path) == 2
    assert sentence(capsys) == (
        f"{tmp_path} exists and is not a run: choose another folder with --out."
    )


@pytest.mark.long
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
        _, error = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 130
    loading, stopped = error.splitlines()
    assert loading == "Loading torch and transformers ..."
    given = " ".join([*TINY, "stages.base.steps=9999"])
    assert stopped == (
        f"fieldcraft: stopped; resume with: fieldcraft run smoke {given} --out {tmp_path / 'run'}"
    )
