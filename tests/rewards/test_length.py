"""The soft overlong punishment, by hand."""

import pytest

from fieldcraft.rewards.rollouts import SoftOverlongPenalty
from fieldcraft.types import Author, Segment, Task, Trajectory


def chain(prompt: int, wrote: int, read: int = 0, more: int = 0) -> list[Segment]:
    """Return a prompt, a turn, an observation and another turn, with these token counts."""
    lengths = zip(
        (Author.PROMPT, Author.POLICY, Author.TOOL, Author.POLICY),
        (prompt, wrote, read, more),
        strict=True,
    )
    return [Segment(author, [1] * length, "") for author, length in lengths]


def rollout(*parts: list[Segment]) -> Trajectory:
    folds = [sum(map(len, parts[:n])) for n in range(1, len(parts))]
    return Trajectory(Task("q", "?", ()), [s for part in parts for s in part], folds=folds)


@pytest.mark.parametrize(
    ("tokens", "score"), [(0, 0), (5, 0), (6, 0), (7, -0.25), (9, -0.75), (10, -1), (23, -1)]
)
def test_it_falls_in_a_straight_line(tokens: int, score: float) -> None:
    assert SoftOverlongPenalty(limit=20, cache=4)([rollout(chain(10, tokens))]) == [
        pytest.approx(score)
    ]


def test_what_a_rollout_read_leaves_it_less_room() -> None:
    """With a budget of 100 tokens, a prompt of 20 and an observation of 50 leave 30 to the policy.
    Its own 30 tokens alone would never come near the limit."""
    scores = SoftOverlongPenalty(limit=100, cache=20)(
        [
            rollout(chain(20, 5, 50, 5)),  # 80 tokens: just at the edge of the penalty
            rollout(chain(20, 5, 50, 10)),  # 85
            rollout(chain(20, 5, 50, 25)),  # 100: full, and so truncated
            rollout(chain(20, 30)),  # as many policy tokens, and no observation
            rollout(chain(20, 5, 90)),  # the observation alone exceeded the limit
        ]
    )
    assert scores == [0, -0.25, -1, 0, -1]


def test_of_a_folded_rollout_the_longest_chain_counts() -> None:
    short, long = chain(10, 40, 20), chain(30, 50, 10)
    assert SoftOverlongPenalty(100, 20)([rollout(short, long), rollout(short, short)]) == [-0.5, 0]
