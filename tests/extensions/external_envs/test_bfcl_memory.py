"""Memories of the Berkeley Function Calling Leaderboard, which a policy writes and then reads."""

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import pytest
from bfcl_memory_parts import make_note, number_of, questions_about, read_answers
from bfcl_parts import (
    LIMITS,
    NEEDS_PACKAGE,
    PYTHON,
    GoldEngine,
    Turn,
    Writer,
    questions_of,
    read_records,
)

from auto_parts import DIALECTS
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.environments.base import isolate_failures
from fieldcraft.environments.turns import Policy
from fieldcraft.extensions.external_envs.bfcl.environment import BfclEnvironment
from fieldcraft.extensions.external_envs.bfcl.questions import (
    MEMORY_CATEGORIES,
    BfclQuestion,
)
from fieldcraft.records import waits
from fieldcraft.sampling import Completion, SamplingParams
from fieldcraft.types import Author, CallOutcome, Status, Task, ToolCall, Trajectory

pytestmark = [pytest.mark.long, NEEDS_PACKAGE]
DIALECT = DIALECTS["Qwen3-Coder"]
SCENARIOS = {"student": 50, "customer": 30, "finance": 25, "healthcare": 25, "notetaker": 25}
CONVERSATIONS = {"student": 10, "customer": 10, "finance": 7, "healthcare": 5, "notetaker": 5}
Script = dict[str, list[Turn | Writer]]


@cache
def count_turns() -> Mapping[str, int]:
    """Return the number of turns of each conversation that writes a memory, by its number."""
    return {
        number_of(record["id"]): len(record["question"])
        for scenario in SCENARIOS
        for record in read_records("memory_prereq_conversation", f"memory_{scenario}.json")
    }


def make_reading(question: BfclQuestion) -> list[Turn | Writer]:
    """Return turns that answer a question with what the memory has, which is read by a call or
    stands in the prompt."""
    number = number_of(question.id).partition("-")[0]
    if question.category == "memory_kv":
        return [
            [ToolCall("archival_memory_retrieve", {"key": f"fact_{number}"})],
            lambda text: find_last(r'\{"value": (".*?")\}', text, json.loads),
        ]
    return [lambda text: find_last(rf"fact_{number}=(.*?);", text)]


def find_last(pattern: str, text: str, parse: Any = str) -> str:
    found = re.findall(pattern, text)
    return f"{{'answer': '{parse(found[-1]) if found else 'I do not know'}'}}"


def script_of(questions: Sequence[BfclQuestion], writes: bool = True) -> Script:
    """Return the turns of a policy that notes the answers of questions of one scenario, spread over
    its conversations, and reads them."""
    conversations = questions[0].depends_on
    script: Script = {name: ["Noted."] * count_turns()[number_of(name)] for name in conversations}
    for place, question in enumerate(questions):
        if writes:
            script[conversations[place % len(conversations)]].insert(0, [make_note(question)])
    return script | {question.id: make_reading(question) for question in questions}


def ask(
    category: str,
    script: Script,
    ids: Sequence[str],
    at_once: bool = True,
    engine: Any = None,
    budget: BudgetConfig = LIMITS,
) -> tuple[list[Trajectory], GoldEngine]:
    """Return the rollouts on questions, one after the other or all at once."""
    engine = engine or GoldEngine(DIALECT, script)
    policy: Any = Policy(engine=engine)
    environment = BfclEnvironment([category], PYTHON)

    async def roll_out() -> list[Trajectory]:
        async with isolate_failures(environment, DIALECT, budget) as opened:
            runs = [opened.run(Task(key, "?", ()), policy, key) for key in ids]
            return [*await asyncio.gather(*runs)] if at_once else [await run for run in runs]

    return asyncio.run(roll_out()), engine


def rewards_of(done: Sequence[Trajectory]) -> list[float]:
    return [trajectory.rewards["environment"] for trajectory in done]


# -- questions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("category", MEMORY_CATEGORIES)
def test_questions_name_the_conversations_before_them_in_order(category: str) -> None:
    questions = questions_of(category)
    assert [q.scenario for q in questions[:10]] == [*sorted(SCENARIOS, key=order_of)] * 2
    for scenario, count in SCENARIOS.items():
        found = questions_about(category, scenario)
        assert len(found) == count
        [names] = {tuple(question.depends_on) for question in found}
        numbers = [int(name.rpartition("-")[2]) for name in names]
        assert numbers == [*range(CONVERSATIONS[scenario])]
        assert all(name.startswith(f"{category}_prereq_") for name in names)


def order_of(scenario: str) -> int:
    """Return the place of a scenario in the data."""
    return ("customer", "healthcare", "finance", "student", "notetaker").index(scenario)


def test_verdicts_on_one_memory_are_a_cluster() -> None:
    train, heldout = BfclEnvironment(["memory_kv"], PYTHON).tasks(0)
    assert (len(train), len(heldout)) == (155, 0)
    assert train[0].meta == {"type": "memory_kv", "cluster": "customer"}
    assert {task.meta["cluster"] for task in train} == SCENARIOS.keys()


# -- memories ----------------------------------------------------------------------------------


@pytest.mark.parametrize("category", MEMORY_CATEGORIES)
def test_a_policy_that_writes_and_reads_its_memory_is_right(category: str) -> None:
    """All questions of a scenario are asked at once, and its conversations are held once."""
    questions = questions_about(category, "notetaker")
    done, engine = ask(category, script_of(questions), [q.id for q in questions])
    assert rewards_of(done) == [1.0] * 25
    assert {t.status for t in done} == {Status.ANSWERED}
    assert not any(engine.turns.values())  # each turn was written once
    held = [key for key in engine.keys if "prereq" in key]
    assert [*dict.fromkeys(held)] == [*questions[0].depends_on]
    assert held == sorted(held, key=questions[0].depends_on.index)
    assert engine.keys[: len(held)] == held


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("category", MEMORY_CATEGORIES)
def test_a_policy_that_writes_and_reads_all_memories_is_right(category: str, scenario: str) -> None:
    questions = questions_about(category, scenario)
    done, _ = ask(category, script_of(questions), [q.id for q in questions])
    assert rewards_of(done) == [1.0] * SCENARIOS[scenario]


@pytest.mark.parametrize("category", MEMORY_CATEGORIES)
def test_a_policy_that_never_writes_is_wrong(category: str) -> None:
    questions = questions_about(category, "notetaker")[:3]
    done, engine = ask(category, script_of(questions, writes=False), [q.id for q in questions])
    assert rewards_of(done) == [0.0] * 3
    assert "fact_" not in engine.prompts[-1].partition("<|im_start|>user")[0]
    for trajectory in done:
        assert (trajectory.answer, trajectory.status) == (
            "{'answer': 'I do not know'}",
            Status.ANSWERED,
        )
        assert trajectory.task.meta["checker"]


def test_a_conversation_reads_what_the_ones_before_it_wrote() -> None:
    questions = questions_about("memory_rec_sum", "notetaker")
    [_, engine] = ask("memory_rec_sum", script_of(questions[:5]), [questions[0].id])
    notes = [make_note(question).arguments["text"] for question in questions[:5]]
    for place, name in enumerate(questions[0].depends_on):
        first = engine.prompts[engine.keys.index(name)]
        assert [note in first for note in notes] == [True] * place + [False] * (5 - place)


def test_long_conversations_are_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "REPORT_AFTER_SECONDS", 0.0)
    monkeypatch.setattr(waits, "REPORT_INTERVAL_SECONDS", 0.0)
    questions = questions_about("memory_kv", "notetaker")[:2]
    lines: list[str] = []
    with waits.report_waits_to(lines.append):
        ask("memory_kv", script_of(questions), [question.id for question in questions])
    waiter = "a question about a memory waits for conversation"
    assert [line for line in lines if line.startswith(waiter)] == [
        f"{waiter} {number} of 5 that writes it" for number in range(1, 6)
    ]


def test_changes_of_a_question_are_not_seen_by_others() -> None:
    first, second = questions_about("memory_kv", "notetaker")[:2]
    script = script_of([first, second])
    script[first.id].insert(0, [ToolCall("archival_memory_remove", {"key": "fact_131"})])
    script[first.id].insert(0, [ToolCall("archival_memory_clear", {})])
    done, _ = ask("memory_kv", script, [first.id, second.id], at_once=False)
    assert rewards_of(done) == [0.0, 1.0]
    assert "not found" in done[0].calls[-1].observation


def test_a_broken_call_and_an_endless_loop_are_wrong_and_others_go_on() -> None:
    broken, endless, late, good = questions_about("memory_rec_sum", "notetaker")[:4]
    script = script_of([broken, endless, late, good])
    answer = read_answers()[number_of(broken.id)]
    script[broken.id] = [f"{answer} <tool_call>\n<function=memory_retrieve"]
    script[endless.id] = [[ToolCall("memory_retrieve", {})]] * 30
    script[late.id] = [[ToolCall("memory_retrieve", {})]] * 20 + script[late.id]
    done, engine = ask("memory_rec_sum", script, [broken.id, endless.id, late.id, good.id])
    assert rewards_of(done) == [0.0, 0.0, 1.0, 1.0]
    assert done[0].task.meta["checker"] == "the calls cannot be read"
    assert done[0].calls[-1].outcome is CallOutcome.MALFORMED
    assert not done[0].well_formed
    assert done[1].task.meta["checker"] == "turn 0 did not end within the limits"
    assert len([s for s in done[1].segments if s.author is Author.POLICY]) == 21
    assert len(engine.turns[endless.id]) == 9


def test_a_conversation_that_never_ends_keeps_what_it_wrote() -> None:
    first, second = questions_about("memory_rec_sum", "notetaker")[:2]
    script = script_of([first, second])  # in the first and in the second conversation
    name, other = first.depends_on[:2]
    script[name] = [[make_note(first)], *[[ToolCall("memory_retrieve", {})]] * 30]
    script[other].insert(0, "<tool_call>\n<function=memory_append")  # ends a turn of the user
    script[other].pop()
    done, engine = ask("memory_rec_sum", script, [first.id, second.id])
    assert rewards_of(done) == [1.0, 1.0]
    assert len(engine.turns[name]) == 10
    assert engine.turns[other] == []


def test_a_cut_message_ends_a_turn_and_a_full_context_the_conversation() -> None:
    [question] = questions_about("memory_rec_sum", "notetaker")[:1]
    script = script_of([question])
    long = "x " * 3000  # more than 2,048 tokens
    first, second = question.depends_on[:2]
    script[first] = [long, *script[first][:-1]]  # the note is written in the second turn
    script[second] = [[make_note(question)], *[long] * 4]
    budget = BudgetConfig(max_turn_tokens=2048, max_context_tokens=7500)
    [done], engine = ask("memory_rec_sum", script, [question.id], budget=budget)
    assert rewards_of([done]) == [1.0]
    assert engine.turns[first] == []
    assert len(engine.turns[second]) == 2  # 6,149 tokens before the second one, which is cut
    cut = engine.prompts[engine.keys.index(first) + 1]
    assert "x x <|im_end|>\n<|im_start|>user\n" in cut


class FailingEngine(GoldEngine):
    """Engine that fails once in a conversation."""

    def __init__(self, script: Script, failing: str) -> None:
        super().__init__(DIALECT, script)
        self.failing = [failing]

    async def generate(
        self, ids: Sequence[int], sampling: SamplingParams, session: str
    ) -> Completion:
        if session.partition("#")[0] in self.failing:
            self.failing.clear()
            raise ConnectionError("the server is gone")
        return await super().generate(ids, sampling, session)


def test_a_conversation_that_failed_is_held_again() -> None:
    questions = questions_about("memory_kv", "notetaker")[:3]
    engine = FailingEngine(script_of(questions), questions[0].depends_on[2])
    done, _ = ask("memory_kv", {}, [q.id for q in questions], engine=engine)
    assert [t.status for t in done] == [Status.ERROR, Status.ANSWERED, Status.ANSWERED]
    assert "notetaker-2' failed: ConnectionError" in done[0].error
    assert rewards_of(done[1:]) == [1.0, 1.0]
    assert not any(engine.turns[name] for name in questions[0].depends_on)  # none is held twice
