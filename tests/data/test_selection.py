"""Which questions reinforcement learning draws from."""

import asyncio
from pathlib import Path

import pytest

from fieldcraft.config.collection import Select
from fieldcraft.data.duplicates import normal_form
from fieldcraft.data.selection import (
    KNOWN,
    OVERLAP,
    SOLVED,
    Tallies,
    Tally,
    not_known,
    not_solved,
    sample,
    without,
)
from fieldcraft.types import Task, UserError

TASKS = [Task(str(n), f"Question {n}?", ("yes",)) for n in range(4)]


def test_r_q_is_at_most_the_share() -> None:
    """3/10 is kept and 4/10 is not; the share is written down."""
    tallies = {str(n): Tally(right, 10) for n, right in enumerate((0, 3, 4, 10))}
    found = not_known(tallies, TASKS, Select())
    assert [(t.id, t.meta["closed_book"]) for t in found.kept] == [("0", 0.0), ("1", 0.3)]
    assert found.cuts[0].dropped == {KNOWN: 2}
    assert [task.id for task, _, _ in found.dropped] == ["2", "3"]


def test_what_is_solved_eight_of_eight_times_is_left_out() -> None:
    tallies = {str(n): Tally(right, 8) for n, right in enumerate((0, 7, 8, 8))}
    found = not_solved(tallies, TASKS, Select())
    assert [task.id for task in found.kept] == ["0", "1"]
    assert found.cuts[0].dropped == {SOLVED: 2}


def test_questions_of_supervised_training() -> None:
    trained = {normal_form(" question  1?"), normal_form("Question 3?")}
    found = without(trained, TASKS, Select())
    assert [task.id for task in found.kept] == ["0", "2"]
    assert found.cuts[0].dropped == {OVERLAP: 2}
    kept = without(trained, TASKS, Select(overlap="keep"))
    assert (kept.kept, kept.dropped) == (TASKS, [])


def test_samples_are_counted_and_never_taken_twice(tmp_path: Path) -> None:
    asked: list[str] = []
    down = {"2"}

    async def is_right(task: Task, key: str) -> bool:
        await asyncio.sleep(0)
        if task.id in down:
            raise UserError("the model is down")
        asked.append(key)
        return int(key.rpartition("/")[2]) < int(task.id)

    def run() -> dict[str, Tally]:
        tallies, done = Tallies(tmp_path / "samples.jsonl"), list[int]()
        asyncio.run(sample(tallies, "toolless", TASKS, 4, 4, is_right, done.append))
        assert done[-1] == 4
        return tallies.of("toolless")

    with pytest.raises(UserError, match="the model is down"):
        run()
    with (tmp_path / "samples.jsonl").open("a") as file:
        file.write('{"who": "toolless", "id"')  # as a kill leaves it
    first = list(asked)
    down.clear()
    assert len(first) == 8
    assert run() == {str(n): Tally(n, 4) for n in range(4)}
    assert not set(first) & set(asked[8:])
    assert sorted(asked) == sorted(f"toolless/{n}/{k}" for n in range(4) for k in range(4))


def test_a_damaged_journal_is_told(tmp_path: Path) -> None:
    (tmp_path / "samples.jsonl").write_text(
        '{"who": "toolless", "id": "a", "right": "x", "of": 2}\n'
    )
    with pytest.raises(UserError, match=r"line 1 .*take the line out, to sample the question anew"):
        Tallies(tmp_path / "samples.jsonl")
