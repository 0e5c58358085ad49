"""Runs whose rewards are criteria and comparisons of a judge: scores and costs in the report."""

import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from starlette.applications import Starlette
from starlette.routing import Route

import fieldcraft as fc
from chat_server import completion
from checkpoints import write_tiny_checkpoint
from cli_parts import status
from fieldcraft.records.metrics import MetricsLog
from fieldcraft.tools.serving import serve_in_thread

CITIES = ("Turin", "Rome", "Oslo", "Bern", "Lima", "Nice")
TASKS = [
    fc.Task(city, f"Describe {city} in two sentences.", (), {"graded_by": "rubric"})
    for city in CITIES
]
BUDGET = {"max_calls": 1, "max_turn_tokens": 8, "max_context_tokens": 800}


def judging_server() -> Starlette:
    """Serve a judge: yes to every criterion, and the longer answer wins."""

    async def chat(request):
        [message] = (await request.json())["messages"]
        lines = re.findall(r"^(?:first|second) answer: (.*)$", message["content"], re.MULTILINE)
        if not lines:
            return completion("Verdict: yes")
        first, second = (len(json.loads(line)) for line in lines)
        return completion(f"Verdict: {'first' if first > second else 'second'}")

    return Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("own_criteria")
    module.short = lambda t: 1.0 - min(len("".join(t.policy_turns)), 40) / 80
    monkeypatch.setitem(sys.modules, "own_criteria", module)
    return module


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("rubric={a: {function: 'own_criteria:gone'}}", "own_criteria"),
        ("rubric={a: {function: 'no_such_module:gone'}}", "no_such_module"),
        ("rubric={a: {function: own}}", "own"),
        ("rubric={a: {weight: 2}}", "either a question or a function"),
        ("rubric={a: {question: 'Is it?', wieght: 2}}", "did you mean 'rubric.a.weight'"),
        ("stages.rl2.rewards={pairwise: 1}", "a judge needs both a url and a model"),
    ],
)
def test_mistakes_in_a_rubric_are_found_before_a_run(
    keys: str, message: str, own: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status("check", "smoke", keys) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert "Traceback" not in errors


@pytest.mark.long
def test_a_rubric_trains_and_the_report_has_its_criteria_and_the_cost_of_the_judge(
    tmp_path: Path, own: ModuleType
) -> None:
    model = write_tiny_checkpoint(tmp_path / "model", "qwen2")
    agent = fc.load(model, dialect="hermes", tools=[], budget=BUDGET)
    rl = fc.Rl(
        steps=2,
        questions_per_step=2,
        group_size=2,
        rewards={"rubric": 1.0, "pairwise": 0.5},
        optim=fc.Optim(lr=1e-3),
    )
    with serve_in_thread(judging_server()) as url:
        trained = agent.train(
            TASKS,
            {"rl": rl},
            out=tmp_path / "run",
            judge={"url": f"{url}/v1", "model": "m", "votes": 1},
            rubric={
                "kind": {"question": "Is it kind?"},
                "short": {"weight": 3, "function": "own_criteria:short"},
            },
            evaluation={"splits": {"heldout": 2}, "workflows": []},
            device="cpu",
        )
        evaluated = trained.evaluate(TASKS[:2])
    rows = MetricsLog(tmp_path / "run" / "rl" / "metrics.jsonl").read_rows()
    assert all(0 < row["rubric/short"] < 1 for row in rows)
    for row in rows:
        mean = (row["rubric/kind"] + 3 * row["rubric/short"]) / 4
        assert row["rubric"] == pytest.approx(mean)
        assert row["pairwise"] == pytest.approx(0.5)  # one wins what the other loses
    report = trained.report
    entry = report["evals"]["rl"]
    assert entry["criteria"].keys() == {"rubric", "rubric/kind", "rubric/short"}
    assert entry["rubric"] == pytest.approx(entry["criteria"]["rubric"])
    requests = sum(row.get("judge/requests", 0) for row in rows)
    judging = report.get("judging", {})
    assert judging.get("training", {}).get("requests", 0) == requests
    assert evaluated["criteria"].keys() == entry["criteria"].keys()
    assert "judging" in (tmp_path / "run" / "report.json").read_text() or not requests
