"""Tests of bench/graders.py, and of the graders on gold solutions of real files."""

import asyncio
import json
from pathlib import Path

import pytest

from fieldcraft.extensions.math.reward import MathReward
from fieldcraft.extensions.sandbox.tool import GradingSandbox
from fieldcraft.rewards.programs import UnitTestReward
from fieldcraft.types import Task, UserError
from script_modules import load_script

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = 10  # items of each file; `-m slow` takes all
MATHEMATICS = ("gsm8k_test_1319.jsonl", "math500.json", "olympiadbench_675_verl.parquet")
PROGRAMS = ("HumanEval.jsonl.gz", "mbpp_974.jsonl")


@pytest.fixture(scope="module")
def bench():
    return load_script("bench/graders.py")


def write(path, records):
    path.write_text(json.dumps(records))
    return path


CHECK = "def check(candidate):\n    pass"


def test_every_kind_of_file_becomes_cases(bench, tmp_path):
    tasks = [{"id": "q", "problem": "?", "answer": "\\frac{1}{2}"}]
    assert bench.read_cases(write(tmp_path / "a.json", tasks)) == [
        bench.Case(
            Task("q", "?", ("\\frac{1}{2}",), {"graded_by": "math"}), "\\boxed{\\frac{1}{2}}"
        )
    ]
    mbpp = {"task_id": 1, "text": "Add.", "code": "def f(): pass", "test_list": ["assert f"]}
    [case] = bench.read_cases(write(tmp_path / "b.json", [mbpp]))
    assert (case.answer, case.right) == ("def f(): pass", True)
    human = {"prompt": "def f():\n", "entry_point": "f", "test": CHECK, "canonical_solution": " 1"}
    [case] = bench.read_cases(write(tmp_path / "c.json", [human]))
    assert case.answer == "def f():\n 1"
    predictions = [{"gold": "1", "pred": "2", "expected": 0}]
    assert bench.read_cases(write(tmp_path / "d.json", predictions)) == [
        bench.Case(Task("0", "", ("1",)), "2", False)
    ]
    ours = [{"GT": "1", "Ans": [{"answer": "1", "equal": True}, {"answer": "2", "equal": False}]}]
    assert bench.read_cases(write(tmp_path / "e.json", ours)) == [
        bench.Case(Task("0.0", "", ("1",)), "1", True),
        bench.Case(Task("0.1", "", ("1",)), "2", False),
    ]
    contest = [{"problem": "?", "tests": {"inputs": ["1"], "outputs": ["1"]}}]
    with pytest.raises(UserError, match="has no gold solution: give another file"):
        bench.read_cases(write(tmp_path / "f.json", contest))


def test_a_row_and_its_exceptions(bench):
    right, wrong = (Task(name, "", ("1",)) for name in ("a", "b"))
    cases = [bench.Case(right, "1"), bench.Case(wrong, "1", False), bench.Case(wrong, "2", False)]
    assert list(bench.row("file", "math", cases, [1.0, 1.0, None])) == [
        "| file | math | 3 | 1 | 33.33% |",
        "file, b, math: 1.0 for gold '1', answer '1', expected 0.0",
        "file, b, math: None for gold '1', answer '2', expected 0.0",
    ]


def exceptions(bench, path, reward, count=None):
    """Return the cases of a file with an unexpected score, by task id."""
    cases = bench.read_cases(path)[:count]
    scores = asyncio.run(bench.grade(reward, cases))
    return {c.task.id for c, s in zip(cases, scores, strict=True) if s != float(c.right)}


@pytest.mark.parametrize("name", MATHEMATICS)
def test_some_gold_answers_are_right(bench, name, shared):
    assert exceptions(bench, shared / "data/math" / name, MathReward(), SAMPLE) == set()


@pytest.mark.parametrize("name", PROGRAMS)
def test_some_gold_programs_are_right(bench, name, shared):
    assert (
        exceptions(bench, shared / "data/code" / name, UnitTestReward(GradingSandbox()), SAMPLE)
        == set()
    )


@pytest.mark.parametrize("name", ["math_verify_cases.jsonl", "olympiadbench_scoring_24.json"])
def test_at_least_as_well_as_math_verify_itself(bench, name, shared):
    cases = bench.read_cases(shared / "data/graders" / name)[: 2 * SAMPLE]
    ours, theirs = (
        sum(s == float(c.right) for c, s in zip(cases, scores, strict=True))
        for scores in (asyncio.run(bench.grade(MathReward(), cases)), bench.directly(cases))
    )
    assert ours >= theirs > 0
