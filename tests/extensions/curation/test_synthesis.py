"""Synthesised questions: accepted drafts, and no draft is made twice."""

import asyncio
import json
from pathlib import Path

import pytest

from fieldcraft.data.grading import Grader
from fieldcraft.data.world import make_world
from fieldcraft.extensions.curation.question_generators import WorldQuestionGenerator
from fieldcraft.extensions.curation.synthesis import DraftJournal, synthesise
from fieldcraft.rewards.answers import ExactMatch
from fieldcraft.types import Task, UserError


class Scripted:
    """Maker that turns the numbers of a script into questions: x nothing, c known, w wrong, else
    good."""

    kinds = ("depth",)

    def __init__(self, script: str) -> None:
        self.script = script
        self.asked: list[str] = []

    async def generate(self, kind: str, key: str) -> Task | str:
        self.asked.append(key)
        letter = self.script[int(key.rpartition(":")[2]) % len(self.script)]
        return "nothing" if letter == "x" else Task(letter, f"{letter}?", ("yes",))

    async def check_closed_book(self, task: Task, key: str) -> str:
        return "right without tools" if task.id == "c" else ""

    async def check_answer(self, task: Task, key: str) -> str:
        return "another answer" if task.id == "w" else ""


def make(maker: Scripted, folder: Path, count: int) -> DraftJournal:
    drafts, counts = DraftJournal(folder / "drafts.jsonl"), list[int]()
    asyncio.run(synthesise(maker, {"depth": count}, 7, drafts, 2, counts.append))
    return drafts


def test_each_draft_fails_one_rule_at_most(tmp_path: Path) -> None:
    drafts = make(Scripted("axcwab"), tmp_path, 2)
    assert [task.id for task in drafts.get_accepted_tasks("depth")] == ["a", "b"]
    counts = [
        (cut.name, cut.before, cut.after, dict(cut.dropped)) for cut in drafts.get_filter_stages()
    ]
    assert counts == [
        ("made", 6, 5, {"nothing": 1}),
        ("new", 5, 4, {"it was made before": 1}),
        ("closed", 4, 3, {"right without tools": 1}),
        ("right", 3, 2, {"another answer": 1}),
    ]


def test_the_journal_is_gone_on_with(tmp_path: Path) -> None:
    first = Scripted("abcdef")
    make(first, tmp_path, 2)
    second = Scripted("abcdef")
    drafts = make(second, tmp_path, 4)
    assert [task.id for task in drafts.get_accepted_tasks("depth")] == ["a", "b", "d", "e"]
    assert not set(first.asked) & set(second.asked)


def test_it_ends_where_no_draft_passes(tmp_path: Path) -> None:
    maker = Scripted("x")
    assert make(maker, tmp_path, 2).get_accepted_tasks("depth") == []
    assert len(maker.asked) == 20


def test_a_damaged_journal_is_told(tmp_path: Path) -> None:
    (tmp_path / "drafts.jsonl").write_text(json.dumps({"kind": "depth"}) + "\n")
    with pytest.raises(UserError, match=r"line 1 .*remove the line, to make the question again"):
        DraftJournal(tmp_path / "drafts.jsonl")


def test_a_world_refuses_what_was_taught_and_what_is_wrong() -> None:
    world = make_world("atlas", {"people": 60}, 0)
    tasks = world.training_questions(100)
    maker = WorldQuestionGenerator(world, tasks, Grader(ExactMatch()))
    made = [asyncio.run(maker.generate("depth", str(n))) for n in range(40)]
    good = [task for task in made if isinstance(task, Task)]
    verdicts = {(t.meta["known"], asyncio.run(maker.check_closed_book(t, ""))) for t in good}
    assert verdicts == {(True, "the model was taught all of it"), (False, "")}
    assert {asyncio.run(maker.check_answer(t, "")) for t in good} == {""}
    false = Task(good[0].id, good[0].question, ("Nowhere",), good[0].meta)
    assert asyncio.run(maker.check_answer(false, "")) == "the passages give another answer"
