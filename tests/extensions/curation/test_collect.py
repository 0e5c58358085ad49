"""Rejection sampling: number of attempts per question, accepted samples, and resumption."""

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fieldcraft.config.collection import CollectConfig
from fieldcraft.data.grading import Grader
from fieldcraft.data.steps_io import ContrastivePair, read_demonstrations, read_pairs
from fieldcraft.extensions.curation.attempts import AttemptJournal, describe_missing
from fieldcraft.extensions.curation.collection import DemonstrationCollection
from fieldcraft.extensions.curation.pairs import make_pair
from fieldcraft.extensions.curation.react_agent import AgentAttempt, AttemptStatus
from fieldcraft.extensions.curation.teachers import AnswerMode, OracleTeacher
from fieldcraft.extensions.worlds.atlas.generation import generate_atlas
from fieldcraft.extensions.worlds.atlas.oracle import AtlasOracle
from fieldcraft.extensions.worlds.atlas.questions import draw_train_tasks
from fieldcraft.rewards.answers import ExactMatch, exact_match
from fieldcraft.tools.chat_client import TokenUsage
from fieldcraft.types import Answer, Observation, Task, Thought, ToolCall, UserError

TASKS = [Task(f"t{i}", f"who {i}?", ("Oslo",)) for i in range(8)]
GRADER = Grader(ExactMatch())
SEARCH = (Thought("I look."), ToolCall("search", {"query": "x"}), Observation("..."))


def answers(text: str, acts: bool = False) -> AgentAttempt:
    steps = (*(SEARCH if acts else ()), Answer(text))
    return AgentAttempt(steps, AttemptStatus.ANSWERED, usage=TokenUsage(7, 3, 0.5))


class Scripted:
    """Teacher that plays a list of attempts for every (question, way) and repeats the last one."""

    def __init__(self, attempts: dict[tuple[str, str], list[AgentAttempt]]) -> None:
        self.attempts = attempts
        self.keys: list[str] = []

    async def attempt(self, task: Task, mode: AnswerMode, key: str) -> AgentAttempt:
        self.keys.append(key)
        await asyncio.sleep(0)
        right = [answers("Oslo", acts=mode is AnswerMode.COA)]
        listed = self.attempts.get((task.id, mode), right)
        number = int(key.rpartition(":")[2])
        return listed[min(number, len(listed) - 1)]

    def make_pairs(
        self, task: Task, thinking: Sequence[AgentAttempt], acting: Sequence[AgentAttempt]
    ) -> list[ContrastivePair] | str:
        found = make_pair(task, thinking, acting)
        return found if isinstance(found, str) else [found]


def collection(folder: Path, **settings: Any) -> DemonstrationCollection:
    defaults = {"questions": 8, "pair_questions": 4, "attempts": 3}
    return DemonstrationCollection(folder, TASKS, CollectConfig(**(defaults | settings)), seed=5)


def run(folder: Path, teacher: Any, **settings: Any) -> dict[str, Any]:
    found = collection(folder, **settings)
    asyncio.run(found.run(teacher, GRADER, 2, lambda ended, collected_ids: None))
    return found.write(teacher)


def files(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.glob("*.json*")}


def without_order(found: dict[str, str]) -> dict[str, Any]:
    return found | {"attempts.jsonl": sorted(found["attempts.jsonl"].splitlines())}


# -- attempts and accepted samples ---------------------------------------------------------------


def test_halves_are_disjoint_and_a_question_is_tried_until_it_is_right(tmp_path: Path) -> None:
    teacher = Scripted(
        {
            ("t4", "cot"): [answers("Rome"), answers("Oslo")],  # correct at the second attempt
            ("t5", "coa"): [answers("Rome", acts=True)],  # never
            ("t7", "coa"): [answers("Oslo")],  # correct without a tool: known
        }
    )
    summary = run(tmp_path, teacher)
    demonstrations = read_demonstrations(tmp_path / "demonstrations.jsonl")
    ways = {task.id: task.meta["way"] for task, _ in demonstrations}
    assert ways == {
        "t0": "cot", "t2": "cot", "t4": "cot", "t6": "cot", "t1": "coa", "t3": "coa",
    }  # fmt: skip
    for task, steps in demonstrations:
        assert any(isinstance(s, ToolCall) for s in steps) == (task.meta["way"] == "coa")
        assert isinstance(steps[-1], Answer)
        assert exact_match(steps[-1].text, task.answers)
    tried = Counter(key.split(":")[1] for key in teacher.keys)
    assert tried == {"t0": 2, "t1": 2, "t2": 2, "t3": 2, "t4": 2, "t5": 3, "t6": 1, "t7": 1}
    assert summary["questions"] == {"cot": 4, "coa": 4, "both": 4}
    assert summary["demonstrations"] == {"cot": 4, "coa": 2}
    assert summary["attempts"] == 15
    assert summary["outcomes"] == {"right": 10, "wrong answer": 4, "right without using a tool": 1}
    assert (summary["usage"]["prompt_tokens"], summary["usage"]["completion_tokens"]) == (105, 45)
    assert [t.meta["rejected"] for t, _ in read_demonstrations(tmp_path / "rejected.jsonl")] == [
        "wrong answer", "wrong answer", "wrong answer", "wrong answer",
        "right without using a tool",
    ]  # fmt: skip


def test_pairs_come_of_questions_tried_both_ways(tmp_path: Path) -> None:
    wrong = [answers("Rome")]
    teacher = Scripted(
        {
            ("t0", "cot"): wrong,
            ("t1", "cot"): wrong,
            ("t2", "cot"): [answers("Rome"), answers("Oslo")],
            ("t5", "cot"): wrong,  # beyond pair_questions
        }
    )
    summary = run(tmp_path, teacher, max_thinking_share=0.4)
    pairs = read_pairs(tmp_path / "pairs.jsonl")
    assert [(pair.task.id, pair.chooses_tool) for pair in pairs] == [
        ("t0", True), ("t1", True), ("t3", False),
    ]  # fmt: skip
    assert summary["pairs"] == {"acting": 2, "thinking": 1, "not kept": 0}
    assert summary["without_pair"] == {"right without tools only at a later try": 1}
    summary = run(tmp_path, teacher, max_thinking_share=0.25)
    assert summary["pairs"] == {"acting": 2, "thinking": 0, "not kept": 1}


def test_settings_may_ask_for_no_pairs(tmp_path: Path) -> None:
    summary = run(tmp_path, teacher := Scripted({}), pair_questions=0)
    assert len(teacher.keys) == 8
    assert summary["pairs"] == {"acting": 0, "thinking": 0, "not kept": 0}


# -- targets -----------------------------------------------------------------------------------

MANY = [Task(f"m{i}", f"who {i}?", ("Oslo",)) for i in range(40)]
WRONG = [answers("Rome")]


def sample(folder: Path, teacher: Any, concurrency: int = 1, **settings: Any) -> dict[str, Any]:
    found = DemonstrationCollection(
        folder, MANY, CollectConfig(**({"pair_questions": 0, "attempts": 1} | settings)), seed=5
    )
    asyncio.run(found.run(teacher, GRADER, concurrency, lambda ended, collected_ids: None))
    return found.write(teacher)


def tried_ids(teacher: Scripted) -> list[str]:
    return [key.split(":")[1] for key in teacher.keys]


def collected_ids(folder: Path) -> list[str]:
    return [task.id for task, _ in read_demonstrations(folder / "demonstrations.jsonl")]


def test_the_teacher_is_asked_no_more_once_the_targets_are_reached(tmp_path: Path) -> None:
    teacher = Scripted({("m2", "cot"): WRONG})
    summary = sample(tmp_path, teacher, cot=2, coa=4)
    assert tried_ids(teacher) == ["m0", "m1", "m2", "m3", "m4", "m5", "m7"]
    assert collected_ids(tmp_path) == ["m0", "m4", "m1", "m3", "m5", "m7"]
    assert summary["demonstrations"] == {"cot": 2, "coa": 4}
    assert summary["questions"] == {"cot": 3, "coa": 4, "both": 0}
    assert summary["missed"] == {}
    assert sample(tmp_path / "none", nobody := Scripted({}), cot=0, coa=0)["attempts"] == 0
    assert nobody.keys == []


def test_what_is_kept_does_not_depend_on_how_many_are_asked_at_once(tmp_path: Path) -> None:
    attempts = {(f"m{i}", "cot"): WRONG for i in (0, 3, 4, 8, 9)} | {("m5", "coa"): WRONG}
    settings = {"cot": 3, "coa": 5, "pairs": 4, "pair_questions": 40, "attempts": 2}
    alone = sample(tmp_path / "1", one := Scripted(attempts), **settings)
    many = sample(tmp_path / "7", seven := Scripted(attempts), 7, **settings)
    for name in ("demonstrations.jsonl", "pairs.jsonl"):
        assert (tmp_path / "1" / name).read_text() == (tmp_path / "7" / name).read_text()
    assert alone["demonstrations"] == many["demonstrations"] == {"cot": 3, "coa": 5}
    assert len(one.keys) < len(seven.keys) <= len(one.keys) + 2 * 2 * 7  # attempts under way


def test_a_target_that_is_missed_is_told_by_how_much(tmp_path: Path) -> None:
    attempts = {(f"m{i}", "coa"): WRONG for i in range(12, 40)}
    summary = sample(tmp_path, teacher := Scripted(attempts), cot=15, coa=10)
    assert len(teacher.keys) == 15 + 20  # one half until it has enough, the other to its end
    assert summary["demonstrations"] == {"cot": 15, "coa": 6}
    assert summary["missed"] == {"coa": 4}
    [sentence] = describe_missing(summary["missed"], {"coa": 10})
    assert sentence == (
        "4 of the requested 10 demonstrations with tools are missing: all questions have been used"
    )


def test_pairs_are_sampled_by_kind(tmp_path: Path) -> None:
    """Questions 0, 3, 6 ... require acting; for the others thinking is enough."""

    class Eager(Scripted):
        async def attempt(self, task: Task, mode: AnswerMode, key: str) -> AgentAttempt:
            self.keys.append(key)
            known = int(task.id[1:]) % 3
            return answers(
                "Oslo" if known or mode is AnswerMode.COA else "Rome", acts=mode is AnswerMode.COA
            )

    teacher = Eager({})
    summary = sample(
        tmp_path, teacher, pair_questions=40, cot=1, coa=1, pairs=8, max_thinking_share=0.25
    )
    pairs = read_pairs(tmp_path / "pairs.jsonl")
    acting = ["m0", "m3", "m6", "m9", "m12", "m15"]
    assert [p.task.id for p in pairs if p.chooses_tool] == acting
    assert [p.task.id for p in pairs if not p.chooses_tool] == ["m1", "m2"]
    assert set(tried_ids(teacher)) == {f"m{i}" for i in range(16)}  # up to the sixth acting pair
    assert summary["pairs"] == {"acting": 6, "thinking": 2, "not kept": 8}
    few = sample(tmp_path / "few", Eager({}), pair_questions=9, pairs=8, max_thinking_share=0.25)
    assert few["pairs"] == {"acting": 3, "thinking": 1, "not kept": 5}  # at most a quarter
    assert few["missed"] == {"acting": 3, "thinking": 1}


def test_a_stopped_run_with_targets_ends_the_same(tmp_path: Path) -> None:
    attempts = {(f"m{i}", way): WRONG for i in (1, 4, 6) for way in AnswerMode}
    settings = {"cot": 3, "coa": 4, "pairs": 3, "pair_questions": 40}
    sample(tmp_path / "whole", whole := Scripted(attempts), 3, **settings)
    for after in range(1, len(whole.keys), 3):
        with pytest.raises(Stopped):
            sample(tmp_path / f"{after}", Stopping(attempts, after), 3, **settings)
        sample(tmp_path / f"{after}", Scripted(attempts), 3, **settings)
        for name in ("demonstrations.jsonl", "pairs.jsonl"):
            expected = (tmp_path / "whole" / name).read_text()
            assert (tmp_path / f"{after}" / name).read_text() == expected


# -- resumption --------------------------------------------------------------------------------


class Stopped(Exception):
    pass


class Stopping(Scripted):
    """Teacher that stops the run in its n-th attempt."""

    def __init__(self, attempts: Any, after: int) -> None:
        super().__init__(attempts)
        self.after = after

    async def attempt(self, task: Task, mode: AnswerMode, key: str) -> AgentAttempt:
        if len(self.keys) == self.after:
            raise Stopped
        return await super().attempt(task, mode, key)


def test_a_stopped_run_asks_nothing_twice_and_ends_the_same(tmp_path: Path) -> None:
    attempts = {("t1", "coa"): [answers("Rome", acts=True)], ("t2", "cot"): [answers("Rome")]}
    run(tmp_path / "whole", whole := Scripted(attempts))
    for after in range(0, len(whole.keys), 2):
        teacher = Stopping(attempts, after)
        with pytest.raises(Stopped):
            run(tmp_path / f"{after}", teacher)
        journal = tmp_path / f"{after}" / "attempts.jsonl"
        answered = journal.read_text().splitlines() if journal.exists() else []
        with journal.open("a") as file:
            file.write('{"id": "t6", "way')  # state after a kill
        run(tmp_path / f"{after}", rest := Scripted(attempts))
        done = {f"5:{r['id']}:{r['way']}" for r in map(json.loads, answered)}
        assert len(rest.keys) == len(whole.keys) - len(answered)
        assert sorted(rest.keys) == sorted(set(whole.keys) - set(_keys(answered))), done
        assert without_order(files(tmp_path / f"{after}")) == without_order(
            files(tmp_path / "whole")
        )
    run(tmp_path / "whole", again := Scripted(attempts))
    assert again.keys == []


def _keys(lines: list[str]) -> list[str]:
    """Return the keys of attempts in a journal."""
    seen = Counter[str]()
    keys = []
    for record in map(json.loads, lines):
        job = f"5:{record['id']}:{record['way']}"
        keys.append(f"{job}:{seen[job]}")
        seen[job] += 1
    return keys


def test_half_a_character_in_a_thought_does_no_harm(tmp_path: Path) -> None:
    odd = AgentAttempt((Thought("\ud800 \u2028 é"), Answer("Oslo")), AttemptStatus.ANSWERED)
    run(tmp_path, Scripted({("t0", "cot"): [odd]}))
    assert AttemptJournal(tmp_path / "attempts.jsonl").attempts["t0", AnswerMode.COT] == [
        replace(odd, is_correct=True)
    ]
    assert read_demonstrations(tmp_path / "demonstrations.jsonl")[0][1][0] == Thought("? \u2028 é")


# -- bad teachers ------------------------------------------------------------------------------

FAILED = AgentAttempt((), AttemptStatus.REQUEST_FAILED, "HTTP 500", TokenUsage(1, 0, 0.5))


def test_a_failure_ends_its_question_and_is_made_anew_later(tmp_path: Path) -> None:
    attempts = {("t1", "coa"): [answers("Rome", acts=True), FAILED]}
    summary = run(tmp_path, Scripted(attempts))
    assert summary["outcomes"]["the request failed"] == 1
    assert summary["without_pair"] == {"not tried both ways": 1}
    summary = run(tmp_path, teacher := Scripted({}))
    assert teacher.keys == ["5:t1:coa:1"]  # its first attempt is not repeated
    assert "the request failed" not in summary["outcomes"]
    assert summary["attempts"] == 13
    assert summary["usage"] == {
        "prompt_tokens": 13 * 7, "completion_tokens": 13 * 3, "cost": 13 * 0.5,
    }  # fmt: skip


def test_too_many_failures_stop_the_run_with_the_cause(tmp_path: Path) -> None:
    class Dead(Scripted):
        async def attempt(self, task: Task, mode: AnswerMode, key: str) -> AgentAttempt:
            self.keys.append(key)
            await asyncio.sleep(0)
            return FAILED

    message = r"5 attempts failed \(last cause: the request failed: HTTP 500\)"
    with pytest.raises(UserError, match=message):
        run(tmp_path, dead := Dead({}))
    assert len(dead.keys) <= 8  # 0.2 of 20 is tolerated, and two run concurrently
    summary = run(tmp_path, Scripted({}))
    assert summary["outcomes"] == {"right": 12}


def test_failures_are_a_share_of_all_attempts_in_the_end(tmp_path: Path) -> None:
    attempts = {(f"t{i}", way): [FAILED] for i in range(2) for way in AnswerMode}  # 4 of 12
    for _ in range(2):  # a resumed run fails with the same message
        with pytest.raises(UserError, match="4 attempts failed"):
            run(tmp_path, Scripted(attempts))
    summary = run(tmp_path, Scripted(attempts), max_failure_rate=0.4)
    assert (summary["attempts"], summary["outcomes"]["the request failed"]) == (12, 4)


def test_what_failed_for_good_does_not_keep_a_run_from_its_end(tmp_path: Path) -> None:
    """All attempts of the resumed run fail, because only failed ones are repeated."""
    attempts = {("t6", "cot"): [FAILED]}
    for _ in range(2):
        assert run(tmp_path, Scripted(attempts), attempts=1)["attempts"] == 12


# -- the oracle --------------------------------------------------------------------------------


def test_the_oracle_knows_what_was_taught_and_guesses_or_searches_the_rest(tmp_path: Path) -> None:
    world = generate_atlas(people=60, taught=0.4, heldout=0.5, seed=0)
    tasks = draw_train_tasks(world, 0, 120)
    found = DemonstrationCollection(
        tmp_path, tasks, CollectConfig(pair_questions=40, attempts=2), seed=0
    )
    oracle = OracleTeacher(AtlasOracle(world), 0)
    asyncio.run(found.run(oracle, GRADER, 8, lambda ended, collected_ids: None))
    found.write(oracle)
    demonstrations = read_demonstrations(tmp_path / "demonstrations.jsonl")
    assert len({task.id for task, _ in demonstrations}) == len(demonstrations)
    by_way = {way: [t for t, _ in demonstrations if t.meta["way"] == way] for way in AnswerMode}
    known = {t.id for t in tasks[0::2] if t.meta["known"]}
    assert known <= {t.id for t in by_way[AnswerMode.COT]}
    assert {t.id for t in by_way[AnswerMode.COA]} == {
        t.id for t in tasks[1::2] if t.meta["calls_optimal"] > 0
    }
    heldout = {name for name, e in world.entities.items() if e.region == "heldout"}
    text = (tmp_path / "attempts.jsonl").read_text() + (tmp_path / "pairs.jsonl").read_text()
    assert not [name for name in heldout if name in text]
    pairs = read_pairs(tmp_path / "pairs.jsonl")
    thinking = sum(not pair.chooses_tool for pair in pairs)
    assert thinking == int(0.25 * len(pairs))
    assert {p.task.id for p in pairs} <= {t.id for t in tasks[:40]}
