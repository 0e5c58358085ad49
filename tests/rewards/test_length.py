"""The soft overlong punishment, by hand."""

import pytest

from fieldcraft.rewards.length import SoftOverlong
from fieldcraft.types import Author, Segment, Task, Trajectory


def wrote(tokens: int, read: int = 0) -> Trajectory:
    return Trajectory(
        Task("q", "?", ()),
        [
            Segment(Author.PROMPT, [1] * 50, ""),
            Segment(Author.POLICY, [1] * (tokens // 2), ""),
            Segment(Author.TOOL, [1] * read, ""),
            Segment(Author.POLICY, [1] * (tokens - tokens // 2), ""),
        ],
    )


@pytest.mark.parametrize(
    ("tokens", "score"), [(0, 0), (15, 0), (16, 0), (17, -0.25), (19, -0.75), (20, -1), (33, -1)]
)
def test_it_falls_in_a_straight_line(tokens: int, score: float) -> None:
    assert SoftOverlong(limit=20, cache=4)([wrote(tokens)]) == [pytest.approx(score)]


def test_only_the_policys_tokens_count() -> None:
    assert SoftOverlong(20, 4)([wrote(16, read=500), wrote(18, read=500)]) == [0, -0.5]
