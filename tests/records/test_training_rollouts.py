"""The training rollouts that a run records for inspection."""

from pathlib import Path

import pytest

from fieldcraft.records.training_rollouts import (
    TrainingRollout,
    is_recorded_step,
    read_training_rollouts,
    write_training_rollouts,
)
from fieldcraft.types import Author, Segment, Task, Trajectory, UserError


def rollout(name: str) -> Trajectory:
    segments = [Segment(Author.PROMPT, [1], "?"), Segment(Author.POLICY, [2, 3], "!", [-0.5, -1.0])]
    return Trajectory(Task(name, "?", ("x",)), segments)


def test_what_is_kept_of_a_stage() -> None:
    assert [n for n in range(5) if is_recorded_step(n, 5)] == [0, 1, 2, 3, 4]
    assert [n for n in range(1) if is_recorded_step(n, 1)] == [0]
    recorded = [n for n in range(111) if is_recorded_step(n, 111)]
    assert recorded == [0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110]


def test_the_rollouts_of_a_step_come_back_and_a_repeated_step_replaces_them(tmp_path: Path) -> None:
    known = TrainingRollout(0, [0.0, 0.5, -0.25], rollout("a"), [0.0, 1.5, 0.25], [0.0, 1.0, 0.75])
    first = [known, TrainingRollout(0, None, rollout("a"))]
    later = [TrainingRollout(10, [], rollout("b"))]
    write_training_rollouts(tmp_path, later)
    write_training_rollouts(tmp_path, [TrainingRollout(0, None, rollout("old"))])
    write_training_rollouts(tmp_path, first)
    assert [*read_training_rollouts(tmp_path)] == [*first, *later]
    assert [*read_training_rollouts(tmp_path / "none")] == []


def test_what_an_earlier_version_kept_is_read(tmp_path: Path) -> None:
    write_training_rollouts(tmp_path, [TrainingRollout(3, [0.0, 0.5], rollout("a"))])
    file = tmp_path / "000003.jsonl"
    line = file.read_text().replace(', "entropies": null, "ratios": null', "")
    assert "ratios" not in line
    file.write_text(line)
    assert [*read_training_rollouts(tmp_path)] == [TrainingRollout(3, [0.0, 0.5], rollout("a"))]


@pytest.mark.parametrize("line", ["{", '{"step": 1}', "[]", '{"step": 1, "advantages": null}'])
def test_a_damaged_file_is_named(tmp_path: Path, line: str) -> None:
    write_training_rollouts(tmp_path, [TrainingRollout(3, None, rollout("a"))])
    file = tmp_path / "000003.jsonl"
    file.write_text(f"{file.read_text()}{line}\n")
    with pytest.raises(
        UserError, match=f"{file}, line 2 .*; rename {file} to {file.name}.damaged, and the report"
    ):
        list(read_training_rollouts(tmp_path))


def test_ids_that_no_token_has_are_refused(tmp_path: Path) -> None:
    odd = rollout("a")
    odd.segments[0].ids = [-1]
    write_training_rollouts(tmp_path, [TrainingRollout(0, None, odd)])
    with pytest.raises(UserError, match="invalid token ids"):
        list(read_training_rollouts(tmp_path))
