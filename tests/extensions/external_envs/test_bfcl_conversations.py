"""Conversations of the Berkeley Function Calling Leaderboard, whose calls its package executes."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from bfcl_parts import NEEDS_PACKAGE, PYTHON, answer_with, gold_turns, questions_of

from fieldcraft.extensions.external_envs.bfcl.questions import (
    MULTI_TURN_CATEGORIES,
    WORKER_SCRIPT,
)
from fieldcraft.extensions.external_envs.worker_process import WorkerProcess
from fieldcraft.records.chains import split_chains, validate_folds
from fieldcraft.types import Author, Status

pytestmark = [pytest.mark.long, NEEDS_PACKAGE]


@pytest.mark.parametrize("category", MULTI_TURN_CATEGORIES)
def test_conversations_of_gold_answers_are_right(category: str) -> None:
    ids = [question.id for question in questions_of(category)]
    answers = dict(zip(ids[:3], gold_turns(category), strict=False))
    done, _ = answer_with(category, answers)
    assert [t.rewards for t in done] == [{"environment": 1.0}] * 3
    for trajectory in done:
        validate_folds(trajectory)
        results = [c.observation for c in trajectory.calls]
        tool_texts = [s.text for s in trajectory.segments if s.author is Author.TOOL]
        assert all(any(result in text for text in tool_texts) for result in results)
        assert trajectory.answer == "It is done."


def test_conversations_that_do_other_things_are_wrong() -> None:
    question = questions_of("multi_turn_base")[0].id
    gold = gold_turns("multi_turn_base")[0]
    nothing = ["I will not."] * len(gold)
    skipped = ["I will not.", *gold[2:]]
    endless = [gold[0]] * 30
    done = [
        answer_with("multi_turn_base", {question: t})[0][0] for t in (nothing, skipped, endless)
    ]
    assert [t.rewards for t in done] == [{"environment": 0.0}] * 3
    assert done[2].status is Status.TRUNCATED
    assert len([s for s in done[2].segments if s.author is Author.POLICY]) == 21
    assert done[2].task.meta["checker"] == "turn 0 did not end within the limits"


def test_a_turn_that_adds_functions_begins_a_chain_with_the_conversation_so_far() -> None:
    question = questions_of("multi_turn_miss_func")[0]
    [done], _ = answer_with(
        "multi_turn_miss_func", {question.id: gold_turns("multi_turn_miss_func")[0]}
    )
    [(turn, [added, *_])] = question.added_tools.items()
    name = f'"name": "{added["function"]["name"]}"'
    first, second = split_chains(done)
    assert name not in first[0].text
    assert name in second[0].text
    past = "".join(segment.text for segment in first[1:])
    asked = question.turns[0][0]["content"]
    assert past in second[0].text.partition(asked)[2]
    assert question.turns[turn][0]["content"] in second[0].text
    assert [segment.author for segment in second[:2]] == [Author.PROMPT, Author.POLICY]


def ask_worker(category: str, *requests: dict[str, Any]) -> list[dict[str, Any]]:
    async def ask() -> list[dict[str, Any]]:
        worker = WorkerProcess(
            [str(PYTHON), str(WORKER_SCRIPT)], {"categories": [category]}, Path("worker.log")
        )
        await worker.start()
        try:
            return [await worker.send_request(request) for request in requests]
        finally:
            await worker.close()

    return asyncio.run(ask())


def execute(*calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the request to execute calls for a question about files and posts."""
    return {"execute": "multi_turn_base_0", "steps": [calls]}


def test_only_functions_of_the_question_are_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package evaluates calls as expressions of Python."""
    monkeypatch.chdir(tmp_path)
    target = tmp_path / "written"
    replies = ask_worker(
        "multi_turn_base",
        execute(("open", {"file": str(target), "mode": "w"})),
        execute(("cd", {f"folder=open({str(target)!r}, 'w'), x": 1})),
        execute(("cd", {"folder": "'); open('written', 'w'); ('"})),
        execute(("pwd", {}), ("touch", {"file_name": "a"})),
    )
    assert not target.exists()
    assert replies[0]["results"] == ["Error during execution: name 'open' is not defined"]
    assert "Error during execution" in replies[1]["results"][0]
    assert "No such file or directory" in replies[2]["results"][0]
    assert replies[3]["results"][0] == '{"current_working_directory": "/workspace"}'
    assert len(replies[3]["results"]) == 2


@pytest.mark.slow  # ten seconds of CPU time
def test_a_call_that_never_ends_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    question = next(
        q for q in questions_of("multi_turn_base")
        if "power" in {tool["function"]["name"] for tool in q.tools}
    )  # fmt: skip
    power = ("power", {"base": 3, "exponent": 10**10})
    slow, quick = ask_worker(
        "multi_turn_base",
        {"execute": question.id, "steps": [[power]]},
        {"execute": question.id, "steps": [[("add", {"a": 1, "b": 2})]]},
    )
    assert slow["results"] == ["Error during execution: the call took too much time or memory"]
    assert quick["results"] == ['{"result": 3}']
