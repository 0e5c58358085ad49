"""The reward `math`, and the processes that compare for it."""

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from fieldcraft.extensions.math.reward import MathGraderPool, MathReward
from fieldcraft.types import Status, Task, Trajectory

TOWER = "9^{9^{9^{9}}}"  # sympy does not finish


@pytest.fixture(scope="module")
def pool() -> Iterator[MathGraderPool]:
    found = MathGraderPool(workers=1, seconds=2.0)
    yield found
    found.close()


def graded(pool: MathGraderPool, gold: str, answer: str) -> float | None:
    return pool.submit([gold], answer).result()


@pytest.mark.parametrize(
    ("gold", "answer", "score"),
    [
        ("\\frac{1}{2}", "0.5", 1.0),
        ("18", "18", 1.0),
        ("18", "\\$18.00", 1.0),
        ("18", "17", 0.0),
        ("18", "I do not know", 0.0),
        ("18", "", 0.0),
        ("\\left(3, \\frac{\\pi}{2}\\right)", "(3, \\pi/2)", 1.0),
        ("(1, 2)", "(2, 1)", 0.0),
        ("2\\sqrt{3}", "\\sqrt{12}", 1.0),
        ("x^2 - 1", "(x-1)(x+1)", 1.0),
        ("5", "so it is \\boxed{5}", 1.0),
        ("1000.99", "1000,99", 1.0),
        ("7425000", "7,425,000", 1.0),
        ("33", "033", 1.0),  # as AIME writes answers
        ("500 cents", "USD 5", 1.0),
        ("500 cents", "us $5", 1.0),
        ("5 euros", "EUR 5", 1.0),
        ("5 euros", "USD 5", 0.0),
        ("5 dollars", "eur 5", 0.0),
    ],
)
def test_answers_that_mean_the_same(
    pool: MathGraderPool, gold: str, answer: str, score: float
) -> None:
    assert graded(pool, gold, answer) == score


@pytest.mark.long
def test_an_answer_that_never_ends_is_wrong_and_the_next_one_is_graded(
    pool: MathGraderPool,
) -> None:
    assert graded(pool, "18", TOWER) == 0.0
    assert graded(pool, "18", "18.0") == 1.0


def test_gold_answers_that_cannot_be_read_are_not_gradable(pool: MathGraderPool) -> None:
    assert graded(pool, "", "5") is None


def test_a_worker_that_is_killed_from_outside_is_replaced(pool: MathGraderPool) -> None:
    assert graded(pool, "18", "18.0") == 1.0
    worker = pool.pool._idle.get()
    os.kill(worker._process.pid, signal.SIGKILL)
    pool.pool._idle.put(worker)
    assert graded(pool, "18", "18.0") == 1.0
    assert worker._process.returncode == -signal.SIGKILL


def score(answer: str | None, *golds: str) -> float | None:
    trajectory = Trajectory(Task("q", "?", golds), status=Status.ANSWERED, answer=answer)
    return asyncio.run(MathReward().score_trajectory(trajectory))


def test_the_reward() -> None:
    assert score("0.5", "\\frac{1}{2}") == 1.0
    assert score("2", "1", "\\frac{4}{2}") == 1.0  # any gold answer
    assert score(None, "1") == score(" ", "1") == 0.0
    assert score("1") is None
    assert score("Oslo !", "Oslo!") == 1.0  # equal text is not parsed
    assert score("1 1/2", "11/2") == 0.0  # neither are these equal texts
