"""Teachers that answer the questions of an evaluation: a world's teachers, and models."""

import json
from pathlib import Path
from typing import Any

import pytest

from checkpoints import write_tiny_checkpoint
from collecting_parts import FakeTeacher, settings, status
from fieldcraft.dialects.afm_grades import make_double_check
from fieldcraft.evaluation.summary import RequestCost
from fieldcraft.extensions.curation.team_costs import compute_team_cost
from fieldcraft.records.trajectories import read_trajectories
from fieldcraft.tools.serving import serve_in_thread
from fieldcraft.types import Answer, Observation, Thought, ThoughtRole, ToolCall

TINY = [
    *("afm-mini", "device=cpu", "world.people=40", "world.variants=2", "tiny_model.layers=2"),
    *(
        "tiny_model.width=32",
        "tiny_model.heads=2",
        "budget.max_turn_tokens=8",
        "budget.max_context_tokens=900",
    ),
    *("evaluation.splits.heldout=4", "stages.base.max_examples=4", "stages.base.batch_size=2"),
    *("stages.sft.max_examples=40", "stages.sft.batch_size=2", "stages.rl.steps=1"),
    *(
        "stages.rl.questions_per_step=2",
        "stages.rl.group_size=2",
        "select.questions=6",
        "select.closed_book_samples=2",
    ),
    *(
        "select.max_closed_book_accuracy=1",
        "stages.rl.max_sampling_batches=1",
        "stages.rl.train_truncated=true",
    ),
    "stages.rl.group_filter=none",
]


def report(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "report.json").read_text())
    return found


@pytest.mark.slow
def test_the_team_and_the_agent_of_a_world_are_rows_of_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert status("run", *TINY, "world.mistakes=0.9", "--out", out) == 0
    evals = report(out)["evals"]
    assert [*evals] == ["team", "lone", "sft", "rl"]
    team, lone = evals["team"], evals["lone"]
    assert team["em"] == 1.0 > lone["em"]
    assert team["n"] == 3 * 4
    assert team["prompt_tokens_mean"] > 4 * lone["prompt_tokens_mean"]
    assert team["requests_mean"] > 2 * lone["requests_mean"]
    assert lone["requests_mean"] == pytest.approx(lone["calls_mean"] + 1)
    assert team["cost_per_success"] > 0
    output = capsys.readouterr().out
    assert "tokens per\nsuccess" not in output
    assert "A success is" in output
    assert "best of n" in output
    assert "pass@3" in output
    [first, *_] = read_trajectories(out / "evaluations" / "team.jsonl")
    assert first.well_formed
    assert first.task.meta["spent"]["requests"] > 5
    page = (out / "report.html").read_text()
    assert "Answer costs" in page
    assert "Several samples of a question" in page


def test_a_model_behind_an_endpoint_answers_as_one_agent(tmp_path: Path) -> None:
    """The fake model knows the easy questions, and guesses the hard ones unless it searches."""
    pytest.importorskip("openai", reason="remote models need the extra openai")
    teacher, out = FakeTeacher(), tmp_path / "run"
    with serve_in_thread(teacher.app) as url:
        _, *given = settings(tmp_path, f"{url}/v1", {"hard": 6, "nonsense": 4})
        given = [g for g in given if not g.startswith(("collect", "evaluation"))]
        recipe = tmp_path / "mine.yaml"
        recipe.write_text(
            "name: mine\ndialect: afm-mhqa\nstages: {}\n"
            "evaluation: {splits: {heldout: 5}, workflows: [], teachers: [lone]}\n"
        )
        model = write_tiny_checkpoint(tmp_path / "model", "qwen2", seed=0)
        arguments = [recipe, *given, f"model={model}", "budget.max_turn_tokens=8", "--out", out]
        assert status("run", *arguments) == 0
    rows = list(read_trajectories(out / "evaluations" / "lone.jsonl"))
    for row in rows:
        kind = row.task.question.split()[3]
        if kind == "hard":
            assert (row.is_correct, row.num_executed_calls) == (True, 1)
            assert row.task.meta["spent"] == {
                "requests": 2, "read": 200, "written": 20, "cost": pytest.approx(0.0004),
                "instructions": 0,
            }  # fmt: skip
        else:
            assert (row.is_correct, row.answer, row.well_formed) == (False, None, False)
            assert row.task.meta["spent"]["requests"] == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("teacher.team=null", "evaluation.teachers names the team, so set teacher.team, as in afm"),
        ("evaluation.samples=1", "a verifier picks one of several samples: set samples, as in 3"),
        ("evaluation.verifier=votes", "did you mean 'vote'"),
        ("evaluation.verifier=judge", "a judge needs both a url and a model"),
        ("evaluation.teachers=[crowd]", "evaluation.teachers"),
    ],
)
def test_a_mistake_is_told_in_a_sentence(
    change: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status("check", *TINY, change) == 2
    captured = capsys.readouterr()
    assert message in " ".join((captured.err + captured.out).split())


def test_a_world_without_a_team_is_told_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(
        "name: mine\ndialect: torl\ntools: [python]\nworld: {name: trails}\n"
        "evaluation: {workflows: [], teachers: [lone]}\n"
        "stages: {base: {type: sft, dataset: base, steps: 1, batch_size: 2, optim: {lr: 1.0e-3}}}\n"
    )
    assert status("check", recipe) == 2
    assert "the world has no scripted agent: set teacher.model" in " ".join(
        capsys.readouterr().err.split()
    )


def test_the_cost_of_a_team_counts_what_each_member_reads() -> None:
    """Tokens are words here; each step has a label of its own, such as `Thought:`."""
    steps = [
        Thought("I plan."),  # 3 words with its label
        Thought("Look up Ada.", ThoughtRole.PLAN),  # 4
        Thought("I search."),  # 3
        ToolCall("search", {"query": "Ada"}),  # 4: Call: search {"query": "Ada"}
        Observation("Ada lives in Oslo."),  # 5
        Thought("I know."),  # 3
        Thought("Oslo", ThoughtRole.SUGGEST),  # 3
        Thought("It is right."),  # 4
        make_double_check(4),  # 7
        Answer("Oslo"),
    ]
    prompts = {"planner": "You plan.", "lead": "You lead it.", "search": "You search the web."}
    cost = compute_team_cost("Where is Ada?", steps, prompts, lambda text: len(text.split()))
    # planner, lead, search, lead, suggested_answer, double_check
    chains = 0 + 7 + 7 + 19 + 19 + 25
    instructions = 2 + 3 + 4 + 3
    written = 7 + 0 + 7 + 0 + 6 + 11
    assert cost == RequestCost(6, chains + 6 * 3 + instructions, written, None, instructions)
