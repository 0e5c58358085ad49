"""Filters that inspect questions: tests of programs, and proofs."""

import asyncio
from pathlib import Path

import pytest

from checkpoints import tiny_tokenizer
from fieldcraft.data.grading import Grader
from fieldcraft.data.tasks import read_tasks
from fieldcraft.dialects import make_dialect
from fieldcraft.extensions.curation.builtin_filters import asks_for_proof, count_tests
from fieldcraft.extensions.curation.filters import apply_filters
from fieldcraft.rewards.answers import ExactMatch
from fieldcraft.types import Answer, DemoStep, Task, Thought

DATA = Path(__file__).parents[4] / "shared" / "data"
MATHEMATICS = ("math500.json", "gsm8k_test_1319.jsonl", "olympiadbench_675_verl.parquet")
STEPS: list[DemoStep] = [Thought("So."), Answer("1")]


def stdin(count: int) -> dict[str, object]:
    return {"stdin_tests": [{"input": str(n), "output": "1"} for n in range(count)]}


def test_tests_are_counted() -> None:
    check = "def check(f):\n    assert f(1) == 1\n    assert f(2) == 2\n\ncheck(f)"
    assert count_tests(Task("a", "Write f.", (), {"unit_tests": [check, "f(3)", "assert ("]})) == 4
    assert count_tests(Task("b", "Write it.", (), stdin(3))) == 3
    assert count_tests(Task("c", "How many?", ("3",))) is None


def test_programs_with_few_tests_are_left_out() -> None:
    tasks = [Task(str(n), "Write it.", (), stdin(n)) for n in (49, 50)]
    tasks.append(Task("sum", "How many?", ("3",)))
    dialect = make_dialect("afm-code", tiny_tokenizer())
    chains = [(task, STEPS) for task in tasks]
    grader = Grader(ExactMatch())
    rules: dict[str, dict[str, int]] = {"tests": {}, "proofs": {}}
    found = asyncio.run(apply_filters(chains, rules, dialect, grader, 0))
    assert [chain.task.id for chain in found.accepted] == ["50", "sum"]
    assert [(rule, why) for _, rule, why in found.dropped] == [("tests", "fewer than 50 tests")]
    proof = [(Task("p", "Prove that 2 is prime.", ("",)), STEPS)]
    found = asyncio.run(apply_filters(proof, {"proofs": {}}, dialect, grader, 0))
    assert [(rule, why) for _, rule, why in found.dropped] == [("proofs", "a proof")]


@pytest.mark.parametrize(
    ("question", "is_proof"),
    [
        ("Let $n$ be odd. Prove that $n^2$ is odd.", True),
        ("Show that there are infinitely many primes which are odd.", True),
        ("Prove that one can find a number which divides both.", True),
        ("Give a complete proof of the theorem of Wilson.", True),
        ("Show that the sum is finite, and determine its average.", False),
        ("Prove that it is finite. How many are there?", False),
        ("Find the smallest $n$, or show that no such $n$ exists.", False),
        ("What is 6 times 7?", False),
        ("Compute the improvement.", False),
    ],
)
def test_a_proof_asks_for_nothing_else(question: str, is_proof: bool) -> None:
    assert asks_for_proof(Task("t", question, ("1",))) == is_proof


def test_what_else_says_whether_it_is_a_proof() -> None:
    question = "Show that the program ends, and print yes."
    assert asks_for_proof(Task("t", question, ()))
    assert not asks_for_proof(Task("t", question, (), stdin(1)))  # a program, which is tested
    assert asks_for_proof(Task("t", "A triangle has two equal sides.", (), {"type": "Proof"}))


@pytest.mark.skipif(not DATA.exists(), reason="real data are in ../shared, which is not there")
@pytest.mark.parametrize("name", MATHEMATICS)
def test_published_questions_with_a_result_are_no_proofs(name: str) -> None:
    tasks = read_tasks(DATA / "math" / name)
    assert len(tasks) >= 500
    assert [task.question for task in tasks if asks_for_proof(task)] == []
