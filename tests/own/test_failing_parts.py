"""Components that fail during a run: other results are stored, and the cause is reported."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bad_parts
import failing_parts
import pytest
import torch
from own_recipe import OPTIM, recipe_of, rl, rows, sentence, status, write, write_files

from fieldcraft.engine.threads import ThreadCounts
from fieldcraft.runs import context
from fieldcraft.train.collapse_detector import CollapseDetector, CollapseReport
from fieldcraft.train.loop import MAX_IDLE_STEPS

CITIES = {"Rome", "Oslo", "Bern", "Lima", "Kyiv", "Cairo", "Turin", "Nice"}
NONE: dict[str, Any] = {"splits": {"heldout": 2}, "workflows": []}
PATIENT = {"em": 1.0, "failing_parts:Patient": 1.0}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = torch.get_num_threads()
    monkeypatch.setattr(context, "find_fastest_threads", lambda _: ThreadCounts(1, 1))
    monkeypatch.setattr(failing_parts, "asked", 0)
    yield
    torch.set_num_threads(before)


def run(model: Path, folder: Path, **changes: Any) -> int:
    settings = {"evaluation": NONE, "stages": rl(), **changes}
    recipe = write(folder / "own.yaml", recipe_of(model, **settings))
    return status("run", recipe, "--out", folder / "run")


# -- tools ---------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_tool_that_never_returns(model: Path, tmp_path: Path) -> None:
    """The run is a separate process, which has to end without being killed."""
    settings = recipe_of(
        model,
        tools=["failing_parts:endless"],
        stages=rl(steps=1),
        budget={
            "max_calls": 2,
            "max_turn_tokens": 12,
            "max_context_tokens": 200,
            "call_timeout_seconds": 0.05,
        },
    )
    recipe = write(tmp_path / "own.yaml", settings)
    command = [sys.executable, "-m", "fieldcraft", "run", recipe, "--out", tmp_path / "run"]
    done = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=Path(__file__).parent,
    )
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith("fieldcraft: 'ask_first: evaluation' was stopped, because 1 of its 3")
    assert "the last one: 'The tool did not answer within 0.05 s': correct it" in last
    assert not (tmp_path / "run" / "evaluations" / "ask_first.json").exists()


@pytest.mark.long
def test_a_tool_that_returns_50_mb(model: Path, tmp_path: Path) -> None:
    workflows = {"splits": {"heldout": 1}, "workflows": ["own_parts:ask_first"]}
    budget = {
        "max_calls": 2,
        "max_turn_tokens": 12,
        "max_context_tokens": 400,
        "max_observation_tokens": 64,
    }
    changes = {"tools": ["failing_parts:huge"], "evaluation": workflows, "budget": budget}
    assert run(model, tmp_path, stages=rl(steps=1), **changes) == 0
    file = tmp_path / "run" / "evaluations" / "ask_first.jsonl"
    [call] = json.loads(file.read_text())["calls"]
    assert (call["outcome"], call["cut"] > 49_000_000) == ("ok", True)
    assert file.stat().st_size < 50_000


@pytest.mark.long
def test_a_group_that_raises_leaves_the_others_to_train(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = rl(steps=2, questions_per_step=3, rewards=PATIENT, evaluate=False)
    monkeypatch.setattr(failing_parts, "broken_for", CITIES - {"Rome", "Oslo", "Bern", "Lima"})
    assert run(model, tmp_path, tools=["failing_parts:Flaky"], stages=stages) == 0
    found = rows(tmp_path / "run", "rl")
    broken = [row["status/error"] for row in found]
    assert all(share in (0, 1 / 3, 2 / 3) for share in broken)  # whole groups
    assert any(broken)
    assert [row["ungradable_rate"] for row in found] == broken
    assert all(row["grad_norm"] > 0 for row in found)


@pytest.mark.slow
def test_a_step_that_raises_stops_and_is_resumed(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stages = rl(steps=4, questions_per_step=1, rewards=PATIENT, checkpoint_every=1)
    changes: dict[str, Any] = {"tools": ["failing_parts:Flaky"], "stages": stages}
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    whole.mkdir()
    stopped.mkdir()
    assert run(model, whole, **changes) == 0
    steps = [row["step"] for row in rows(whole / "run", "rl")]
    assert steps == [0, 1, 2, 3]

    monkeypatch.setattr(failing_parts, "asked", 0)
    monkeypatch.setattr(failing_parts, "fails_from", 2)  # as with a defect of a reward
    capsys.readouterr()
    assert run(model, stopped, **changes) == 2
    message = sentence(capsys)
    assert "the reward 'patient' failed (KeyError: 'no such file'): correct it and run" in message
    assert [path.name for path in (stopped / "run" / "rl").glob("step-*")] == ["step-000002"]

    monkeypatch.setattr(failing_parts, "fails_from", 99)
    monkeypatch.setattr(failing_parts, "broken_for", CITIES)
    assert run(model, stopped, **changes) == 2
    message = sentence(capsys)
    assert (
        "all 2 rollouts of step 2 ended in an exception, the last one: 'OSError: no notebook"
        in message
    )
    assert [path.name for path in (stopped / "run" / "rl").glob("step-*")] == ["step-000002"]

    monkeypatch.setattr(failing_parts, "broken_for", set())
    assert run(model, stopped, **changes) == 0
    assert rows(stopped / "run", "rl") == rows(whole / "run", "rl")


@pytest.mark.slow
def test_a_run_that_collapses_has_a_report_of_what_there_is(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second of two stages collapses in its third step."""

    def collapse(watch: CollapseDetector, rows: list[dict[str, Any]]) -> CollapseReport | None:
        return CollapseReport(2, "exact match has fallen", None) if len(rows) == 3 else None

    stages = {"first": rl()["rl"], "second": rl(steps=4)["rl"]}
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(CollapseDetector, "detect", collapse)
        for _ in range(2):  # after a resume, it decides the same
            capsys.readouterr()
            assert run(model, tmp_path, stages=stages) == 2
            message = sentence(capsys)
            assert message.startswith(
                "stage 'second' has collapsed at step 2: exact match has fallen"
            )
            report = json.loads((out / "report.json").read_text())
            assert report["stopped"] == message
            assert [(s["name"], s["metrics"].get("step")) for s in report["stages"]] == [
                ("first", 1),
                ("second", 2),
                ("evaluation", None),
            ]
            assert list(report["evals"]) == ["base", "first"]
            page = (out / "report.html").read_text()
            assert "<strong>Stopped:</strong> stage &#39;second&#39; has collapsed" in page
    assert run(model, tmp_path, stages=stages) == 0  # a stopped run can be continued
    report = json.loads((out / "report.json").read_text())
    assert "stopped" not in report
    assert list(report["evals"]) == ["base", "first", "second"]


# -- rewards, workflows and stage types ------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Failing", "the reward 'failing' failed (KeyError: 'budget'): correct it and run"),
        ("too_few", "'too_few' must return a list with one score for each of the 2 rollouts"),
        ("nothing", "rollouts that it receives, not None: correct it."),
        (
            "wordy",
            "the reward 'wordy' returned 'good', which is not a score: return numbers up to 1e+15",
        ),
    ],
)
def test_rewards(
    model: Path, tmp_path: Path, name: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(model, tmp_path, stages=rl(rewards={f"bad_parts:{name}": 1.0})) == 2
    assert message in sentence(capsys)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("broken", "the workflow 'bad_parts:broken' failed (LookupError: no such page): correct"),
        ("forgetful", "the workflow 'bad_parts:forgetful' returned None, not a trajectory:"),
    ],
)
def test_workflows(
    model: Path, tmp_path: Path, name: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluation = {"splits": {"heldout": 2}, "workflows": [f"bad_parts:{name}"]}
    assert run(model, tmp_path, evaluation=evaluation) == 2
    assert message in sentence(capsys)


def test_stage_types(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stages = rl(type="bad_parts:Uncounted", steps=1)
    assert run(model, tmp_path, stages=stages) == 2
    assert sentence(capsys).startswith(
        f"the stage type {bad_parts.Uncounted.__name__} returned {{}} for a step: return its"
    )


@pytest.mark.long
def test_a_stage_type_takes_over_the_settings_of_another(model: Path, tmp_path: Path) -> None:
    assert run(model, tmp_path, stages=rl(type="failing_parts:Counted")) == 0
    assert [row["mine"] for row in rows(tmp_path / "run", "rl")] == [0, 1]


# -- nothing to train ------------------------------------------------------------------------------

CRITIC = {"algorithm": "ppo", "minibatches": 1}


@pytest.mark.long
@pytest.mark.parametrize(
    ("steps", "algorithm"),
    [
        (2, CRITIC),
        (MAX_IDLE_STEPS + 2, {}),
        *(
            pytest.param(steps, algorithm, marks=pytest.mark.slow)
            for steps, algorithm in [
                (2, {}),
                (2, {"algorithm": "reinforce++"}),
                (MAX_IDLE_STEPS + 2, CRITIC),
                (MAX_IDLE_STEPS + 2, {"algorithm": "reinforce++"}),
            ]
        ),
    ],
)
def test_truncated_rollouts_alone(
    model: Path,
    tmp_path: Path,
    algorithm: dict[str, Any],
    steps: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A random model never ends its turn."""
    stages = rl(steps=steps, train_truncated=False, checkpoint_every=1, **algorithm)
    budget = {"max_calls": 2, "max_turn_tokens": 2, "max_context_tokens": 140}
    in_a_row = min(steps, MAX_IDLE_STEPS)
    expected = (
        f"stage 'rl' had no trainable token in {in_a_row} consecutive steps up to step"
        f" {in_a_row - 1}, because every rollout ended at its token budget and train_truncated is"
        " false: raise budget.max_turn_tokens and budget.max_context_tokens, or set"
        " train_truncated: true."
    )
    for _ in range(2):  # after a resume, it decides the same
        assert run(model, tmp_path, stages=stages, budget=budget) == 2
        assert sentence(capsys) == expected
        assert [row["step"] for row in rows(tmp_path / "run", "rl")] == list(range(in_a_row))


def test_a_stage_type_says_when_it_is_idle(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A random model is never right."""
    stages = {"mine": {"type": "own_parts:Rejection", "steps": 2, "questions": 1, "optim": OPTIM}}
    assert run(model, tmp_path, stages=stages) == 2
    message = sentence(capsys)
    assert message.startswith("stage 'mine' had no trainable token in 2 consecutive steps up to")
    assert message.endswith("step 1, because no answer was right: train it longer before.")


@pytest.mark.long
def test_a_reward_that_says_what_is_right(model: Path, tmp_path: Path) -> None:
    """The user-defined reward is the verdict reward, regardless of its name in the recipe."""
    stages = rl(group_filter="accuracy", rewards=PATIENT)
    assert run(model, tmp_path, stages=stages, verdict_reward="failing_parts:Halves") == 0
    found = rows(tmp_path / "run", "rl")
    assert [(row["groups_trained"], row["sampling_batches"]) for row in found] == [(2, 1)] * 2
    assert all(row["grad_norm"] > 0 for row in found)


@pytest.mark.long
def test_equal_rewards_are_told_and_no_reason_to_stop(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """None of the rollouts is correct, so nothing is trained; they may differ later."""
    assert run(model, tmp_path, stages=rl(steps=MAX_IDLE_STEPS + 1)) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert (
        output.count("stage 'rl' had no learning signal in 5 consecutive steps up to step 4") == 1
    )
    assert (
        output.count(
            "stage 'rl' received no learning signal from its rewards: in each of its 6 steps"
        )
        == 1
    )
    found = rows(tmp_path / "run", "rl")
    assert [row["no_signal_group_rate"] for row in found] == [1] * (MAX_IDLE_STEPS + 1)
    assert not any("loss" in row for row in found)


def test_demonstrations_without_a_trainable_token(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Demonstrations that never call a tool have no tool token."""
    record = {
        **{"id": "a", "question": "Who?", "golden_answers": ["2"], "metadata": {}},
        "steps": [{"answer": "2"}],
    }
    file = tmp_path / "bare.jsonl"
    file.write_text(f"{json.dumps(record)}\n" * 2)
    sft = {"type": "sft", "dataset": "demonstrations", "steps": 1, "batch_size": 2, "optim": OPTIM}
    stages = {"sft": {**sft, "train_on": ["tool"]}}
    assert run(model, tmp_path, stages=stages, demonstrations=str(file)) == 2
    assert "2 of 2 demonstrations of stage 'sft' have no trainable token" in sentence(capsys)
    assert not (tmp_path / "run").exists()
