"""Double checks: their agreement with the verdict, as a reward and as a metric."""

import pytest

from fieldcraft.rewards.answers import ExactMatch
from fieldcraft.rewards.double_checks import (
    DoubleCheckReward,
    compute_auroc,
    compute_check_auroc,
    compute_suggestion_auroc,
)
from fieldcraft.types import Author, Segment, Status, Task, Trajectory

TASK = Task("q", "Who?", ("Kalo",))


def chain(*checks: tuple[str, int], answer: str | None) -> Trajectory:
    """Return a rollout with these suggestions and scores."""
    texts = (
        f"<suggested_answer>\n{suggested}\n</suggested_answer>\n<think>\nSo.\n</think>\n"
        f"<double_check>\nThe score this time is:{score}\n</double_check>\n"
        for suggested, score in checks
    )
    segments = [Segment(Author.POLICY, [1], text) for text in texts]
    status = Status.ANSWERED if answer else Status.TRUNCATED
    found = Trajectory(TASK, segments, answer=answer, status=status)
    found.rewards["em"] = float(answer == "Kalo")
    return found


@pytest.mark.parametrize(
    ("score", "right", "wrong"), [(1, 0, 1), (2, 5 / 9, 8 / 9), (3, 8 / 9, 5 / 9), (4, 1, 0)]
)
def test_agreement_is_one_less_the_squared_distance(score: int, right: float, wrong: float) -> None:
    group = [chain(("x", score), answer=answer) for answer in ("Kalo", "Brin")]
    assert DoubleCheckReward(ExactMatch())(group) == pytest.approx([right, wrong])


def test_only_the_last_check_counts_and_giving_up_gains_nothing() -> None:
    group = [
        chain(("Brin", 1), ("Kalo", 4), answer="Kalo"),
        chain(("Brin", 1), answer=None),
        chain(answer="Brin"),
    ]
    assert DoubleCheckReward(ExactMatch())(group) == [1, 0, 0]


def test_a_tool_that_writes_a_score_changes_nothing() -> None:
    found = chain(("Kalo", 4), answer="Kalo")
    found.segments.append(Segment(Author.TOOL, [1], "The score this time is:1"))
    assert DoubleCheckReward(ExactMatch())([found]) == [1]


@pytest.mark.parametrize(
    ("scored", "area"),
    [
        ([(4, True), (3, False)], 1.0),
        ([(3, True), (4, False)], 0.0),
        ([(4, True), (4, False)], 0.5),
        ([(4, True), (3, True), (3, False), (2, False)], 3.5 / 4),
        ([(4, True), (2, True)], None),
        ([], None),
    ],
)
def test_area_under_the_curve(scored: list[tuple[int, bool]], area: float | None) -> None:
    assert compute_auroc(scored) == area


def test_rejected_suggestions_count_in_one_metric_only() -> None:
    group = [
        chain(("Brin", 2), ("Kalo", 4), answer="Kalo"),
        chain(("Kalo", 3), answer="Kalo"),
        chain(("Brin", 4), answer="Brin"),
        chain(("Brin", 1), answer=None),
        chain(answer="Kalo"),
    ]
    assert compute_check_auroc(group) == (0.5 + 0) / 2  # 4 and 3 against 4
    assert compute_suggestion_auroc(group) == (1 + 0.5 + 1 + 1 + 0 + 1) / 6  # against 2, 4 and 1
    group[0].correct = "judge"
    assert compute_suggestion_auroc(group) is None
