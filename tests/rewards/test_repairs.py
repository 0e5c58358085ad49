"""The reward for corrected mistakes."""

import pytest

from fieldcraft.rewards.answers import ExactMatch
from fieldcraft.rewards.rollouts import RepairReward
from fieldcraft.types import CallOutcome, CallRecord, Status, Task, Trajectory

TASK = Task("q", "Who?", ("Kalo",))
OK, FAILED, MALFORMED = CallOutcome.OK, CallOutcome.FAILED, CallOutcome.MALFORMED


@pytest.mark.parametrize(
    ("outcomes", "score"),
    [
        ([], 0),
        ([OK], 0),
        ([FAILED], 0),
        ([FAILED, OK], 1),
        ([MALFORMED, OK], 1),
        ([OK, FAILED], 0),
        ([CallOutcome.REFUSED, OK], 0),
        ([FAILED, FAILED, OK], 1),
    ],
)
def test_a_failed_call_that_is_followed_by_a_good_one(
    outcomes: list[CallOutcome], score: int
) -> None:
    calls = [CallRecord("python", {}, "", outcome, 0.0) for outcome in outcomes]
    right, wrong = (
        Trajectory(TASK, calls=calls, status=Status.ANSWERED, answer=answer)
        for answer in ("Kalo", "Brin")
    )
    assert RepairReward(ExactMatch())([right, wrong]) == [score, 0]


def test_another_tool_repairs_nothing() -> None:
    calls = [CallRecord("python", {}, "", FAILED, 0.0), CallRecord("search", {}, "", OK, 0.0)]
    found = Trajectory(TASK, calls=calls, status=Status.ANSWERED, answer="Kalo")
    assert RepairReward(ExactMatch())([found]) == [0]
