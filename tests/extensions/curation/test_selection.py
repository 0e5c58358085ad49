"""Selection of the questions for reinforcement learning."""

import asyncio
from pathlib import Path

import pytest

from fieldcraft.config.collection import SelectConfig
from fieldcraft.data.decontamination import normalise_text
from fieldcraft.data.sample_tallies import SampleTally, TallyJournal, sample_answers
from fieldcraft.extensions.curation.select import (
    KNOWN_REASON,
    OVERLAP_REASON,
    SOLVED_REASON,
    drop_known,
    drop_solved,
    drop_trained,
)
from fieldcraft.types import Task, UserError

TASKS = [Task(str(n), f"Question {n}?", ("yes",)) for n in range(4)]


def test_r_q_is_at_most_the_share() -> None:
    """A share of 3/10 is accepted and 4/10 is not; the share is recorded."""
    tallies = {str(n): SampleTally(right, 10) for n, right in enumerate((0, 3, 4, 10))}
    found = drop_known(tallies, TASKS, SelectConfig())
    assert [(t.id, t.meta["closed_book"]) for t in found.selected] == [("0", 0.0), ("1", 0.3)]
    assert found.stages[0].dropped == {KNOWN_REASON: 2}
    assert [task.id for task, _, _ in found.dropped] == ["2", "3"]


def test_what_is_solved_eight_of_eight_times_is_left_out() -> None:
    tallies = {str(n): SampleTally(right, 8) for n, right in enumerate((0, 7, 8, 8))}
    found = drop_solved(tallies, TASKS, SelectConfig())
    assert [task.id for task in found.selected] == ["0", "1"]
    assert found.stages[0].dropped == {SOLVED_REASON: 2}


def test_questions_of_supervised_training() -> None:
    trained = {normalise_text(" question  1?"), normalise_text("Question 3?")}
    found = drop_trained(trained, TASKS, SelectConfig())
    assert [task.id for task in found.selected] == ["0", "2"]
    assert found.stages[0].dropped == {OVERLAP_REASON: 2}
    selection = drop_trained(trained, TASKS, SelectConfig(overlap="keep"))
    assert (selection.selected, selection.dropped) == (TASKS, [])


def test_samples_are_counted_and_never_taken_twice(tmp_path: Path) -> None:
    keys: list[str] = []
    down = {"2"}

    async def is_right(task: Task, key: str) -> bool:
        await asyncio.sleep(0)
        if task.id in down:
            raise UserError("the model is down")
        keys.append(key)
        return int(key.rpartition("/")[2]) < int(task.id)

    def run() -> dict[str, SampleTally]:
        tallies, done = TallyJournal(tmp_path / "samples.jsonl"), list[int]()
        asyncio.run(sample_answers(tallies, "toolless", TASKS, 4, 4, is_right, done.append))
        assert done[-1] == 4
        return tallies.get_tallies("toolless")

    with pytest.raises(UserError, match="the model is down"):
        run()
    with (tmp_path / "samples.jsonl").open("a") as file:
        file.write('{"who": "toolless", "id"')  # the state after a kill
    first = list(keys)
    down.clear()
    assert len(first) == 8
    assert run() == {str(n): SampleTally(n, 4) for n in range(4)}
    assert not set(first) & set(keys[8:])
    assert sorted(keys) == sorted(f"toolless/{n}/{k}" for n in range(4) for k in range(4))


def test_a_damaged_journal_is_told(tmp_path: Path) -> None:
    (tmp_path / "samples.jsonl").write_text(
        '{"who": "toolless", "id": "a", "right": "x", "of": 2}\n'
    )
    with pytest.raises(UserError, match=r"line 1 .*remove the line, to sample the question again"):
        TallyJournal(tmp_path / "samples.jsonl")
