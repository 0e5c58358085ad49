"""Runs that collect from a team: models as its members, or the scripted team of a world."""

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from checkpoints import tiny_tokenizer
from collecting_parts import settings, status
from fieldcraft.data.steps_io import read_demonstrations
from fieldcraft.data.world import make_world
from fieldcraft.dialects import make_dialect
from fieldcraft.dialects.encoding import encode_demonstration
from fieldcraft.tools.serving import serve_in_thread
from fieldcraft.types import Answer, Observation, Thought, ThoughtRole, ToolCall, UserError
from team_parts import FakeTeam

pytest.importorskip("openai", reason="remote teachers need the extra openai")
COUNTS = {"easy": 3, "hard": 3, "nonsense": 3, "broken": 3, "slow": 3}


@pytest.fixture
def team() -> FakeTeam:
    return FakeTeam()


@pytest.fixture
def url(team: FakeTeam) -> Iterator[str]:
    with serve_in_thread(team.app) as url:
        yield f"{url}/v1"


def with_team(folder: Path, url: str, *more: str) -> list[str]:
    _, *given = settings(folder, url, COUNTS)
    return ["afm-data", *given, "teacher.members.double_check.model=judge", *more]


def test_a_team_behind_an_endpoint(
    tmp_path: Path, team: FakeTeam, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given, out = with_team(tmp_path, url), tmp_path / "run"
    assert status("run", *given, "--out", out) == 0
    assert "used by the team member planner" in capsys.readouterr().out
    kinds = Counter(q.split()[0] for q, member, _ in team.asked if member == "planner")
    assert kinds.total() == 14  # one question is held out

    demonstrations = read_demonstrations(out / "collect" / "demonstrations.jsonl")
    assert Counter(task.question.split()[3] for task, _ in demonstrations) == {
        kind: kinds[kind] for kind in ("easy", "hard", "slow")
    }
    for name in ("afm-web", "afm-mhqa", "hermes"):
        dialect = make_dialect(name, tiny_tokenizer())
        for task, steps in demonstrations:
            encoded = encode_demonstration(task, steps, dialect, [])
            assert (encoded.well_formed, encoded.answer) == (True, task.answers[0])
    plans = {"easy": 1, "hard": 2, "slow": 2}
    for task, steps in demonstrations:
        kind = task.question.split()[3]
        roles = Counter(step.role for step in steps if isinstance(step, Thought))
        assert roles[ThoughtRole.PLAN] == plans[kind]
        assert roles[ThoughtRole.CHECK] == (2 if kind == "slow" else 1)
        seats = task.meta["seats"]
        assert seats["planner"]["requests"] == plans[kind]
        assert seats["planner"]["prompt_tokens"] == 10 * plans[kind]
        assert seats["planner"]["cost"] == pytest.approx(plans[kind] * (10 + 2 * 10) / 1e6)
        assert seats["search"]["requests"] == sum(isinstance(step, ToolCall) for step in steps)
        assert all(use["seconds"] > 0 for use in seats.values())
    models = {(member, model) for _, member, model in team.asked}
    assert ("double_check", "judge") in models
    assert {model for member, model in models if member != "double_check"} == {"fake"}

    rejected = read_demonstrations(out / "collect" / "rejected.jsonl")
    reasons = Counter(task.meta["rejected"] for task, _ in rejected)
    missing = "the team member 'double_check': There is no part 'Score:'"
    prose = f"neither an action nor an answer: {missing}"
    down = "the request failed: the team member 'lead': status 500 (on fire)"
    assert reasons == {prose: 2 * kinds["nonsense"], down: kinds["broken"]}
    for task, steps in rejected:
        assert steps[1] == Thought(steps[1].text, ThoughtRole.PLAN)  # its files are retained
        assert task.meta["seats"]["planner"]["requests"] == 1

    summary = json.loads((out / "collect" / "summary.json").read_text())
    assert summary["questions"] == {"coa": 14, "both": 0}
    requests = Counter(member for _, member, _ in team.asked.elements())
    answered = {name: use["prompt_tokens"] // 10 for name, use in summary["seats"].items()}
    assert answered == {**requests, "lead": requests["lead"] - kinds["broken"]}
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
    assert not [member for _, member, _ in new if member == "planner"]  # its reply was stored
    demonstrations = read_demonstrations(out / "collect" / "demonstrations.jsonl")
    broken = [task for task, _ in demonstrations if "broken" in task.question]
    assert len(broken) == len({question for question, _, _ in new})
    assert "request failed" not in (out / "collect" / "rejected.jsonl").read_text()


def test_check_looks_at_every_seat(
    tmp_path: Path, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = with_team(tmp_path, url)
    assert status("check", *given) == 0
    output = capsys.readouterr().out
    assert "answers as fake" in output
    assert "answers as judge" in output
    assert status("check", *given, f"teacher.members.lead.url={url}/nowhere") == 2
    assert "does not answer" in capsys.readouterr().err
    assert status("check", *given, "teacher.members.leed.temperature=1") == 2
    assert "has no member 'leed'; did you mean 'lead'?" in " ".join(capsys.readouterr().err.split())
    assert status("check", "afm-data") == 0
    assert "the team of the world" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("teacher.members.planer.model=x", "no member 'planer'; did you mean 'planner'?"),
        ("teacher.members.lead.modle=x", "member 'lead' has no key 'modle'; did you mean 'model'?"),
        ("teacher.members.lead.temperature=-1", "'temperature' of the member 'lead': it must be 0"),
        ("teacher.team=afn", "unknown team 'afn'"),
        ("teacher.team=fieldcraft.extensions.methods.afm_team:PROMPTS", "is not a team: make it"),
        ("teacher.team=null", "set it, as in team: afm"),
        ("teacher.model=null", "the teacher has no name: set teacher.model"),
    ],
)
def test_a_mistake_is_told_in_a_sentence(
    tmp_path: Path, url: str, change: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status("run", *with_team(tmp_path, url, change), "--out", tmp_path / "run") == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_the_team_of_a_world(tmp_path: Path) -> None:
    given = ["afm-data", "world.people=40", "world.mistakes=1", "collect.questions=12"]
    assert status("run", *given, "--out", tmp_path / "run") == 0
    demonstrations = read_demonstrations(tmp_path / "run" / "collect" / "demonstrations.jsonl")
    assert len(demonstrations) > 5
    for task, steps in demonstrations:
        assert (task.meta["way"], "seats" in task.meta) == ("coa", False)
        assert steps[-1] == Answer(task.answers[0])
        assert any(isinstance(step, Observation) for step in steps)
        assert "Poor" in str(steps)
    with pytest.raises(UserError, match=r"the world has no scripted team: set teacher\.model"):
        make_world("trails", {}, 0).team_demonstration(demonstrations[0][0], random.Random(0))
