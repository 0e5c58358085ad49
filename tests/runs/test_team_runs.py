"""Runs that collect from a team: models in its seats, or the scripted team of a world."""

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkpoints import tiny_tokenizer
from collecting_parts import settings, status
from fieldcraft.data.steps_io import read_demonstrations
from fieldcraft.dialects import get_dialect
from fieldcraft.dialects.demonstrations import encode_demonstration
from fieldcraft.tools.serving import serving
from fieldcraft.types import Action, Answer, Observation, Role, Thought, UserError
from fieldcraft.worlds.base import make_world
from team_parts import FakeTeam

pytest.importorskip("openai", reason="remote teachers need the extra openai")
COUNTS = {"easy": 3, "hard": 3, "nonsense": 3, "broken": 3, "slow": 3}


@pytest.fixture
def team() -> FakeTeam:
    return FakeTeam()


@pytest.fixture
def url(team: FakeTeam) -> Iterator[str]:
    with serving(team.app) as url:
        yield f"{url}/v1"


def with_team(folder: Path, url: str, *more: str) -> list[str]:
    _, *given = settings(folder, url, COUNTS)
    return ["afm-data", *given, "teacher.seats.double_check.model=judge", *more]


def test_a_team_behind_an_endpoint(
    tmp_path: Path, team: FakeTeam, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given, out = with_team(tmp_path, url), tmp_path / "run"
    assert status("run", *given, "--out", out) == 0
    assert "used by the seat planner" in capsys.readouterr().out
    kinds = Counter(q.split()[0] for q, seat, _ in team.asked if seat == "planner")
    assert kinds.total() == 14  # one question is held out

    shown = read_demonstrations(out / "collect" / "demonstrations.jsonl")
    assert Counter(task.question.split()[3] for task, _ in shown) == {
        kind: kinds[kind] for kind in ("easy", "hard", "slow")
    }
    for name in ("afm-web", "afm-mhqa", "hermes"):
        dialect = get_dialect(name, tiny_tokenizer())
        for task, steps in shown:
            encoded = encode_demonstration(task, steps, dialect, [])
            assert (encoded.well_formed, encoded.answer) == (True, task.answers[0])
    plans = {"easy": 1, "hard": 2, "slow": 2}
    for task, steps in shown:
        kind = task.question.split()[3]
        roles = Counter(step.role for step in steps if isinstance(step, Thought))
        assert roles[Role.PLAN] == plans[kind]
        assert roles[Role.CHECK] == (2 if kind == "slow" else 1)
        seats = task.meta["seats"]
        assert seats["planner"]["requests"] == plans[kind]
        assert seats["planner"]["prompt_tokens"] == 10 * plans[kind]
        assert seats["planner"]["cost"] == pytest.approx(plans[kind] * (10 + 2 * 10) / 1e6)
        assert seats["search"]["requests"] == sum(isinstance(step, Action) for step in steps)
        assert all(use["seconds"] > 0 for use in seats.values())
    models = {(seat, model) for _, seat, model in team.asked}
    assert ("double_check", "judge") in models
    assert {model for seat, model in models if seat != "double_check"} == {"fake"}

    rejected = read_demonstrations(out / "collect" / "rejected.jsonl")
    reasons = Counter(task.meta["rejected"] for task, _ in rejected)
    prose = "neither an action nor an answer: the seat 'double_check': There is no part 'Score:'"
    down = "the request failed: the seat 'lead': status 500 (on fire)"
    assert reasons == {prose: 2 * kinds["nonsense"], down: kinds["broken"]}
    for task, steps in rejected:
        assert steps[1] == Thought(steps[1].text, Role.PLAN)  # what it had written is kept
        assert task.meta["seats"]["planner"]["requests"] == 1

    summary = json.loads((out / "collect" / "summary.json").read_text())
    assert summary["questions"] == {"coa": 14, "both": 0}
    asked = Counter(seat for _, seat, _ in team.asked.elements())
    answered = {name: use["prompt_tokens"] // 10 for name, use in summary["seats"].items()}
    assert answered == {**asked, "lead": asked["lead"] - kinds["broken"]}
    assert summary["usage"]["prompt_tokens"] == 10 * sum(answered.values())
    assert status("show", out) == 0


def test_a_model_that_was_down_is_asked_again_and_nobody_else(
    tmp_path: Path, team: FakeTeam, url: str
) -> None:
    given, out = with_team(tmp_path, url), tmp_path / "run"
    assert status("run", *given, "--out", out) == 0
    (out / "report.json").unlink()  # as if it had been killed before the end
    before, team.repaired = team.asked.copy(), True
    assert status("run", *given, "--out", out) == 0
    new = team.asked - before
    assert {question.split()[0] for question, _, _ in new} == {"broken"}
    assert not [seat for _, seat, _ in new if seat == "planner"]  # its reply was kept
    shown = read_demonstrations(out / "collect" / "demonstrations.jsonl")
    broken = [task for task, _ in shown if "broken" in task.question]
    assert len(broken) == len({question for question, _, _ in new})
    assert "request failed" not in (out / "collect" / "rejected.jsonl").read_text()


def test_check_looks_at_every_seat(
    tmp_path: Path, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = with_team(tmp_path, url)
    assert status("check", *given) == 0
    shown = capsys.readouterr().out
    assert "answers as fake" in shown
    assert "answers as judge" in shown
    assert status("check", *given, f"teacher.seats.lead.url={url}/nowhere") == 2
    assert "does not answer" in capsys.readouterr().err
    assert status("check", "afm-data") == 0
    assert "the team of the world" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("teacher.seats.planer.model=x", "no seat 'planer'; did you mean 'planner'?"),
        ("teacher.seats.lead.modle=x", "the seat 'lead' has no key 'modle'; did you mean 'model'?"),
        ("teacher.seats.lead.temperature=-1", "'temperature' of the seat 'lead': it must be 0"),
        ("teacher.team=afn", "there is no team 'afn'"),
        ("teacher.team=fieldcraft.agents.afm_team:PROMPTS", "is no team: make it"),
        ("teacher.team=null", "so set team as well, as in team: afm"),
        ("teacher.model=null", "the teacher has no name: set teacher.model"),
    ],
)
def test_a_mistake_is_told_in_a_sentence(
    tmp_path: Path, url: str, change: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status("run", *with_team(tmp_path, url, change), "--out", tmp_path / "run") == 2
    assert told in " ".join(capsys.readouterr().err.split())


def test_the_team_of_a_world(tmp_path: Path) -> None:
    given = ["afm-data", "world.people=40", "world.mistakes=1", "collect.questions=12"]
    assert status("run", *given, "--out", tmp_path / "run") == 0
    shown = read_demonstrations(tmp_path / "run" / "collect" / "demonstrations.jsonl")
    assert len(shown) > 5
    for task, steps in shown:
        assert (task.meta["way"], "seats" in task.meta) == ("coa", False)
        assert steps[-1] == Answer(task.answers[0])
        assert any(isinstance(step, Observation) for step in steps)
        assert "Poor" in str(steps)
    with pytest.raises(UserError, match=r"the world has no team: set teacher\.model"):
        make_world("trails", {}, 0).team_chain(shown[0][0], random.Random(0))
